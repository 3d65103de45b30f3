"""From the scores of the network to x_0: K steps of denoising, or the control, one step without noise."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypedDict, Unpack, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.errors import InputError
from prvr.stages.diffusion.config import RerankerConfig
from prvr.stages.diffusion.network import PreparedPairs
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
        temperature: factor of the scores before the softmax.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

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


def _kl(divergence: KLToTarget, scores: Tensor, clean: Tensor) -> Tensor:
    """KL(x_0 || softmax(temperature * scores)) per row (eq. 9); of an x_0 with -1, its positive part."""
    positive = clean.clamp_min(0)
    return divergence(scores, positive / positive.sum(-1, keepdim=True))


def _squared(output: Output, scores: Tensor, clean: Tensor) -> Tensor:
    """Squared error of the predicted x_0 (table 3a of the paper)."""
    return mse(output.clean(scores), clean)


def _loss_of(config: RerankerConfig, output: Output) -> Callable[[Tensor, Tensor], Tensor]:
    return partial(_kl, KLToTarget(config.loss_temperature)) if config.loss == "kl" else partial(_squared, output)


def _predict(network: Network, output: Output, x: Tensor, timestep: Tensor, pairs: PreparedPairs) -> Tensor:
    return output.clean(network(x, timestep, pairs))


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

    DDPM is DDIM with eta = 1 (Song et al. 2021).

    Args:
        network: the denoiser.
        output: the meaning of its scores.
        config: steps, schedule, sampler and loss.
    """

    def __init__(self, network: Network, output: Output, config: RerankerConfig) -> None:
        self.sampling_steps = config.sampling_steps
        betas = {"trained_betas": beta_schedule(config), "timestep_spacing": config.spacing}
        scheduler = make_scheduler("ddim", config.steps, prediction_type="sample", **betas)
        # The loss reads scores, whose logarithm is exact; the sampler reads x_0.
        self.training = ConditionalDiffusion(network, scheduler, loss_fn=_loss_of(config, output))
        eta = 1.0 if config.sampler == "ddpm" else 0.0
        self.sampling = ConditionalDiffusion(partial(_predict, network, output), scheduler, eta=eta)

    def loss(
        self,
        target: Float[Tensor, "b n"],
        pairs: PreparedPairs,
        noise: Float[Tensor, "..."] | None,
        timesteps: Int[Tensor, "b"] | None,
        generator: torch.Generator | None,
    ) -> Float[Tensor, ""]:
        """The generation loss (eq. 9), the mean over rows."""
        return self.training.loss(target, pairs, noise, timesteps, generator)

    def sample(
        self, initial: Float[Tensor, "b n"] | None, pairs: PreparedPairs, **options: Unpack[SampleOptions]
    ) -> Float[Tensor, "*k b n"]:
        """x_0 after all steps of the sampler."""
        if initial is None:
            initial = standard_normal(pairs.products.shape, pairs.products, options.get("generator"))
        return self.sampling.sample(initial, pairs, **self._with_steps(options))

    def sample_seeded(
        self, initial: Float[Tensor, "b n"] | None, pairs: PreparedPairs, seed: int, **options: Unpack[SampleOptions]
    ) -> Float[Tensor, "b n"]:
        """`sample` from noise of a seed that is the same in every row, so that rows do not depend on each other."""
        (rows, columns), options = pairs.products.shape, self._with_steps(options)
        generator = torch.Generator("cpu").manual_seed(seed)
        drawn = torch.randn(columns, generator=generator, device="cpu").to(pairs.products)
        if self.sampling.eta > 0:
            steps = options.get("num_steps") or self.sampling.num_train_timesteps
            steps = len(options.get("timesteps") or range(steps))
            noise = torch.randn(steps, 1, columns, generator=generator, device="cpu").to(pairs.products)
            options["noise"] = noise.expand(steps, rows, columns)
        return self.sampling.sample(drawn.expand(rows, columns) if initial is None else initial, pairs, **options)

    def _with_steps(self, options: SampleOptions) -> SampleOptions:
        if options.get("num_steps") is None and options.get("timesteps") is None:
            options["num_steps"] = self.sampling_steps
        return options


class OneStepProcess:
    """The control, which is not in the paper: the same network at x = 0 and step 0, without noise or iteration.

    Args:
        network: the denoiser.
        output: the meaning of its scores.
        config: the loss.
    """

    def __init__(self, network: Network, output: Output, config: RerankerConfig) -> None:
        self.network, self.output, self.loss_fn = network, output, _loss_of(config, output)

    def _scores(self, pairs: PreparedPairs, **options: Any) -> Tensor:
        for name, value in options.items():
            if value is not None and name not in ("generator", "return_chain"):
                raise InputError(f"{name}: the control process='one_step' has neither noise nor steps: remove it")
        x = torch.zeros_like(pairs.products)
        return self.network(x, torch.zeros(len(x), dtype=torch.int64, device=x.device), pairs)

    def loss(
        self, target: Float[Tensor, "b n"], pairs: PreparedPairs, noise: Any, timesteps: Any, generator: Any
    ) -> Float[Tensor, ""]:
        """The loss of one call of the network, the mean over rows."""
        return self.loss_fn(self._scores(pairs, noise=noise, timesteps=timesteps), target).mean()

    def sample(self, initial: Any, pairs: PreparedPairs, **options: Unpack[SampleOptions]) -> Float[Tensor, "*k b n"]:
        """The prediction of one call of the network."""
        clean = self.output.clean(self._scores(pairs, initial=initial, **options))
        return clean[None] if options.get("return_chain") else clean

    def sample_seeded(
        self, initial: Any, pairs: PreparedPairs, seed: int, **options: Unpack[SampleOptions]
    ) -> Float[Tensor, "b n"]:
        """`sample`, which draws nothing."""
        return self.sample(initial, pairs, **options)
