"""Batches made on a device, counted, read ahead or read when asked for: the same ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from training_runs import make_config

from prvr.data import Corpus, PackedSplit, PackSettings, VideoLoader, pack
from prvr.data.on_device import split_bytes
from prvr.training.processes import make_accelerator
from prvr.training.splits import training_batches
from prvr.types import Batch

CPU = torch.device("cpu")


def equal(left: Batch, right: Batch) -> bool:
    """Bit by bit, types included."""

    def same(a: Any, b: Any) -> bool:
        return a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, Tensor) else a == b

    return all(same(a, b) for a, b in zip(vars(left).values(), vars(right).values(), strict=True))


def passes(loader: VideoLoader, first: int = 0) -> list[Batch]:
    batches = []
    for epoch in (0, 1):
        loader.set_epoch(epoch, first_batch=first)
        batches += list(loader)
    return batches


@pytest.mark.parametrize("captions", [None, 2])
def test_batches_made_on_the_device_are_those_of_the_loader(packed: PackedSplit, captions: int | None) -> None:
    part = packed.subset([0, 1, 2, 5, 7, 8, 11, 13, 14, 19])  # not one after another in the store
    options: dict[str, Any] = {"seed": 3, "captions_per_video": captions}
    loader = VideoLoader(part, 4, **options)
    expected, resident = passes(loader), passes(loader.to(CPU, resident=True))
    assert len(resident) == 6
    assert all(map(equal, resident, expected))
    resumed = passes(loader, first=2)
    assert all(map(equal, resumed, [expected[2], expected[5]]))


def test_half_precision_stays_half_on_the_device(corpus: Corpus, tmp_path: Path) -> None:
    half = pack(corpus, "test", cache_dir=tmp_path, settings=PackSettings(4, 8, 6, dtype="float16"))
    resident = VideoLoader(half, 8).to(CPU, resident=True)
    kept = [runs.rows for runs in resident.resident]
    assert {rows.dtype for rows in kept} == {torch.float16}
    assert split_bytes(half) == sum(rows.nbytes for rows in kept)
    assert split_bytes(half.subset([3])) < split_bytes(half) / 10
    assert all(map(equal, passes(resident), passes(VideoLoader(half, 8))))


def test_a_thread_that_reads_ahead_changes_nothing_and_passes_on_what_goes_wrong(packed: PackedSplit) -> None:
    ahead, plain = (VideoLoader(packed, 6).to(CPU, ahead=n) for n in (3, 0))
    assert all(map(equal, passes(ahead), passes(plain)))
    assert len(ahead) == len(plain) == 4
    for batch in ahead:  # left early: the thread ends with the pass
        assert len(batch.video_ids) == 6
        break
    closed = PackedSplit.open(packed.files.folder)
    closed.close()
    with pytest.raises(ValueError, match="was closed"):
        list(VideoLoader(closed, 6).to(CPU, ahead=2))


def test_where_features_are_kept(packed: PackedSplit, tmp_path: Path) -> None:
    for choice, resident in (("always", True), ("auto", False), ("never", False)):
        config = make_config("", train__data_on_device=choice)
        with make_accelerator("no", tmp_path, "cpu", ()) as accelerator:
            assert (training_batches(config, packed, accelerator).resident is not None) == resident
