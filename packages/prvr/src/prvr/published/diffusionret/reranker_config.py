"""The configuration of a re-ranker."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config.registry import Registry, named_parts, registered
from prvr.config.strict import MANY, STRICT
from prvr.errors import InputError

COMPAT: dict[str, Registry[Any]] = {name: Registry(f"compat.{name}") for name in ("pooling", "decoder", "output")}
"""Parts of which the released re-ranker has other ones, by the field of `RerankerCompat` that names them.

pooling: `(temperature)` makes a module as `TextFrameAttention` of `network`. decoder: `(width, steps)` makes a
`CandidateDenoiser`. output: `(config)` makes an `Output` of `process`."""


def _distribution(config: "RerankerConfig") -> Iterator[str]:
    if config.negative:
        yield f"negative={config.negative} needs compat.output='released', or set negative=0"


COMPAT["pooling"].register(
    "masked", "prvr.published.diffusionret.network:TextFrameAttention", "Padded frames have no weight (eq. 4)."
)
COMPAT["decoder"].register("paper", "prvr.published.diffusionret.network:CandidateDenoiser", "Eq. 6.")
COMPAT["output"].register(
    "distribution",
    "prvr.published.diffusionret.process:distribution",
    "The prediction of x_0 is the softmax of the decoder's output, a distribution over the candidates as x_0 is.",
    check=_distribution,
)
COMPAT["pooling"].register(
    "released",
    "prvr.published.diffusionret.released:ReleasedTextFrameAttention",
    "Padded frames take part in the softmax of eq. 4 and are then set to zero: weights add up to less than one.",
)
COMPAT["decoder"].register(
    "released",
    "prvr.published.diffusionret.released:released_denoiser",
    "One more linear map after the attention, and the attention weights added to the output: neither is in eq. 6.",
)
COMPAT["output"].register(
    "released",
    "prvr.published.diffusionret.released:released_scores",
    "The prediction of x_0 has no bounds; the softmax is in the loss, and again in the combined score.",
)


@dataclass(frozen=True, config=STRICT)
class RerankerCompat:
    """Choices between DiffusionRet's released code and its paper, where they differ.

    Defaults are correct. Each value is the name of a part in `COMPAT`.
    """

    pooling: Annotated[str, registered(COMPAT["pooling"])] = "masked"
    decoder: Annotated[str, registered(COMPAT["decoder"])] = "paper"
    output: Annotated[str, registered(COMPAT["output"])] = "distribution"


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
    """Schedule of the noise."""
    beta_scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """A factor of every beta; the product is capped at 0.999 (table 3f of the paper)."""
    sampler: Literal["ddim", "ddpm"] = "ddim"
    """ddim: only the start is random; ddpm: each step adds noise."""
    process: Literal["diffusion", "one_step"] = "diffusion"
    """one_step: the control, the same network called once, at x = 0 and step 0, in training too."""
    loss: Literal["kl", "mse"] = "kl"
    """Loss between the predicted distribution over candidates and the right one."""
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
    """The `fingerprint` of the retriever whose embeddings it was trained on."""
    compat: RerankerCompat = RerankerCompat()

    @model_validator(mode="after")
    def _consistent(self) -> "RerankerConfig":
        if self.sampling_steps is not None and self.sampling_steps > self.steps:
            raise InputError(
                f"sampling_steps={self.sampling_steps} is larger than steps={self.steps}: only trained steps can be "
                "sampled; use fewer steps, or train with more"
            )
        for entry in named_parts(COMPAT, self.compat).values():
            for problem in entry.problems(self):
                raise InputError(problem)
        if self.process == "one_step" and self.sampling_steps not in (None, 1):
            raise InputError(f"sampling_steps={self.sampling_steps} needs process='diffusion', not 'one_step'")
        return self
