"""The registers of a batch, and what they came from."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from regdiff.gaussian import Gaussian


@dataclass(frozen=True)
class Registers:
    """The registers of a batch.

    Attributes:
        tokens: The registers themselves.
        condition: What the diffusion was conditioned on; the tokens themselves for the kinds without diffusion.
        prior: The Gaussian the diffusion starts from, where there is one.
        start: Where the diffusion started, where there is one.
        chain: All intermediate registers, the last being `tokens`, if they were asked for.
    """

    tokens: Float[Tensor, "b n d"]
    condition: Float[Tensor, "b n d"]
    prior: Gaussian | None = None
    start: Float[Tensor, "b n d"] | None = None
    chain: Float[Tensor, "k b n d"] | None = None
