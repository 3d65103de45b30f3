"""What a retriever is made of."""

from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config.strict import STRICT
from prvr.errors import InputError

__all__ = ["BlockConfig", "Compat", "ModelConfig", "RegisterConfig"]


@dataclass(frozen=True, config=STRICT)
class BlockConfig:
    """One attention block: its geometry and the width of its Gaussian window (None = unlimited)."""

    space: Literal["euclidean", "lorentz"] = "euclidean"
    width: float | None = Field(default=None, gt=0)


@dataclass(frozen=True, config=STRICT)
class Compat:
    """Where the released code differs from the papers or from what is correct, which of the two is built.

    Defaults are correct. `docs/compat.md` has a row per field.
    """

    window: Literal["centred", "released"] = "centred"
    """released: the window's centres are i/L but its keys lie on linspace(0, 1, L); each row divided by its maximum."""
    padding: Literal["masked", "to_length", "to_batch"] = "masked"
    """to_length: frames are zero-padded to `max_frames`, padded rows enter the fusion's mean and the score's maximum
    (HLFormer, DreamPRVR). to_batch: the window's scale follows the longest video of the batch (GMMFormer)."""
    lorentz: Literal["correct", "released"] = "correct"
    """released: bias-free linear maps, heads with a sigmoid time, fixed curvature, head 0's time at logmap0."""
    entailment: Literal["correct", "released"] = "correct"
    """released: poolings without a mask, bounds kept by projecting the parameters, numeric clamps of 1e-8."""


@dataclass(frozen=True, config=STRICT)
class RegisterConfig:
    """Global register tokens that every block sees as extra keys and values (DreamPRVR)."""

    kind: Literal["none", "pooled", "condition", "diffusion"] = "none"
    num: int = Field(default=8, ge=1)
    steps: int = Field(default=10, ge=1)
    """Diffusion steps trained."""
    sampling_steps: int | None = Field(default=None, ge=1)
    """Steps taken when sampling; None = all of `steps`."""
    layers: int = Field(default=2, ge=1)
    start: Literal["prior_mean", "prior_sample", "gaussian"] = "prior_sample"
    noise: Literal["start", "gaussian"] = "gaussian"
    """start: the starting tensor is also the noise of the training targets and of every reverse step (released)."""
    loss_timesteps: Literal["all", "random"] = "all"
    time_table: Literal["sincos", "random"] = "sincos"
    float32_constants: bool = False
    """Round schedule constants and the prior's standard deviation to float32 (released)."""


@dataclass(frozen=True, config=STRICT)
class ModelConfig:
    """A retriever: input widths, the list of blocks, the fusion, the registers, the score's weights."""

    video_dim: int = Field(gt=0)
    query_dim: int = Field(gt=0)
    hidden: int = Field(default=384, gt=0)
    heads: int = Field(default=4, gt=0)
    num_clips: int = Field(default=32, gt=0)
    max_frames: int = Field(default=128, gt=0)
    max_words: int = Field(default=30, gt=0)
    branches: Literal["both", "clips", "frames"] = "both"
    layer: Literal["transformer", "attention"] = "transformer"
    """transformer: attention and feed-forward, post-norm; attention: output projection, no feed-forward (GMMFormer)."""
    depth: int = Field(default=1, ge=1)
    blocks: tuple[BlockConfig, ...] = (BlockConfig(),)
    fusion: Literal["mean", "concat_linear", "mean_guided"] = "mean_guided"
    fusion_temperature: float = Field(default=0.6, gt=0)
    window: Literal["multiply", "add"] = "add"
    """multiply: logits times the window (the papers); add: logits plus its logarithm."""
    lorentz_dim: int = Field(default=127, gt=0)
    padded_rows: Literal["compute", "drop"] = "compute"
    """drop: frames and words past an end are not computed. Faster, and the same result up to rounding, except with
    compat.padding='to_length': there the mean that guides the fusion then covers a video's own frames only."""
    frame_pooling: Literal["none", "attention"] = "none"
    """attention: frames are pooled to one vector per video (GMMFormer)."""
    input_dropout: float = Field(default=0.2, ge=0, lt=1)
    dropout: float = Field(default=0.2, ge=0, lt=1)
    registers: RegisterConfig = RegisterConfig()
    clip_weight: float = Field(default=0.5, ge=0)
    frame_weight: float = Field(default=0.5, ge=0)
    compat: Compat = Compat()

    @model_validator(mode="after")
    def _consistent(self) -> "ModelConfig":
        if self.hidden % self.heads:
            raise InputError(f"hidden={self.hidden} must be a multiple of heads={self.heads}")
        if not self.blocks:
            raise InputError("blocks is empty: list at least one, for example [{space: euclidean}]")
        spaces = {block.space for block in self.blocks}
        if "lorentz" in spaces:
            if (self.lorentz_dim + 1) % self.heads:
                raise InputError(
                    f"lorentz_dim={self.lorentz_dim}: lorentz_dim + 1 must be a multiple of heads={self.heads}"
                )
            if self.layer != "transformer":
                raise InputError("Lorentz blocks need layer='transformer'")
            if self.compat.lorentz == "released" and self.window != "multiply":
                raise InputError("compat.lorentz='released' needs window='multiply'")
        if self.registers.kind != "none" and self.layer != "transformer":
            raise InputError("registers need layer='transformer'")
        if self.registers.kind != "none" and self.branches == "frames":
            raise InputError("registers are generated from the clips: branches must be 'both' or 'clips'")
        if self.depth > 1 and self.registers.kind != "none":
            raise InputError("registers need depth=1")
        if self.depth > 1 and self.fusion != "mean":
            raise InputError(f"depth={self.depth} is only defined for fusion='mean', got {self.fusion!r}")
        if self.padded_rows == "drop" and self.compat.padding == "to_batch":
            raise InputError(
                "padded_rows='drop' does not go with compat.padding='to_batch', whose windows follow the padding: "
                "keep padded_rows='compute', or set compat.padding='masked'"
            )
        if self.frame_pooling == "attention" and self.branches == "clips":
            raise InputError("frame_pooling='attention' needs the frame branch: branches='both' or 'frames'")
        return self
