"""From the scores of the network to x_0: K steps of denoising, or the control, one step without noise."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypedDict, Unpack, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.published.diffusionret.network import PreparedPairs
from prvr.published.diffusionret.reranker_config import RerankerConfig
from regdiff import ConditionalDiffusion
from regdiff.losses import KLToTarget, mse
from regdiff.noise import standard_normal
from regdiff.schedulers import make_scheduler

Network = Callable[[Tensor, Tensor, PreparedPairs], Tensor]
"""x (b, n), timesteps (b,) and pairs to scores (b, n)."""


class SampleOptions(TypedDict, total=False):
    """Options of sampling.

    Args:
        num_steps: number of steps; None for `config.sampling_steps`.
        timesteps: an explicit, strictly descending list of steps instead.
        noise: with sampler "ddpm", the noise of the steps: `(b, n)` for all, or `(steps, b, n)`.
        generator: source of the draws.
        return_chain: return x after each step, `(steps, b, n)`, the result last: figure 5 of the paper.
    """

    num_steps: int | None
    timesteps: Sequence[int] | None
    noise: Float[Tensor, "..."] | None
    generator: torch.Generator | None
    return_chain: bool


@runtime_checkable
class Output(Protocol):
    """The meaning of scores: the prediction of x_0, x_0 of the labels, and the final probability."""

    def clean(self, scores: Float[Tensor, "b n"], /) -> Float[Tensor, "b n"]:
        """The prediction of x_0."""
        ...

    def target(self, positives: Bool[Tensor, "b n"], /) -> Float[Tensor, "b n"]:
        """x_0 of the relevant candidates."""
        ...

    def probability(self, sample: Float[Tensor, "b n"], /) -> Float[Tensor, "b n"]:
        """The distribution over the candidates that a generated x_0 stands for."""
        ...


class Distribution:
    """x_0 is the uniform distribution over the relevant candidates, and its prediction is a distribution too.

    Args:
        config: `loss_temperature` is a factor of the scores before the softmax.
    """

    def __init__(self, config: RerankerConfig) -> None:
        self.temperature = config.loss_temperature

    def clean(self, scores: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """The softmax of the scores."""
        return (self.temperature * scores).softmax(-1)

    def target(self, positives: Bool[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """The uniform distribution over the relevant candidates."""
        x = positives.to(torch.get_default_dtype())
        return x / x.sum(-1, keepdim=True)

    def probability(self, sample: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """The sample, which is a distribution."""
        return sample


def _loss(config: RerankerConfig, output: Output) -> Callable[[Tensor, Tensor], Tensor]:
    """kl: KL(x_0 || softmax(temperature * scores)) per row (eq. 9), of an x_0 with -1 its positive part; mse: the
    squared error of the predicted x_0 (table 3a of the paper).
    """
    divergence = KLToTarget(config.loss_temperature)

    def loss(scores: Tensor, clean: Tensor) -> Tensor:
        if config.loss == "mse":
            return mse(output.clean(scores), clean)
        positive = clean.clamp_min(0)
        return divergence(scores, positive / positive.sum(-1, keepdim=True))

    return loss


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
        config: steps, schedule, sampler and loss.

    Attributes:
        training: has the loss, which reads scores, because their logarithm is exact.
        sampling: has the sampler, which reads x_0.
    """

    def __init__(self, network: Network, output: Output, config: RerankerConfig) -> None:
        self.network, self.output, self.one_step = network, output, config.process == "one_step"
        self.num_steps = 1 if self.one_step else config.sampling_steps
        betas = {"trained_betas": beta_schedule(config), "timestep_spacing": config.spacing}
        scheduler = make_scheduler("ddim", config.steps, prediction_type="sample", **betas)
        self.training = ConditionalDiffusion(self.scores, scheduler, loss_fn=_loss(config, output))
        self.sampling = ConditionalDiffusion(self.clean, scheduler, eta=1.0 if config.sampler == "ddpm" else 0.0)

    def scores(self, x: Float[Tensor, "b n"], timestep: Int[Tensor, "b"], pairs: PreparedPairs) -> Float[Tensor, "b n"]:
        """The output of the network."""
        if self.one_step:
            x, timestep = torch.zeros_like(x), torch.zeros_like(timestep)
        return self.network(x, timestep, pairs)

    def clean(self, x: Float[Tensor, "b n"], timestep: Int[Tensor, "b"], pairs: PreparedPairs) -> Float[Tensor, "b n"]:
        """The prediction of x_0."""
        return self.output.clean(self.scores(x, timestep, pairs))

    def sample(
        self,
        initial: Float[Tensor, "b n"] | None,
        pairs: PreparedPairs,
        seed: int | None = None,
        **options: Unpack[SampleOptions],
    ) -> Float[Tensor, "*k b n"]:
        """x_0 after all steps of the sampler.

        Args:
            initial: `(b, n)` x_K; None draws it.
            pairs: queries and candidates.
            seed: the seed of all noise, which is the same in every row, so that rows do not depend on each other; None
                draws it from `generator`.
            options: those of `SampleOptions`.
        """
        like, (rows, columns) = pairs.products, pairs.products.shape
        if options.get("num_steps") is None and options.get("timesteps") is None:
            options["num_steps"] = self.num_steps
        if seed is not None:
            generator = torch.Generator("cpu").manual_seed(seed)
            start = torch.randn(columns, generator=generator, device="cpu").to(like).expand(rows, columns)
            initial = start if initial is None else initial
            if self.sampling.eta > 0:
                steps = len(self.sampling.stages(options.get("num_steps"), options.get("timesteps")))
                noise = torch.randn(steps, 1, columns, generator=generator, device="cpu").to(like)
                options["noise"] = noise.expand(steps, rows, columns)
        elif initial is None:
            initial = standard_normal(like.shape, like, options.get("generator"))
        return self.sampling.sample(initial, pairs, **options)
