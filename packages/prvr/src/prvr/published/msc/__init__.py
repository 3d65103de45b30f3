"""MSC-PRVR (NeurIPS 2025, arXiv 2510.27432): merged clips, relations of texts that stay, segments of both branches.

Presets: `msc-prvr-*`.
"""

from collections.abc import Iterator

from pydantic import Field
from pydantic.dataclasses import dataclass

from prvr.config import COMPAT, STRICT, ModelConfig
from prvr.config.losses import LossSettings, register_loss


def _stored(model: ModelConfig) -> Iterator[str]:
    if model.clip_construction != "merged" or model.start == "kernel":
        yield (
            "compat.merging='stored' needs clip_construction='merged' and start='drawn', got "
            f"{model.clip_construction!r} and {model.start!r}"
        )


COMPAT["merging"].register(
    "stored",
    "prvr.models.clips:unit_length",
    "Frames merge as they are stored; they and the clips are scaled to unit length afterwards (MSC-PRVR).",
    needs=("lengths",),
    check=_stored,
)
register_loss(
    "text_distances",
    "prvr.published.msc.text_geometry:TextDistances",
    "Distances of queries stay (MSC-PRVR).",
    "pooled",
    "last_words",
)(LossSettings)
register_loss(
    "text_angles",
    "prvr.published.msc.text_geometry:TextAngles",
    "Angles between queries stay (MSC-PRVR).",
    "pooled",
    "last_words",
)(LossSettings)


@register_loss(
    "alignment",
    "prvr.published.msc.alignment:Alignment",
    "Frames find their segment, segments their frames (MSC-PRVR).",
    "merged",
)
@dataclass(frozen=True, config=STRICT)
class AlignmentSettings(LossSettings):
    """Contrasts frames and segments of a video, which merged clips are, both ways (MSC-PRVR)."""

    similarity: float = Field(default=0.8, ge=-1, le=1)
    """Cosine above which two clips are linked; the more clips are linked, the fewer segments a video has."""
