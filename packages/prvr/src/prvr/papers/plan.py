"""What the runs of tables would cost: parameters, operations, steps, and hours at a step that is timed here."""

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from rich.table import Table as RichTable
from rich.text import Text
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from prvr.config import AnyModelConfig, Config, LossConfig
from prvr.errors import PrvrError
from prvr.evaluation.tables import new_table
from prvr.models import build_retriever
from prvr.objective import Objective
from prvr.papers.runs import Cell, Run
from prvr.papers.study import Study
from prvr.papers.table import DataSet
from prvr.training import build_optimizer
from prvr.training.splits import run_corpus, with_widths
from prvr.types import Batch

logger = logging.getLogger(__name__)
_TIMED = 3  # steps, after two that warm up


class Cost(NamedTuple):
    """What a run that trains a retriever costs at most: all epochs, every video as long as the model reads.

    Args:
        parameters: of the retriever and its losses.
        operations: of a step, 2 for each multiplication with its addition; None if they cannot be counted by shapes.
        steps: of all epochs; None where the size of the training split is not known.
        seconds: of a step, as timed on a device; None where none was timed.
    """

    parameters: int
    operations: int | None
    steps: int | None
    seconds: float | None

    @property
    def hours(self) -> float:
        """The time of all steps, as far as it is known; evaluation is not counted."""
        return (self.seconds or 0) * (self.steps or 0) / 3600


def cost_of(run: Run, data: DataSet, device: torch.device | str | None = None) -> Cost:
    """What training a run costs.

    Args:
        run: one of kind "train".
        data: its data set, which knows the published sizes.
        device: times a few steps of random numbers there; None = times nothing.

    Raises:
        TrainingError, prvr.data.DataError: a width is that of the data, which are not there.
    """
    videos, queries = data.videos, data.queries  # as published, where the corpus is neither at hand nor drawn
    with suppress(PrvrError):
        split = run_corpus(run.config).split("train")
        videos, queries = len(split.video_ids), len(split.captions)
    captions = max(1, round(queries / videos)) if videos and queries else 5
    config = with_widths(run.config)
    train = config.train
    captions = min(captions, config.data.captions_per_video or captions)
    parameters, operations = _counts(config.model, config.loss, train.batch_size, captions)
    if isinstance(operations, str):
        logger.warning("%s: the operations of a step cannot be counted: %s", run.key, operations)
        operations = None
    steps = None if videos is None else train.epochs * math.ceil(videos / train.batch_size)
    seconds = None if device is None or not train.epochs else _seconds_of_a_step(config, captions, device)
    return Cost(parameters, operations, steps, seconds)


def plan_table(
    runs: Sequence[Run], cells: Sequence[Cell], study: Study | None, *, device: torch.device | str, measure: bool
) -> RichTable:
    """The runs of some cells, each with its cost, for the terminal.

    Args:
        runs: as `distinct_runs` orders them.
        cells: what asks for them.
        study: says which are finished.
        device: where steps are timed.
        measure: time steps.
    """
    plan = new_table("runs", None, ["run", "what"], ["parameters", "a step", "steps", *["hours", "cost"] * measure])
    costs: dict[str, Cost] = {}
    hours, unfinished = 0.0, 0
    for run in runs:
        users = [cell for cell in cells if cell.run is not None and cell.run.key == run.key]
        numbers = list[str]()
        if run.kind == "train" and users:
            if run.arm not in costs:  # seeds cost the same
                costs[run.arm] = cost_of(run, users[0].data, device if measure else None)
            cost, base = costs[run.arm], next(iter(costs.values()))
            steps = "?" if cost.steps is None else f"{cost.steps:,}"
            operations = "?" if cost.operations is None else f"{cost.operations / 1e12:.3g} T"
            numbers = [f"{cost.parameters / 1e6:.2f} M", operations, steps]
            if measure:
                ratio = (cost.seconds or 0) / (base.seconds or 1)
                numbers += ["?" if cost.steps is None else f"{cost.hours:.1f}", f"{ratio:.2f}"]
        finished = study is not None and study.result(run) is not None
        if not finished:
            unfinished += 1
            hours += costs[run.arm].hours if run.arm in costs else 0
        what = "other rows are built on it"
        if users:
            others = sorted({cell.table.name for cell in users} - {users[0].table.name})
            what = users[0].what + f" (also {', '.join(others)})" * bool(others)
        plan.add_row(Text(run.key, no_wrap=True), Text(f"{run.kind}{', finished' * finished}: {what}"), *numbers)
    plan.caption = (
        f"a step: operations, 2 for each multiplication with its addition\n{len(runs)} runs, {unfinished} not finished"
    )
    if measure:
        plan.caption += (
            f"\ncost: the time of a step, with that of {next(iter(costs), 'the first run')} as 1: at most about "
            f"{hours:.1f} hours of training steps on {device}, one after the other"
        )
    return plan


def random_batch(
    model: AnyModelConfig, frames: Sequence[int], words: Sequence[int], owner: Tensor, device: torch.device | str
) -> Batch:
    """A batch of random numbers; on the meta device, of shapes alone.

    Args:
        model: what the batch is for.
        frames: the number of frames of each video.
        words: the number of words of each query.
        owner: `(q,)` the video of each query, in order.
        device: where it is.
    """
    videos, queries = len(frames), len(words)
    valid_frames, valid_words = (
        torch.arange(max(lengths)) < torch.tensor(lengths)[:, None] for lengths in (frames, words)
    )
    stream = model.stream
    stream_mask = None if stream is None else torch.ones(videos, stream.max_rows, dtype=torch.bool)
    with torch.device(device):  # but for the masks: the host counts what is valid first
        batch = Batch(
            stream=None if stream is None else torch.randn(videos, stream.max_rows, stream.dim),
            stream_mask=stream_mask,
            clips=torch.randn(videos, model.num_clips, model.video_dim),
            frames=torch.randn(*valid_frames.shape, model.video_dim),
            frame_mask=valid_frames,
            words=(torch.zeros if model.stored_words else torch.randn)(*valid_words.shape, model.query_dim),
            word_mask=valid_words,
            query_to_video=owner,
            video_ids=tuple(map(str, range(videos))),
            query_ids=tuple(map(str, range(queries))),
            captions=("",) * queries,
            moments=torch.tensor([0.0, 1.0, 2.0]).expand(queries, 3),
            teacher=torch.randn(queries, videos),
            teacher_frames=torch.randn(queries, max(frames)),
        )
    return batch.to(device)


def _longest(model: AnyModelConfig, videos: int, captions: int, device: torch.device | str) -> Batch:
    """A batch of videos and queries as long as the model reads."""
    owner = torch.arange(videos).repeat_interleave(captions)
    return random_batch(model, [model.max_frames] * videos, [model.max_words] * len(owner), owner, device)


@lru_cache
def _counts(model: AnyModelConfig, loss: LossConfig, videos: int, captions: int) -> tuple[int, int | str]:
    """Parameters, and operations of a step of some videos: counted once for runs of other seeds and rates.

    Operations are counted by shapes alone; if a part of the model reads values, what torch says of it.
    """
    with torch.random.fork_rng(devices=[]):
        retriever = build_retriever(model).to("meta")
    backbone: Any = retriever.backbone
    if hasattr(backbone, "set_attn_implementation"):
        backbone.set_attn_implementation("eager")  # others look at numbers of the mask
    objective = Objective(loss, model, retriever.registers).to("meta")
    batch = _longest(model, videos, captions, "meta")
    try:
        with FlopCounterMode(display=False) as counter:
            total = objective(retriever(batch), batch, negatives="hard")["total"]
            if total.requires_grad:  # a map in closed form has no weights to train
                total.backward()
        operations = counter.get_total_flops()
    except RuntimeError as error:
        operations = str(error)
    return sum(p.numel() for module in (retriever, objective) for p in module.parameters()), operations


def _seconds_of_a_step(config: Config, captions: int, device: torch.device | str) -> float:
    """The mean time of a few training steps on random numbers, videos and queries as long as the model reads."""
    from torch.utils.benchmark import Timer  # here, since it may print what it finds of CUDA

    model = config.model
    batch = _longest(model, config.train.batch_size, captions, device)
    retriever = build_retriever(model).to(device).train()
    objective = Objective(config.loss, model, retriever.registers).to(device).train()
    optimizer, _ = build_optimizer(config, retriever, objective, 2 * _TIMED, retriever.backbone)

    def step() -> None:
        optimizer.zero_grad()
        objective(retriever(batch), batch, negatives="hard")["total"].backward()
        optimizer.step()

    return Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads()).timeit(_TIMED).mean
