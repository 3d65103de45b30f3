"""The weights of the losses and what they depend on."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from prvr.config.strict import MANY, STRICT

__all__ = ["LossConfig"]


@dataclass(frozen=True, config=STRICT)
class LossConfig:
    """Weights of the loss terms (0 = off, the term is not computed) and what they depend on."""

    triplet: float = Field(default=1.0, ge=0, le=1e6)
    margin: float = Field(default=0.2, ge=0, le=100)
    hard_pool: int = Field(default=20, ge=1, le=MANY)
    """Hard negatives of a query are drawn from this many highest-scored wrong videos."""
    info_nce_clips: float = Field(default=0.02, ge=0, le=1e6)
    info_nce_frames: float = Field(default=0.04, ge=0, le=1e6)
    diversity: float = Field(default=3e-3, ge=0, le=1e6)
    diversity_margin: float = Field(default=0.2, ge=-100, le=100)
    """delta of the papers."""
    diversity_scale: float = Field(default=32.0, ge=0, le=1e4)
    """omega of the papers."""
    diversity_form: Literal["focal", "log_sum"] = "focal"
    """focal: (1 + cos) log(1 + exp(.)) over pairs; log_sum: log(1 + sum exp(.)) over queries (GMMFormer)."""
    diversity_power: float = Field(default=1.0, ge=0, le=100)
    """Exponent of the focal factor."""
    query_structure: float = Field(default=0.0, ge=0, le=1e6)
    query_structure_temperature: float = Field(default=0.08, ge=1e-6, le=1e6)
    entailment: float = Field(default=0.0, ge=0, le=1e6)
    entailment_curvature: float = Field(default=1.0, ge=1e-4, le=1e4)
    """Starting value of c; learned within a factor of 10 either way."""
    entailment_min_radius: float = Field(default=0.1, ge=1e-6, le=1e3)
    prior_kl: float = Field(default=0.0, ge=0, le=1e6)
    diffusion: float = Field(default=0.0, ge=0, le=1e6)
    contrastive: float = Field(default=0.0, ge=0, le=1e6)
    """Symmetric contrastive loss of the total scores (DiffusionRet eq. 11)."""
    contrastive_temperature: float = Field(default=0.01, ge=1e-6, le=1e6)
    """tau of eq. 11, or where it starts."""
    contrastive_learned: bool = False
    """True: the temperature is learned, in the objective, as the released code does with CLIP's logit scale."""
    perturbation: float = Field(default=0.1, ge=0, le=100)
    """gamma of the textual perturbation sampler (TPS), the target of the diffusion term."""
