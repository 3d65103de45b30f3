"""What the denoiser's scores mean: a clean distribution over candidates, its loss, and a probability."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regdiff.losses import KLToTarget, mse

__all__ = ["Distribution", "KLLoss", "Output", "SquaredLoss"]


@runtime_checkable
class Output(Protocol):
    """From scores to the prediction of x_0, to x_0 of the truth, and to the probability that counts in the end."""

    def clean(self, scores: Float[Tensor, "b n"], /) -> Float[Tensor, "b n"]:
        """The prediction of x_0."""
        ...

    def target(self, positives: Bool[Tensor, "b n"], /) -> Float[Tensor, "b n"]:
        """x_0 of the candidates that are right."""
        ...

    def probability(self, sample: Float[Tensor, "b n"], /) -> Float[Tensor, "b n"]:
        """What a generated x_0 says, not negative and of sum one."""
        ...


class Distribution:
    """x_0 is a distribution over the candidates, uniform over those that are right, and so is its prediction.

    Args:
        temperature: What scores are multiplied by before the softmax.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def clean(self, scores: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        return (self.temperature * scores).softmax(-1)

    def target(self, positives: Bool[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        right = positives.to(torch.get_default_dtype())
        return right / right.sum(-1, keepdim=True)

    def probability(self, sample: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        return sample


class KLLoss:
    """KL(x_0 || softmax(temperature * scores)) per row (DiffusionRet, eq. 9), where x_0 is taken as a distribution.

    That is x_0 itself, or, where wrong candidates are -1, its positive part.
    """

    def __init__(self, temperature: float) -> None:
        self.divergence = KLToTarget(temperature)

    def __call__(self, scores: Float[Tensor, "b n"], clean: Float[Tensor, "b n"]) -> Float[Tensor, "b"]:
        right = clean.clamp_min(0)
        return self.divergence(scores, right / right.sum(-1, keepdim=True))


class SquaredLoss:
    """Squared error of the predicted x_0, elementwise (table 3a of the paper)."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, scores: Float[Tensor, "b n"], clean: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        return mse(self.output.clean(scores), clean)
