"""MSC-PRVR (NeurIPS 2025, arXiv 2510.27432): merged clips, relations of texts that stay, segments of both branches.

Presets: `msc-prvr-*`.
"""

from collections.abc import Iterator
from itertools import pairwise

from pydantic import Field

from prvr.config import CLIPS, COMPAT, ModelConfig
from prvr.config.losses import LossSettings, register_loss
from prvr.config.strict import record


def merge_stages(rows: int, clips: int) -> list[int]:
    """How many rows are left before and after each of three stages of about equal factors, multiples of four between.

    Examples:
        >>> merge_stages(128, 32)
        [128, 80, 52, 32]
    """
    between = (4 * round(rows * (clips / rows) ** (stage / 3) / 4) for stage in (1, 2))
    return [rows, *(max(clips, count) for count in between), clips]


def _merged(model: ModelConfig) -> Iterator[str]:
    stages = merge_stages(model.max_frames, model.num_clips)
    if model.num_clips % 2 or any(2 * b < a or a < b or a % 2 for a, b in pairwise(stages)):
        yield (
            f"clip_construction='merged' makes of max_frames={model.max_frames} rows num_clips={model.num_clips} "
            "in three stages, each by at most half: set both to even numbers, max_frames=4 * num_clips"
        )
    if model.registers.kind != "none" or any(block.space != "euclidean" for block in model.blocks):
        yield "clip_construction='merged' needs registers.kind='none' and blocks with space='euclidean'"


def _stored(model: ModelConfig) -> Iterator[str]:
    if model.clip_construction != "merged" or model.start == "kernel":
        yield (
            "compat.merging='stored' needs clip_construction='merged' and start='drawn', got "
            f"{model.clip_construction!r} and {model.start!r}"
        )


CLIPS.register(
    "merged",
    "prvr.published.msc.parts:MergedClips",
    "Neighbouring frames that are alike, merged (MSC-PRVR).",
    check=_merged,
)
COMPAT["merging"].register(
    "stored",
    "prvr.published.msc.parts:unit_length",
    "Frames merge as they are stored; they and the clips are scaled to unit length afterwards (MSC-PRVR).",
    needs=("lengths",),
    check=_stored,
)
register_loss(
    "text_distances",
    "prvr.published.msc.parts:TextDistances",
    "Distances of queries stay (MSC-PRVR).",
    "pooled",
    "last_words",
)(LossSettings)
register_loss(
    "text_angles",
    "prvr.published.msc.parts:TextAngles",
    "Angles between queries stay (MSC-PRVR).",
    "pooled",
    "last_words",
)(LossSettings)


@register_loss(
    "alignment",
    "prvr.published.msc.parts:Alignment",
    "Frames find their segment, segments their frames (MSC-PRVR).",
    "merged",
)
@record
class AlignmentSettings(LossSettings):
    """Contrasts frames and segments of a video, which merged clips are, both ways (MSC-PRVR)."""

    similarity: float = Field(default=0.8, ge=-1, le=1)
    """Cosine above which two clips are linked; the more clips are linked, the fewer segments a video has."""
