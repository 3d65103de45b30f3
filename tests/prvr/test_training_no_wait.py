"""Nothing in a training step asks the device for a number: a step of every kind, where no number exists."""

from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from test_models import SIZES, make_batch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from _counts import OnMeta
from prvr.config import Config, ModelConfig, load_config
from prvr.data import PackedSplit
from prvr.data.loader import VideoLoader
from prvr.models import Retriever
from prvr.models.rows import Rows
from prvr.objective import Objective
from prvr.training import RetrievalTask
from prvr.training.gradients import backward_in_parts
from prvr.training.task import TrainingStep
from prvr.types import Counts

KINDS = [
    ("hybrid-tvr", "drop"),
    ("hlformer-tvr", "drop"),
    ("dreamprvr-tvr", "compute"),
    ("gmmformer-tvr", "compute"),
    ("holmes-words-tvr", "compute"),
]


class Transfers(TorchDispatchMode):
    """Names operators that bring tensors from the host to the device: unless page-locked, the host waits for each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = ([t for t in tree_iter(x) if isinstance(t, Tensor)] for x in ((args, kwargs), result))
        # A number on the host may take part in arithmetic on a device; it travels as an argument of the kernel.
        moves = any(t.device.type == "cpu" and (t.ndim or "copy" in str(func)) for t in given)
        if moves and any(t.device.type == "meta" for t in made):
            self.found.append(str(func))
        return result


def configured(preset: str, rows: str, **changes: Any) -> Config:
    sizes = SIZES | {"registers.steps": 2, "padded_rows": rows}
    return load_config(preset, {f"model.{key}": value for key, value in sizes.items()} | changes, shared=True)


def parts(config: Config) -> tuple[Retriever, Objective]:
    torch.manual_seed(0)
    assert isinstance(config.model, ModelConfig)
    retriever = Retriever(config.model).train().to("meta")
    return retriever, Objective(config.loss, config.model, retriever.registers).train().to("meta")


@pytest.mark.parametrize(("preset", "rows"), KINDS)
def test_a_step_neither_reads_from_the_device_nor_sends_to_it(preset: str, rows: str) -> None:
    config = configured(preset, rows, **{"train.hard_negatives_from": 1, "train.warm_up_epochs": 1})
    retriever, objective = parts(config)
    batches, split = create_autospec(VideoLoader, instance=True), create_autospec(PackedSplit, instance=True)
    task = RetrievalTask(config, OnMeta(), retriever, objective, batches, split)
    step = TrainingStep(config, task, *task.optimizer(10), torch.device("meta"))
    step.lag = 1  # as on a GPU: the numbers of a step are read when the next one is queued
    batch = make_batch([12, 5, 1], dtype=torch.float32).to("meta")
    step((batch, None), "", 0, 0, None)  # fills caches
    with Transfers() as transfers:
        numbers = step((batch, None), "", 1, 1, None)
    assert transfers.found == []
    assert numbers.sent.device.type == "meta"
    assert len(numbers.parameters) > 20


def test_nor_do_the_chunks_of_a_step() -> None:
    retriever, objective = parts(configured("hlformer-tvr", "drop"))
    batch = make_batch([12, 5, 1], dtype=torch.float32).to("meta")
    with Transfers() as transfers:
        chunks = batch.padded(12, 7).split(2)
        terms = backward_in_parts(retriever, objective, chunks, batch.labels, seeds=[1, 2])
    assert transfers.found == []
    assert terms["total"].device.type == "meta"


def test_the_ledger_of_transfers_can_fill() -> None:
    with Transfers() as transfers:
        torch.ones(2).to("meta")
        torch.ones(2, device="meta").mul(torch.tensor(2.0))
    assert transfers.found == ["aten._to_copy.default"]
    with pytest.raises(NotImplementedError, match="nonzero"):
        Rows.of(torch.ones(2, 2, dtype=torch.bool, device="meta"))


def test_rows_that_were_counted_are_those_that_are_found() -> None:
    mask = torch.rand(9, 11, generator=torch.Generator().manual_seed(0)) < 0.4
    found, counted = Rows.of(mask), Rows.of(mask, int(mask.sum()))
    for name in ("index", "place", "absent", "position"):
        assert torch.equal(getattr(found, name), getattr(counted, name))
    full = torch.ones(2, 3, dtype=torch.bool)
    assert Rows.of(full, 6).index.tolist() == Rows.of(full).index.tolist()


def test_a_batch_is_counted_when_it_leaves_the_host_and_its_parts_know_their_share() -> None:
    batch = make_batch([12, 5, 1])
    assert batch.counts is None
    assert batch.valid_frames is None
    moved = batch.to("meta")
    assert moved.counts is not None
    assert moved.counts == Counts.of(batch.frame_mask, batch.word_mask, batch.query_to_video)
    assert (moved.valid_frames, moved.valid_words) == (18, int(batch.word_mask.sum()))
    assert moved.padded(12, 9).counts == moved.counts
    for there, here in zip(moved.split(2), batch.split(2), strict=True):
        assert there.counts == Counts.of(here.frame_mask, here.word_mask, here.query_to_video)
        assert there.words.shape == here.words.shape
    mixed = Counts.of(batch.frame_mask, batch.word_mask, batch.query_to_video.flip(0))
    assert mixed.queries is None
    assert mixed.frames == moved.counts.frames
