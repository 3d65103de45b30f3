"""HLFormer (ICCV 2025, arXiv 2507.17402): Lorentz attention, mean-guided fusion, and entailment cones.

Presets: `hlformer-*`.
"""

from collections.abc import Iterator

from pydantic import Field

from prvr.config import BLOCKS, COMPAT, FUSIONS, ModelConfig
from prvr.config.losses import LossSettings, register_loss
from prvr.config.strict import record
from prvr.published.gmmformer import shared_positions


def _blocks(model: ModelConfig) -> Iterator[str]:
    if (model.lorentz_dim + 1) % model.heads or model.lorentz_dim + 1 < 2 * model.heads:
        yield (
            f"lorentz_dim={model.lorentz_dim}: lorentz_dim + 1 must be a multiple of heads={model.heads}, and at "
            f"least {2 * model.heads}, a time and a space coordinate for each"
        )
    if model.layer != "transformer":
        yield "Lorentz blocks need layer='transformer'"


def _lorentz(model: ModelConfig) -> Iterator[str]:
    if not any(block.space == "lorentz" for block in model.blocks):
        return
    for key in BLOCKS["lorentz"].needs[1:]:
        if getattr(model, key) != getattr(ModelConfig, key):
            yield f"{key}={getattr(model, key)!r} needs compat.lorentz='correct': the released blocks lack it"
    if model.window != "multiply":
        yield "compat.lorentz='released' needs window='multiply'"


def _to_length(model: ModelConfig) -> Iterator[str]:
    if model.clip_construction == "frames":
        yield "clip_construction='frames' needs compat.padding='masked' or 'to_batch', got 'to_length'"
    yield from shared_positions(model)


BLOCKS.register(
    "lorentz",
    "prvr.published.hlformer.lorentz_mixer:lorentz_mixer",
    "Lorentz attention (HLFormer eq. 11-16).",
    needs=("lorentz_dim", "lorentz_magnitude", "lorentz_activation", "lorentz_curvature", "lorentz_curvature_learned"),
    check=_blocks,
)
FUSIONS.register(
    "concat_linear",
    "prvr.published.hlformer.parts:ConcatFusion",
    "A linear map of all blocks (HLFormer, table 2).",
)
COMPAT["window"].register(
    "printed",
    "prvr.published.hlformer.parts:printed_windows",
    "HLFormer eq. 10 to the letter, on positions, where `width` is sigma, and with the factor 1 / 2 pi.",
)
COMPAT["lorentz"].register(
    "correct", "prvr.published.hlformer.lorentz_mixer:LorentzMixer", "Points, not coordinates, are mapped."
)
COMPAT["entailment"].register(
    "correct", "prvr.published.hlformer.parts:Entailment", "Masked poolings, bounds in the expression."
)
COMPAT["lorentz"].register(
    "released",
    "prvr.published.hlformer.released:ReleasedLorentzMixer",
    "Bias-free linear maps, heads with a sigmoid time, fixed curvature, head 0's time at logmap0 (HLFormer).",
    check=_lorentz,
)
COMPAT["entailment"].register(
    "released",
    "prvr.published.hlformer.released:ReleasedEntailment",
    "Poolings without a mask, bounds kept by projecting the parameters, numeric clamps of 1e-8 (HLFormer).",
)
COMPAT["padding"].register(
    "to_length",
    "prvr.published.gmmformer.released_padding:TO_LENGTH",
    "Frames are zero-padded to `max_frames`; padded rows enter the fusion's mean and the score's maximum (HLFormer).",
    needs=("rows",),
    check=_to_length,
)


@register_loss(
    "entailment",
    "prvr.published.hlformer.parts:entailment",
    "The cone of a video holds its queries (HLFormer).",
    "pooled",
)
@record
class EntailmentSettings(LossSettings):
    """The entailment cone of a video should hold its queries."""

    curvature: float = Field(default=1.0, ge=1e-4, le=1e4)
    """Initial value of c; learned within a factor of 10 either way."""
    min_radius: float = Field(default=0.1, ge=1e-6, le=1e3)
    """Points nearer to the origin than this have no cone."""
