"""From the scores of the network to x_0: K steps of denoising, or the control, one step without noise."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from prvr.published.diffusionret.network import CandidateDenoiser, PreparedPairs
from prvr.published.diffusionret.run_config import RerankerConfig
from regdiff import ConditionalDiffusion
from regdiff.losses import KLToTarget, mse
from regdiff.schedulers import make_scheduler


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


class DiffusionProcess:
    """Denoising diffusion of the distribution over candidates (DiffusionRet, eq. 7 to 9), with x_0 predicted.

    DDPM is DDIM with eta = 1 (Song et al. 2021). The control `process="one_step"`, which is not in the paper, is the
    same with a network that reads neither x nor the step, called once.

    Args:
        network: the denoiser.
        output: the meaning of its scores.
        config: steps, schedule, sampler and loss. kl: KL(x_0 || softmax(temperature * scores)) per row (eq. 9), of an
            x_0 with -1 its positive part; mse: the squared error of the predicted x_0 (table 3a of the paper).

    Attributes:
        training: has the loss, which reads scores, because their logarithm is exact.
        sampling: has the sampler, which reads x_0.
    """

    def __init__(self, network: CandidateDenoiser, output: Output, config: RerankerConfig) -> None:
        self.network, self.output, self.config = network, output, config
        self.divergence = KLToTarget(config.loss_temperature)
        betas = {"trained_betas": beta_schedule(config), "timestep_spacing": config.spacing}
        scheduler = make_scheduler("ddim", config.steps, prediction_type="sample", **betas)
        # Methods and no closures: a copy of the re-ranker has a network of its own.
        self.training = ConditionalDiffusion(self._scores, scheduler, loss_fn=self._loss)
        self.sampling = ConditionalDiffusion(self._clean, scheduler, eta=1.0 if config.sampler == "ddpm" else 0.0)

    def _scores(self, x: Tensor, timestep: Tensor, pairs: PreparedPairs) -> Tensor:
        if self.config.process == "one_step":
            x, timestep = torch.zeros_like(x), torch.zeros_like(timestep)
        return self.network(x, timestep, pairs)

    def _clean(self, x: Tensor, timestep: Tensor, pairs: PreparedPairs) -> Tensor:
        return self.output.clean(self._scores(x, timestep, pairs))

    def _loss(self, scores: Tensor, clean: Tensor) -> Tensor:
        if self.config.loss == "mse":
            return mse(self.output.clean(scores), clean)
        positive = clean.clamp_min(0)
        return self.divergence(scores, positive / positive.sum(-1, keepdim=True))
