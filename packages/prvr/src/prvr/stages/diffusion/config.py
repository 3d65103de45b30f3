"""What can be chosen of a re-ranker, as a frozen dataclass."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config import validated
from prvr.config.strict import MANY, STRICT, expect_size
from prvr.errors import InputError


@dataclass(frozen=True, config=STRICT)
class RerankerCompat:
    """Where DiffusionRet's released code differs from its paper or from what is correct. Defaults are correct."""

    pooling: Literal["masked", "released"] = "masked"
    """released: padded frames take part in the softmax of eq. 4 and are only then set to zero: a padded video is
    pooled with weights of sum below one."""
    decoder: Literal["paper", "released"] = "paper"
    """released: the attended embedding passes one more linear map, and the attention weights are added to the output
    (neither is in eq. 6)."""
    output: Literal["distribution", "released"] = "distribution"
    """distribution: the decoder's output goes through a softmax, so that the prediction is a distribution over the
    candidates, as x_0 is. released: it is x_0 as it stands, without bounds; the softmax is in the loss, and once more
    in the combined score."""


@dataclass(frozen=True, config=STRICT)
class RerankerConfig:
    """A `CandidateReranker`: its network, its diffusion, and how its answer is combined with the retriever's."""

    width: int = Field(gt=0, le=65_536)
    """Width d of the text and frame embeddings."""
    steps: int = Field(default=50, ge=1, le=10_000)
    """K, the number of diffusion steps trained."""
    sampling_steps: int | None = Field(default=None, ge=1, le=10_000)
    """Steps taken when sampling, at most `steps`; None = all of them."""
    spacing: Literal["trailing", "linspace", "leading"] = "trailing"
    """Which steps, if fewer than trained. trailing: evenly down from the noisiest, which is the one of a single step;
    linspace: evenly between noisiest and cleanest, but the cleanest if there is only one (released); leading: every
    (K / steps)-th from the cleanest, never the noisiest."""
    schedule: Literal["cosine", "linear"] = "cosine"
    beta_scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Factor of every beta; the result is capped at 0.999 (table 3f of the paper)."""
    sampler: Literal["ddim", "ddpm"] = "ddim"
    """ddim: nothing is random but the start; ddpm: each step adds noise."""
    process: Literal["diffusion", "one_step"] = "diffusion"
    """one_step: the control, the same network trained and asked once, at x = 0 and step 0, without any noise."""
    loss: Literal["kl", "mse"] = "kl"
    attention_temperature: float = Field(default=1.0, ge=1e-6, le=1e6)
    """tau' of eq. 4. Embeddings of unit length want less, such as 0.1: their products lie in [-1, 1]."""
    loss_temperature: float = Field(default=1.0, ge=1e-6, le=1e6)
    """What the decoder's output is multiplied by before its softmax (released: 100)."""
    negative: Literal[0, -1] = 0
    """x_0 of a wrong candidate. -1 needs `compat.output='released'`: a distribution has no negative values."""
    candidates: int = Field(default=32, ge=1, le=MANY)
    """How many of the highest-scored candidates are re-ranked; a smaller gallery is re-ranked whole."""
    weight: float = Field(default=1.0, ge=0, le=1e6)
    """What the generated probability counts beside the retriever's score."""
    combine: Literal["add", "alone"] = "add"
    """add: the score plus `weight` times the probability; alone: candidates go by the probability alone, ahead of all
    others."""
    tokens: Literal["frames", "clips", "both"] = "frames"
    """Which rows of the retriever's videos stand for frames; both: clips and frames, one after the other."""
    unit_length: bool = False
    """Text and rows are scaled to unit length first; `attention_temperature` then wants about 0.1."""
    score_temperature: float = Field(default=1.0, ge=1e-6, le=1e6)
    """With `compat.output='released'`: what x_0 is multiplied by before the softmax of the combined score."""
    trained_on: str | None = None
    """Name of the retriever whose embeddings it was trained on; see `CandidateReranker.expect_trained_on`."""
    compat: RerankerCompat = RerankerCompat()

    @model_validator(mode="after")
    def _consistent(self) -> "RerankerConfig":
        if self.sampling_steps is not None and self.sampling_steps > self.steps:
            raise InputError(
                f"sampling_steps={self.sampling_steps} is beyond steps={self.steps}, the trained ones: a step that was "
                "never trained has no meaning; take fewer, or train with more"
            )
        if self.negative and self.compat.output != "released":
            raise InputError(f"negative={self.negative} needs compat.output='released', or set negative=0")
        if self.process == "one_step" and self.sampling_steps not in (None, 1):
            raise InputError(f"sampling_steps={self.sampling_steps} needs process='diffusion', not 'one_step'")
        expect_size("re-ranker", 16 * self.width**2 + self.steps * self.width, "width")
        return self


def reranker_config_from_dict(values: Mapping[str, Any]) -> RerankerConfig:
    """A validated `RerankerConfig`, as `CandidateReranker.from_pretrained` reads it from config.json.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range; the message names each.
    """
    own = {key: value for key, value in values.items() if key != "direction"}  # stored beside it by the hub's mixin
    return validated(RerankerConfig, own, "re-ranker configuration")
