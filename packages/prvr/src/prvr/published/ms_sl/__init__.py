"""MS-SL (ACM MM 2022): clip proposals, and frames read by key clips.

Presets: `ms-sl-*`.
"""

from collections.abc import Iterator
from typing import Literal

from prvr.config import CLIPS, POOLINGS, ModelConfig
from prvr.config.losses import LossSettings, register_loss
from prvr.config.strict import Count, Scale, record


def _key_clip(model: ModelConfig) -> Iterator[str]:
    if (model.branches, model.frame_query) != ("both", "pooled"):
        yield (
            "frame_pooling='key_clip' needs branches='both' and frame_query='pooled', got "
            f"{model.branches!r} and {model.frame_query!r}"
        )


CLIPS.register(
    "proposals",
    "prvr.published.ms_sl.clips:Proposals",
    "Means of all runs of neighbouring clips, of every length (MS-SL).",
)
POOLINGS.register(
    "key_clip",
    "prvr.published.ms_sl.clips:KeyClipFrames",
    "What the clip that fits a query best reads of the frames (MS-SL).",
    check=_key_clip,
)


@record
class KeyClipSettings(LossSettings):
    """Compares each query with the frames that its key clip reads of its video, and with what those of others read."""

    siblings: Literal["left_out", "negatives"] = "left_out"
    """What other queries of the same video read: negatives, as released (MS-SL), or left out of the loss."""


@register_loss(
    "key_clip_triplet",
    "prvr.published.ms_sl.clips:KeyClipTriplet",
    "Margin ranking by what key clips read (MS-SL).",
    "key_clip",
)
@record
class KeyClipTripletSettings(KeyClipSettings):
    """Margin ranking: what the key clip of a query reads above what another reads, and the query above another."""

    margin: Scale = 0.2
    """How much higher the right pair has to score."""
    hard_pool: Count = 20
    """Hard negatives are drawn from this many highest-scored ones."""


register_loss(
    "key_clip_nce", "prvr.published.ms_sl.clips:KeyClipNCE", "InfoNCE of what key clips read (MS-SL).", "key_clip"
)(KeyClipSettings)
