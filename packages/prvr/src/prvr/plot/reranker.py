"""What a re-ranker does, step by step: it orders candidates from noise (DiffusionRet, figures 5 and A), and its
text-frame attention chooses frames (figure B).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation import ranked_rows
from prvr.plot.drawing import PlotInput, number_of
from prvr.plot.figures import RIGHT, WRONG, brief, evenly, new_figure
from prvr.plot.registry import AttentionSettings, TrajectorySettings
from prvr.stages import CandidateReranker, ScoreMatrix, best_columns, reranker_inputs
from prvr.stages.diffusion.inputs import RerankerInputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Trajectory:
    """One query and what is generated for its candidates.

    Args:
        values: `(s + 1, n)` x_K, then x after each of s steps, the last of them x_0.
        levels: `(s + 1)` noise levels k of these, from K down to 0.
        right: `(n,)` which candidates are right.
        candidates: names of the n candidates, the retriever's first choice first.
        query: the text of the query, or the name of the video, to which the candidates belong.
    """

    values: Float[np.ndarray, "s n"]
    levels: tuple[int, ...]
    right: Bool[np.ndarray, " n"]
    candidates: tuple[str, ...]
    query: str

    def __post_init__(self) -> None:
        rows, columns = self.values.shape
        if len(self.levels) != rows or len(self.right) != columns or len(self.candidates) != columns or rows < 2:
            raise InputError(
                f"values {self.values.shape}: expected one row for each of {len(self.levels)} levels, at least 2, and "
                f"one column for each of {len(self.candidates)} candidates ({len(self.right)} marks)"
            )


@torch.no_grad()
def trajectory_of(
    reranker: CandidateReranker,
    scores: ScoreMatrix,
    split: PackedSplit,
    inputs: RerankerInputs,
    row: int,
    *,
    top_k: int | None = None,
    num_steps: int | None = None,
    seed: int = 0,
    before: Float[Tensor, "1 n"] | None = None,
) -> Trajectory:
    """What a re-ranker generates for one row, from the noise that `CandidateReranker.rerank` starts from.

    Args:
        reranker: a re-ranker with a diffusion, of either direction.
        scores: scores of the retriever that it was trained over, with what is relevant.
        split: a packed split.
        inputs: embeddings of the split.
        row: number of the query (direction "t2v") or video ("v2t").
        top_k: candidates; default: as many as are re-ranked, or the whole gallery where that is smaller.
        num_steps: the steps of the sampler; default: those of the re-ranker.
        seed: the seed of the noise.
        before: scores of the row after the stages before this one, which choose the candidates; default: those of the
            retriever.

    Raises:
        ValueError: the re-ranker has no diffusion, or a number is out of range.
    """
    config, direction = reranker.config, reranker.direction
    if config.process != "diffusion":
        raise InputError(f"process={config.process!r}: the control takes one step without noise, it has no trajectory")
    asking, gallery = scores.shape(direction)
    if not 0 <= row < asking:
        raise InputError(f"row {row}: expected 0 to {asking - 1}, the rows of direction {direction!r}")
    top_k = min(config.candidates, gallery) if top_k is None else top_k
    rows = slice(row, row + 1)
    chosen = best_columns(scores.rows(direction, rows) if before is None else before, top_k)
    numbers = torch.Generator("cpu").manual_seed(seed)
    initial = torch.randn(1, top_k, generator=numbers)
    if direction == "t2v":
        given = (inputs.text[rows], inputs.frames[chosen[0]][None], inputs.mask[chosen[0]][None])
        names, query = split.video_ids, split.captions[row]
    else:
        given = (inputs.text[chosen[0]][None], inputs.frames[rows], inputs.mask[rows])
        names, query = split.captions, split.video_ids[row]
    chain = reranker.sample(*given, initial=initial.to(inputs.text), num_steps=num_steps, return_chain=True)
    values = torch.cat([initial, chain[:, 0].cpu().float()])
    return Trajectory(
        values=values.numpy(),
        levels=tuple(round(config.steps * (1 - step / len(chain))) for step in range(len(chain) + 1)),
        right=scores.positives(direction, rows)[0, chosen[0]].cpu().numpy(),
        candidates=tuple(names[i] for i in chosen[0].tolist()),
        query=query,
    )


def trajectory_figure(trajectory: Trajectory, *, panels: int = 6) -> "Figure":
    """Bars of x_k over the candidates at some levels, and below them the place of the right candidate at each level.

    The dashed line is its place before: candidates stand in the order of their scores.

    Args:
        trajectory: the trajectory of one query.
        panels: how many levels have bars, from 2; first and last are always among them.

    Raises:
        ValueError: fewer than two panels.
    """
    if panels < 2:
        raise InputError(f"panels={panels}: expected at least 2, the first and the last level")
    steps = evenly(len(trajectory.levels), panels)
    figure = new_figure(2.1 * len(steps), 4.2)
    grid = figure.add_gridspec(2, len(steps), height_ratios=(3, 2))
    colours = [RIGHT if right else WRONG for right in trajectory.right]
    for place, step in enumerate(steps):
        axes = figure.add_subplot(grid[0, place])
        axes.bar(range(1, len(colours) + 1), trajectory.values[step], color=colours, width=0.9)
        axes.set_title(f"$x_{{{trajectory.levels[step]}}}$")
        axes.set_xlabel("candidate")
        axes.axhline(0, color="black", linewidth=0.5)
        axes.tick_params(labelsize="small")
    axes = figure.add_subplot(grid[1, :])
    axes.plot(trajectory.levels, _places(trajectory), color=RIGHT, marker=".")
    axes.set_xlim(trajectory.levels[0], 0)
    axes.set_ylim(len(colours) + 0.5, 0.5)
    axes.set(xlabel="noise level k", ylabel="place of the best\nright candidate")
    axes.grid(alpha=0.3)
    told = f"none of these {len(colours)} candidates is right"
    if trajectory.right.any():
        before, after = int(trajectory.right.argmax()) + 1, int(_places(trajectory)[-1])
        told = f"the best right candidate: place {before} by the scores, place {after} by what is generated"
        axes.axhline(before, color="0.35", linestyle="--", linewidth=1)
    figure.suptitle(f"{brief(trajectory.query, 100)}\n{told}", fontsize="medium")
    return figure


def draw_trajectory(given: PlotInput, settings: TrajectorySettings) -> "Figure":
    """What the re-ranker of a system generates for one query of a split."""
    stage, before = given.diffusion()
    with given.encoded() as (packed, encoded):
        row = number_of(settings.query, packed.query_ids, "query")
        reranker = stage.rerankers["t2v"].to(encoded.text.device)
        ((_, scores),) = ranked_rows(before, encoded, "t2v", only=[row])
        found = trajectory_of(
            reranker,
            ScoreMatrix(before.first, encoded, packed.relevant),
            packed,
            reranker_inputs(encoded, reranker.config),
            row,
            top_k=settings.candidates or min(stage.top_k, len(packed)),
            num_steps=settings.steps or stage.settings.num_steps,
            seed=stage.settings.seed if settings.seed is None else settings.seed,
            before=scores,
        )
    return trajectory_figure(found, panels=settings.panels)


def _places(trajectory: Trajectory) -> Float[np.ndarray, " s"]:
    """The place of the best right candidate at each level, 1 = first; NaN where none of the candidates is right."""
    if not trajectory.right.any():
        return np.full(len(trajectory.levels), np.nan)
    best = trajectory.values[:, trajectory.right].max(1, keepdims=True)
    return 1.0 + (trajectory.values[:, ~trajectory.right] >= best).sum(1)


@dataclass(frozen=True)
class AttentionMap:
    """How much of each frame of a video each text takes.

    Args:
        weights: `(m, f)` not negative; a row has sum 1.
        texts: the m texts.
        video: its name.
        duration: length of the video in seconds; None where it is not known, or the columns are not frames in order.
        moments: start and end of each text's moment in seconds; None where they are not known.
    """

    weights: Float[np.ndarray, "m f"]
    texts: tuple[str, ...]
    video: str
    duration: float | None = None
    moments: tuple[tuple[float, float] | None, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.weights)
        if len(self.texts) != rows or len(self.moments) not in (0, rows):
            raise InputError(
                f"weights {self.weights.shape}: expected one row for each of {len(self.texts)} texts, and no moment or "
                f"one for each ({len(self.moments)} given)"
            )


@torch.no_grad()
def attention_of(
    reranker: CandidateReranker,
    inputs: RerankerInputs,
    split: PackedSplit,
    video: int,
    queries: Sequence[int] | None = None,
) -> AttentionMap:
    """The attention of some texts over the frames of a video.

    Args:
        reranker: the re-ranker whose text-frame attention is computed.
        inputs: embeddings of the split.
        split: the split, which has the texts and their moments.
        video: its number.
        queries: numbers of the texts; default: those written for the video.

    Raises:
        IndexError: there is no such video or query.
    """
    asked = split.queries_of(video).tolist() if queries is None else list(queries)
    frames, mask = inputs.frames[video][None], inputs.mask[video][None]
    weights = reranker.pool.weights(inputs.text[asked][None], frames, mask)[0]  # pyright: ignore[reportCallIssue]
    own = split.query_to_video
    times = [
        (float(split.moments.start[q]), float(split.moments.end[q]))
        if own[q] == video and np.isfinite(split.moments.start[q])
        else None
        for q in asked
    ]
    duration = float(split.durations[video])
    ordered = reranker.config.tokens != "both"  # else clips come first, then frames
    return AttentionMap(
        weights=weights[:, mask[0]].cpu().numpy(),
        texts=tuple(split.captions[q] for q in asked),
        video=split.video_ids[video],
        duration=duration if ordered and np.isfinite(duration) else None,
        moments=tuple(times) if ordered and np.isfinite(duration) else (),
    )


def attention_figure(attention: AttentionMap) -> "Figure":
    """A row for each text, dark where it takes much of a frame; the moment that it speaks of is framed in green.

    Args:
        attention: the attention of some texts over one video.
    """
    from matplotlib.patches import Rectangle

    rows, frames = attention.weights.shape
    length = attention.duration or frames
    figure = new_figure(10.0, 1.3 + 0.45 * rows)
    axes = figure.subplots()
    image = axes.imshow(
        attention.weights, aspect="auto", cmap="Blues", vmin=0, extent=(0, length, rows - 0.5, -0.5),
        interpolation="nearest",
    )  # fmt: skip
    for row, moment in enumerate(attention.moments):
        if moment is not None:
            start, end = moment
            axes.add_patch(Rectangle((start, row - 0.45), end - start, 0.9, fill=False, edgecolor=RIGHT, linewidth=2))
    axes.set_yticks(range(rows), [brief(text, 60) for text in attention.texts], fontsize="small")
    axes.set_xlabel("frame" if attention.duration is None else "seconds")
    framed = "; framed: the moment it was written for" if any(attention.moments) else ""
    axes.set_title(f"{brief(attention.video)}: how much of each frame a text takes{framed}", fontsize="medium")
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def draw_attention(given: PlotInput, settings: AttentionSettings) -> "Figure":
    """The text-frame attention of a system's re-ranker over one video of a split."""
    reranker = given.diffusion()[0].rerankers["t2v"]
    with given.encoded() as (packed, encoded):
        inputs = reranker_inputs(encoded, reranker.config)
        video = number_of(settings.video, packed.video_ids, "video")
        return attention_figure(attention_of(reranker.to(inputs.text.device), inputs, packed, video))
