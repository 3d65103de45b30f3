"""The meaning of the scores of the network, and the schedule of the noise."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from prvr.published.diffusionret.run_config import RerankerConfig


class Output(NamedTuple):
    """The meaning of scores: functions of `(b, n)`.

    Attributes:
        clean: the prediction of x_0 from scores.
        target: x_0 of the relevant candidates, a boolean mask.
        probability: the distribution over the candidates that a generated x_0 stands for.
    """

    clean: Callable[[Tensor], Tensor]
    target: Callable[[Tensor], Tensor]
    probability: Callable[[Tensor], Tensor]


def distribution(config: RerankerConfig) -> Output:
    """x_0 is the uniform distribution over the relevant candidates, and its prediction is a distribution too.

    Args:
        config: `loss_temperature` is a factor of the scores before the softmax.
    """

    def target(positives: Tensor) -> Tensor:
        x = positives.to(torch.get_default_dtype())
        return x / x.sum(-1, keepdim=True)

    return Output(lambda scores: (config.loss_temperature * scores).softmax(-1), target, lambda sample: sample)


def beta_schedule(config: RerankerConfig) -> list[float]:
    r"""beta_0 ... beta_{K-1}, times `beta_scale` and capped at 0.999.

    cosine: 1 - f(k + 1) / f(k), f(k) = cos^2((k / K + 0.008) / 1.008 * pi / 2) (Nichol and Dhariwal 2021);
    linear: from 0.1 / K to 20 / K, which is 0.0001 to 0.02 for K = 1000 (Ho et al. 2020).

    Examples:
        >>> [round(beta, 4) for beta in beta_schedule(RerankerConfig(width=8, steps=50, schedule="linear"))[::49]]
        [0.002, 0.4]
    """
    steps = config.steps
    if config.schedule == "linear":
        betas = torch.linspace(0.1 / steps, 20 / steps, steps, dtype=torch.float64)
    else:
        f = torch.cos((torch.arange(steps + 1, dtype=torch.float64) / steps + 0.008) / 1.008 * torch.pi / 2) ** 2
        betas = 1 - f[1:] / f[:-1]
    return (betas * config.beta_scale).clamp(max=0.999).tolist()
