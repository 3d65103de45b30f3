"""DL-DKD (ICCV 2023): two branches of frames.

The inheritance branch learns from a teacher, `train.teacher`. Presets: `dl-dkd-*`.
"""

from collections.abc import Iterator

from pydantic import Field

from prvr.config import CLIPS, FRAME_QUERIES, POOLINGS, ModelConfig
from prvr.config.losses import LossSettings, register_loss
from prvr.config.model import needs_both_branches
from prvr.config.strict import record


def _frames(model: ModelConfig) -> Iterator[str]:
    if model.registers.kind != "none":
        yield f"clip_construction='frames' needs registers.kind='none', got {model.registers.kind!r}"


CLIPS.register(
    "frames",
    "prvr.published.dl_dkd.parts:FrameRows",
    "A linear map of each frame, encoded a second time (DL-DKD).",
    check=_frames,
)
FRAME_QUERIES.register(
    "second",
    "prvr.published.dl_dkd.parts:SecondQuery",
    "The vector of a second encoder (DL-DKD).",
    check=needs_both_branches,
)
POOLINGS.register("linear", "prvr.published.dl_dkd.parts:MappedFrames", "A linear map of each frame (DL-DKD).")


@register_loss(
    "frame_distillation",
    "prvr.published.dl_dkd.parts:FrameDistillation",
    "Cosines with frames as a teacher's (DL-DKD).",
    "frame_rows",
)
@record
class FrameDistillationSettings(LossSettings):
    """Draws cosines of queries with frames, in the clip branch, to those in a joint space, see `train.teacher`."""

    temperature: float = Field(default=0.2, ge=1e-3, le=1e6)
    """tau of both softmaxes over the frames of a video."""
    decay: float = Field(default=1.0, gt=0, le=1)
    """In epoch e, from 0, the weight is multiplied by decay^e."""
