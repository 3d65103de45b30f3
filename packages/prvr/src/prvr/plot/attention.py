"""What a text takes of the frames of a video: the re-ranker's text-frame attention (DiffusionRet, figure B)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from prvr.errors import InputError
from prvr.plot.drawing import PlotInput, number_of
from prvr.plot.figures import RIGHT, brief, new_figure
from prvr.plot.registry import AttentionSettings
from prvr.stages import CandidateReranker, reranker_inputs
from prvr.stages.diffusion.inputs import RerankerInputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prvr.data import PackedSplit


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
    split: "PackedSplit",
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
