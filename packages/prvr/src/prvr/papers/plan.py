"""What the runs of tables would cost: parameters, operations, steps, and hours at a step that is timed here."""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from rich.table import Table as RichTable
from rich.text import Text
from torch.utils.benchmark import Timer

from prvr.config import AnyModelConfig, Config, DataConfig, LossConfig, TrainConfig
from prvr.errors import PrvrError
from prvr.evaluation.tables import new_table
from prvr.models import build_retriever
from prvr.objective import Objective
from prvr.papers.runs import Cell, Run
from prvr.papers.study import Study
from prvr.papers.table import DataSet
from prvr.training import build_optimizer
from prvr.training.cost import PartCost, describe
from prvr.training.splits import run_corpus
from prvr.types import Batch

_TIMED = 3  # steps, after two that warm up


class Cost(NamedTuple):
    """What a run that trains a retriever costs at most: all epochs, every video as long as the model reads.

    Args:
        total: parameters of the retriever and its losses, and operations of a step, 2 for each multiplication with its
            addition.
        steps: of all epochs; None where the size of the training split is not known.
        seconds: of a step, as timed on a device; None where none was timed.
        hours: of all steps; evaluation is not counted.
    """

    total: PartCost
    steps: int | None
    seconds: float | None
    hours: float | None


def cost_of(run: Run, data: DataSet, device: torch.device | str | None = None) -> Cost:
    """What training a run costs.

    Args:
        run: one of kind "train".
        data: its data set, which knows the published sizes.
        device: times a few steps of random numbers there; None = times nothing.
    """
    videos, queries = _sizes(run, data)
    captions = max(1, round(queries / videos)) if videos and queries else 5
    train, read = run.config.train, run.config.data.captions_per_video
    total = _operations(run.config.model, run.config.loss, train.batch_size, min(captions, read or captions))
    steps = None if videos is None else train.epochs * math.ceil(videos / train.batch_size)
    seconds = None if device is None else _seconds_of_a_step(run, captions, torch.device(device))
    return Cost(total, steps, seconds, None if seconds is None or steps is None else seconds * steps / 3600)


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
        numbers = [""] * (5 if measure else 3)
        if run.kind == "train" and users:
            if run.arm not in costs:  # seeds cost the same
                costs[run.arm] = cost_of(run, users[0].data, device if measure else None)
            cost, base = costs[run.arm], next(iter(costs.values()))
            steps = "?" if cost.steps is None else f"{cost.steps:,}"
            numbers = [f"{cost.total.parameters / 1e6:.2f} M", f"{cost.total.step / 1e12:.3g} T", steps]
            if measure:
                ratio = (cost.seconds or 0) / (base.seconds or 1)
                numbers += ["?" if cost.hours is None else f"{cost.hours:.1f}", f"{ratio:.2f}"]
        finished = study is not None and study.exists and study.result(run) is not None
        if not finished:
            unfinished += 1
            hours += costs[run.arm].hours or 0 if run.arm in costs else 0
        label = Text(f"{run.kind}{', finished' * finished}: {_label(users)}")
        plan.add_row(Text(run.key, no_wrap=True), label, *numbers)
    plan.caption = (
        f"a step: operations, 2 for each multiplication with its addition\n{len(runs)} runs, {unfinished} not finished"
    )
    if measure:
        plan.caption += (
            f"\ncost: the time of a step, with that of {next(iter(costs), 'the first run')} as 1: at most about "
            f"{hours:.1f} hours of training steps on {device}, one after the other"
        )
    return plan


def _label(cells: Sequence[Cell]) -> str:
    """What a run is for, in one line."""
    if not cells:
        return "other rows are built on it"
    others = sorted({cell.table.name for cell in cells} - {cells[0].table.name})
    return cells[0].what + (f" (also {', '.join(others)})" if others else "")


def _sizes(run: Run, data: DataSet) -> tuple[int | None, int | None]:
    """Videos and queries of the training split: of the corpus, where it is at hand, else as published."""
    if run.config.data.root is not None:
        with suppress(PrvrError):
            split = run_corpus(run.config).split("train")
            return len(split.video_ids), len(split.captions)
    return data.videos, data.queries


@lru_cache
def _operations(model: AnyModelConfig, loss: LossConfig, videos: int, captions: int) -> PartCost:
    """What a step of some videos costs, each with some captions: counted once for runs of other seeds and rates."""
    teacher = "any" if loss.taught else None
    train, data = TrainConfig(batch_size=videos, teacher=teacher), DataConfig(captions_per_video=None)
    return PartCost.total(describe(Config("one step", model, loss, train=train, data=data), captions=captions))


def _seconds_of_a_step(run: Run, captions: int, device: torch.device) -> float:
    """The mean time of a few training steps on random numbers, videos and queries as long as the model reads."""
    model, videos = run.config.model, run.config.train.batch_size
    queries, noise = videos * captions, partial(torch.randn, device=device)
    valid = partial(torch.ones, dtype=torch.bool, device=device)
    batch = Batch(
        clips=noise(videos, model.num_clips, model.video_dim),
        frames=noise(videos, model.max_frames, model.video_dim),
        frame_mask=valid(videos, model.max_frames),
        words=noise(queries, model.max_words, model.query_dim),
        word_mask=valid(queries, model.max_words),
        query_to_video=torch.arange(videos, device=device).repeat_interleave(captions),
        teacher=noise(queries, videos),
        teacher_frames=noise(queries, model.max_frames),
    )
    retriever = build_retriever(model).to(device).train()
    objective = Objective(run.config.loss, model, retriever.registers).to(device).train()
    optimizer, _ = build_optimizer(run.config, retriever, objective, 2 * _TIMED, retriever.backbone)

    def step() -> None:
        optimizer.zero_grad()
        objective(retriever(batch), batch, negatives="hard")["total"].backward()
        optimizer.step()

    return Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads()).timeit(_TIMED).mean
