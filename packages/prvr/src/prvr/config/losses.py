"""The weights of the losses and what they depend on."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from prvr.config.strict import STRICT

__all__ = ["LossConfig"]


@dataclass(frozen=True, config=STRICT)
class LossConfig:
    """Weights of the loss terms (0 = off, the term is not computed) and what they depend on."""

    triplet: float = Field(default=1.0, ge=0)
    margin: float = Field(default=0.2, ge=0)
    hard_pool: int = Field(default=20, ge=1)
    """Hard negatives of a query are drawn from this many highest-scored wrong videos."""
    info_nce_clips: float = Field(default=0.02, ge=0)
    info_nce_frames: float = Field(default=0.04, ge=0)
    diversity: float = Field(default=3e-3, ge=0)
    diversity_margin: float = 0.2
    """delta of the papers."""
    diversity_scale: float = 32.0
    """omega of the papers."""
    diversity_form: Literal["focal", "log_sum"] = "focal"
    """focal: (1 + cos) log(1 + exp(.)) over pairs; log_sum: log(1 + sum exp(.)) over queries (GMMFormer)."""
    diversity_power: float = 1.0
    """Exponent of the focal factor."""
    query_structure: float = Field(default=0.0, ge=0)
    query_structure_temperature: float = Field(default=0.08, gt=0)
    entailment: float = Field(default=0.0, ge=0)
    entailment_curvature: float = Field(default=1.0, gt=0)
    """Starting value of c; learned within a factor of 10 either way."""
    entailment_min_radius: float = Field(default=0.1, gt=0)
    prior_kl: float = Field(default=0.0, ge=0)
    diffusion: float = Field(default=0.0, ge=0)
    contrastive: float = Field(default=0.0, ge=0)
    """Symmetric contrastive loss of the total scores (DiffusionRet eq. 11)."""
    contrastive_temperature: float = Field(default=0.01, gt=0)
    """tau of eq. 11, or where it starts."""
    contrastive_learned: bool = False
    """True: the temperature is learned, in the objective, as the released code does with CLIP's logit scale."""
    perturbation: float = Field(default=0.1, ge=0)
    """gamma of the textual perturbation sampler (TPS), the target of the diffusion term."""
