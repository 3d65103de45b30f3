"""What a re-ranker does, step by step: it orders candidates from noise (DiffusionRet, figures 5 and A), and its
text-frame attention chooses frames (figure B).
"""

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
from prvr.plot.plots import AttentionSettings, TrajectorySettings
from prvr.stages import CandidateReranker, EncodedSplit, ScoreMatrix, best_columns, reranker_inputs

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
        query: the text of the query.
    """

    values: Float[np.ndarray, "s n"]
    levels: tuple[int, ...]
    right: Bool[np.ndarray, " n"]
    candidates: tuple[str, ...]
    query: str


@torch.no_grad()
def trajectory_of(
    reranker: CandidateReranker,
    scores: ScoreMatrix,
    split: PackedSplit,
    query: int,
    *,
    top_k: int | None = None,
    num_steps: int | None = None,
    seed: int = 0,
    before: Float[Tensor, "1 n"] | None = None,
) -> Trajectory:
    """What a re-ranker generates for one query, from the noise that `CandidateReranker.rerank` starts from.

    Args:
        reranker: a re-ranker of direction "t2v" with a diffusion.
        scores: scores of the retriever that it was trained over, with what is relevant.
        split: a packed split.
        query: its number.
        top_k: candidates; default: as many as are re-ranked, or the whole gallery where that is smaller.
        num_steps: the steps of the sampler; default: those of the re-ranker.
        seed: the seed of the noise.
        before: scores of the query after the stages before this one, which choose the candidates; default: those of the
            retriever.

    Raises:
        ValueError: the re-ranker has no diffusion, or there are not so many candidates.
    """
    config, rows = reranker.config, slice(query, query + 1)
    if config.process != "diffusion":
        raise InputError(f"process={config.process!r}: the control takes one step without noise, it has no trajectory")
    top_k = min(config.candidates, len(split)) if top_k is None else top_k
    (chosen,) = best_columns(scores.rows("t2v", rows) if before is None else before, top_k)
    inputs = reranker_inputs(scores.encoded, config)
    initial = torch.randn(1, top_k, generator=torch.Generator("cpu").manual_seed(seed))
    chain = reranker.sample(
        inputs.text[rows],
        inputs.frames[chosen][None],
        inputs.mask[chosen][None],
        initial=initial.to(inputs.text),
        num_steps=num_steps,
        return_chain=True,
    )
    return Trajectory(
        values=torch.cat([initial, chain[:, 0].cpu().float()]).numpy(),
        levels=tuple(round(config.steps * (1 - step / len(chain))) for step in range(len(chain) + 1)),
        right=scores.positives("t2v", rows)[0, chosen].cpu().numpy(),
        candidates=tuple(split.video_ids[i] for i in chosen.tolist()),
        query=split.captions[query],
    )


def trajectory_figure(trajectory: Trajectory, *, panels: int = 6) -> "Figure":
    """Bars of x_k over the candidates, in the order of their scores, at some levels of noise; right ones are green.

    Args:
        trajectory: the trajectory of one query.
        panels: how many levels have bars, from 2; first and last are always among them.
    """
    steps, right = evenly(len(trajectory.levels), panels), trajectory.right
    figure = new_figure(2.1 * len(steps), 2.8)
    for axes, step in zip(figure.subplots(1, len(steps)), steps, strict=True):
        colours = [RIGHT if value else WRONG for value in right]
        axes.bar(range(1, len(right) + 1), trajectory.values[step], color=colours, width=0.9)
        axes.set(title=f"$x_{{{trajectory.levels[step]}}}$", xlabel="candidate")
        axes.axhline(0, color="black", linewidth=0.5)
        axes.tick_params(labelsize="small")
    result = f"none of these {len(right)} candidates is right"
    if right.any():
        before, last = int(right.argmax()) + 1, trajectory.values[-1]
        after = 1 + int((last[~right] >= last[right].max()).sum())
        result = f"the best right candidate: place {before} by the scores, place {after} by what is generated"
    figure.suptitle(f"{brief(trajectory.query, 100)}\n{result}", fontsize="medium")
    return figure


def draw_trajectory(inputs: PlotInput, settings: TrajectorySettings) -> "Figure":
    """What the re-ranker of a system generates for one query of a split."""
    stage, before = inputs.diffusion()
    with inputs.encoded() as (packed, encoded):
        row = number_of(settings.query, packed.query_ids, "query")
        reranker = stage.rerankers["t2v"].to(inputs.device)
        ((_, scores),) = ranked_rows(before, encoded, "t2v", only=[row])
        trajectory = trajectory_of(
            reranker,
            ScoreMatrix(before.first, encoded, packed.relevant),
            packed,
            row,
            top_k=settings.candidates or min(stage.top_k or len(packed), len(packed)),
            num_steps=settings.steps or stage.settings.num_steps,
            seed=stage.settings.seed if settings.seed is None else settings.seed,
            before=scores,
        )
    return trajectory_figure(trajectory, panels=settings.panels)


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


@torch.no_grad()
def attention_of(reranker: CandidateReranker, encoded: EncodedSplit, split: PackedSplit, video: int) -> AttentionMap:
    """The attention of the texts that were written for a video over its frames.

    Args:
        reranker: the re-ranker whose text-frame attention is computed.
        encoded: what `prvr.evaluation.encode_split` gave for the split.
        split: the split, which has the texts and their moments.
        video: its number.
    """
    inputs, queries = reranker_inputs(encoded, reranker.config), split.queries_of(video).tolist()
    frames, mask = inputs.frames[video][None], inputs.mask[video][None]
    weights = reranker.pool.weights(inputs.text[queries][None], frames, mask)[0]  # pyright: ignore[reportCallIssue]
    times = [(float(split.moments.start[query]), float(split.moments.end[query])) for query in queries]
    duration = float(split.durations[video])
    timed = reranker.config.tokens != "both" and np.isfinite(duration)  # both: clips come first, then frames
    return AttentionMap(
        weights=weights[:, mask[0]].cpu().numpy(),
        texts=tuple(split.captions[query] for query in queries),
        video=split.video_ids[video],
        duration=duration if timed else None,
        moments=tuple(moment if np.isfinite(moment[0]) else None for moment in times) if timed else (),
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


def draw_attention(inputs: PlotInput, settings: AttentionSettings) -> "Figure":
    """The text-frame attention of a system's re-ranker over one video of a split."""
    reranker = inputs.diffusion()[0].rerankers["t2v"]
    with inputs.encoded() as (packed, encoded):
        video = number_of(settings.video, packed.video_ids, "video")
        return attention_figure(attention_of(reranker.to(inputs.device), encoded, packed, video))
