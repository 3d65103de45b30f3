"""The configuration of a re-ranker."""

from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config.strict import MANY, STRICT, expect_size
from prvr.errors import InputError


@dataclass(frozen=True, config=STRICT)
class RerankerCompat:
    """Where DiffusionRet's released code differs from its paper or from what is correct. Defaults are correct."""

    pooling: Literal["masked", "released"] = "masked"
    """released: padded frames take part in the softmax of eq. 4 and are set to zero afterwards, so that the weights of
    a padded video add up to less than one."""
    decoder: Literal["paper", "released"] = "paper"
    """released: the attended embedding passes one more linear map, and the attention weights are added to the output
    (neither is in eq. 6)."""
    output: Literal["distribution", "released"] = "distribution"
    """distribution: the prediction of x_0 is the softmax of the decoder's output, a distribution over the candidates as
    x_0 is. released: it is the decoder's output without bounds; the softmax is in the loss, and again in the combined
    score."""


@dataclass(frozen=True, config=STRICT)
class RerankerConfig:
    """A `CandidateReranker`: its network, its diffusion, and the combination with the retriever's score."""

    width: int = Field(gt=0, le=65_536)
    """Width d of the text and frame embeddings."""
    steps: int = Field(default=50, ge=1, le=10_000)
    """K, the number of trained diffusion steps."""
    sampling_steps: int | None = Field(default=None, ge=1, le=10_000)
    """The number of steps in sampling, at most `steps`; None for all."""
    spacing: Literal["trailing", "linspace", "leading"] = "trailing"
    """The steps that are taken, if fewer than trained. trailing: evenly spaced, starting at the noisiest; linspace
    (released): evenly spaced from the noisiest to the cleanest, a single step at the cleanest; leading: every
    (K / steps)-th, starting at the cleanest and without the noisiest."""
    schedule: Literal["cosine", "linear"] = "cosine"
    beta_scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """A factor of every beta; the product is capped at 0.999 (table 3f of the paper)."""
    sampler: Literal["ddim", "ddpm"] = "ddim"
    """ddim: only the start is random; ddpm: each step adds noise."""
    process: Literal["diffusion", "one_step"] = "diffusion"
    """one_step: the control, the same network called once, at x = 0 and step 0, in training too."""
    loss: Literal["kl", "mse"] = "kl"
    attention_temperature: float = Field(default=1.0, ge=1e-6, le=1e6)
    """tau' of eq. 4. Embeddings of unit length need a smaller one, about 0.1: their products lie in [-1, 1]."""
    loss_temperature: float = Field(default=1.0, ge=1e-6, le=1e6)
    """A factor of the decoder's output before its softmax (released: 100)."""
    negative: Literal[0, -1] = 0
    """x_0 of a wrong candidate. -1 needs `compat.output='released'`: a distribution has no negative values."""
    candidates: int = Field(default=32, ge=1, le=MANY)
    """The number of candidates; a smaller gallery is re-ranked as a whole."""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """The weight of the generated probability."""
    combine: Literal["add", "alone"] = "add"
    """add: the score plus `weight` times the probability; alone: candidates are ordered by the probability alone, ahead
    of all others."""
    tokens: Literal["frames", "clips", "both"] = "frames"
    """The rows of the retriever's videos that are used as frames; both: clips, then frames."""
    unit_length: bool = False
    """Scale text and rows to unit length first; then use an `attention_temperature` of about 0.1."""
    score_temperature: float = Field(default=1.0, ge=1e-6, le=1e6)
    """With `compat.output='released'`: a factor of x_0 before the softmax of the combined score."""
    trained_on: str | None = None
    """The fingerprint of the retriever whose embeddings it was trained on; see `prvr.stages.fingerprint`."""
    compat: RerankerCompat = RerankerCompat()

    @model_validator(mode="after")
    def _consistent(self) -> "RerankerConfig":
        if self.sampling_steps is not None and self.sampling_steps > self.steps:
            raise InputError(
                f"sampling_steps={self.sampling_steps} is larger than steps={self.steps}: only trained steps can be "
                "sampled; use fewer steps, or train with more"
            )
        if self.negative and self.compat.output != "released":
            raise InputError(f"negative={self.negative} needs compat.output='released', or set negative=0")
        if self.process == "one_step" and self.sampling_steps not in (None, 1):
            raise InputError(f"sampling_steps={self.sampling_steps} needs process='diffusion', not 'one_step'")
        expect_size("re-ranker", 16 * self.width**2 + self.steps * self.width, "width")
        return self
