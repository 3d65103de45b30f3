"""From the network to an answer: K steps of denoising, or the control, one step without any noise."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.errors import InputError
from prvr.stages.diffusion.config import RerankerConfig
from regdiff import ConditionalDiffusion
from regdiff.losses import KLToTarget, mse
from regdiff.noise import standard_normal
from regdiff.schedule import Scheduler
from regdiff.schedulers import make_scheduler


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
        """The softmax of the scores: a distribution over the candidates."""
        return (self.temperature * scores).softmax(-1)

    def target(self, positives: Bool[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """The uniform distribution over the candidates that are right."""
        right = positives.to(torch.get_default_dtype())
        return right / right.sum(-1, keepdim=True)

    def probability(self, sample: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """The sample itself, which is a distribution already."""
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


@runtime_checkable
class Process(Protocol):
    """How scores of the network become x_0."""

    def loss(
        self,
        target: Tensor,
        pairs: Any,
        noise: Tensor | None,
        timesteps: Tensor | None,
        generator: torch.Generator | None,
        /,
    ) -> Tensor:
        """The loss of predicting x_0 from a noised target, the mean over rows."""
        ...

    def sample(
        self,
        initial: Tensor | None,
        pairs: Any,
        num_steps: int | None,
        timesteps: Sequence[int] | None,
        noise: Tensor | None,
        generator: torch.Generator | None,
        return_chain: bool,
        /,
    ) -> Tensor:
        """The generated x_0 of each row."""
        ...

    def draw(
        self, like: Tensor, num_steps: int | None, timesteps: Sequence[int] | None, seed: int, /
    ) -> tuple[Tensor | None, Tensor | None]:
        """The noise that sampling starts from, and that of its steps, from a seed."""
        ...


def beta_schedule(config: RerankerConfig) -> list[float]:
    r"""beta_0 ... beta_{K-1}, times `beta_scale` and capped at 0.999.

    cosine: 1 - f(k + 1) / f(k), f(k) = cos^2((k / K + 0.008) / 1.008 * pi / 2) (Nichol and Dhariwal 2021);
    linear: from 0.1 / K to 20 / K, the 0.0001 to 0.02 of 1000 steps (Ho et al. 2020) at any number of them.

    Examples:
        >>> [round(beta, 4) for beta in beta_schedule(RerankerConfig(width=8, steps=50, schedule="linear"))[::49]]
        [0.002, 0.4]
    """
    steps = config.steps
    if config.schedule == "linear":
        betas = torch.linspace(0.1 / steps, 20 / steps, steps, dtype=torch.float64)
    else:
        at = torch.arange(steps + 1, dtype=torch.float64) / steps
        f = torch.cos((at + 0.008) / 1.008 * torch.pi / 2) ** 2
        betas = 1 - f[1:] / f[:-1]
    return (betas * config.beta_scale).clamp(max=0.999).tolist()


def _scheduler(config: RerankerConfig) -> Scheduler:
    return make_scheduler(
        "ddim",
        config.steps,
        trained_betas=beta_schedule(config),
        prediction_type="sample",
        timestep_spacing=config.spacing,
    )


class _Cleaned:
    """The network as the sampler wants it: an object and not a closure, so that a deep copy of it has its own."""

    def __init__(self, network: Callable[..., Tensor], output: Output) -> None:
        self.network, self.output = network, output

    def __call__(self, x: Tensor, timestep: Tensor, pairs: Any) -> Tensor:
        return self.output.clean(self.network(x, timestep, pairs))


def _loss_of(config: RerankerConfig, output: Output) -> Callable[..., Tensor]:
    return KLLoss(config.loss_temperature) if config.loss == "kl" else SquaredLoss(output)


class DiffusionProcess:
    """Denoising diffusion of the distribution over candidates (DiffusionRet, eq. 7 to 9), x_0 predicted.

    DDPM is DDIM with eta = 1 (Song et al. 2021), which takes its noise from outside.

    Args:
        network: (x, timestep, pairs) -> scores.
        output: What they mean.
        config: Steps, schedule, sampler and loss.
    """

    def __init__(self, network: Callable[..., Tensor], output: Output, config: RerankerConfig) -> None:
        self.sampling_steps = config.sampling_steps
        scheduler = _scheduler(config)
        # The loss wants scores, from which a logarithm is exact; the sampler wants x_0.
        self.training = ConditionalDiffusion(network, scheduler, loss_fn=_loss_of(config, output))
        eta = 1.0 if config.sampler == "ddpm" else 0.0
        self.sampling = ConditionalDiffusion(_Cleaned(network, output), scheduler, eta=eta)

    def loss(
        self,
        target: Float[Tensor, "b n"],
        pairs: Any,
        noise: Float[Tensor, "..."] | None,
        timesteps: Int[Tensor, "b"] | None,
        generator: torch.Generator | None,
    ) -> Float[Tensor, ""]:
        """The generation loss at drawn or given steps (eq. 9)."""
        return self.training.loss(target, pairs, noise, timesteps, generator)

    def sample(
        self,
        initial: Float[Tensor, "b n"] | None,
        pairs: Any,
        num_steps: int | None,
        timesteps: Sequence[int] | None,
        noise: Float[Tensor, "..."] | None,
        generator: torch.Generator | None,
        return_chain: bool,
    ) -> Float[Tensor, "*k b n"]:
        """x_0 after all steps of the sampler."""
        if initial is None:
            like = pairs.products
            initial = standard_normal(like.shape, like, generator)
        num_steps = self._steps(num_steps, timesteps)
        return self.sampling.sample(initial, pairs, num_steps, timesteps, noise, generator, return_chain)

    def draw(
        self, like: Float[Tensor, "b n"], num_steps: int | None, timesteps: Sequence[int] | None, seed: int
    ) -> tuple[Float[Tensor, "b n"], Float[Tensor, "s b n"] | None]:
        """Where `sample` starts and the noise of its steps, the same in every row, so that no row depends on others."""
        rows, num = like.shape
        numbers = torch.Generator("cpu").manual_seed(seed)
        start = torch.randn(num, generator=numbers, device="cpu").to(like).expand(rows, num)
        if self.sampling.eta == 0:
            return start, None
        num_steps = self._steps(num_steps, timesteps)
        steps = len(timesteps) if timesteps is not None else num_steps or self.sampling.num_train_timesteps
        noise = torch.randn(steps, 1, num, generator=numbers, device="cpu").to(like)
        return start, noise.expand(steps, rows, num)

    def _steps(self, num_steps: int | None, timesteps: Sequence[int] | None) -> int | None:
        return self.sampling_steps if num_steps is None and timesteps is None else num_steps


class OneStepProcess:
    """The control that the paper does not give: the same network at x = 0 and step 0, without noise or iteration.

    Args:
        network: (x, timestep, pairs) -> scores.
        output: What they mean.
        config: The loss.
    """

    def __init__(self, network: Callable[..., Tensor], output: Output, config: RerankerConfig) -> None:
        self.network, self.output = network, output
        self.loss_fn = _loss_of(config, output)

    def _scores(self, pairs: Any) -> Tensor:
        x = torch.zeros_like(pairs.products)
        return self.network(x, torch.zeros(len(x), dtype=torch.int64, device=x.device), pairs)

    def loss(
        self,
        target: Float[Tensor, "b n"],
        pairs: Any,
        noise: Float[Tensor, "..."] | None,
        timesteps: Int[Tensor, "b"] | None,
        generator: torch.Generator | None,
    ) -> Float[Tensor, ""]:
        """The loss of asking the network once, without noise."""
        _refuse(noise=noise, timesteps=timesteps)
        return self.loss_fn(self._scores(pairs), target).mean()

    def sample(
        self,
        initial: Float[Tensor, "b n"] | None,
        pairs: Any,
        num_steps: int | None,
        timesteps: Sequence[int] | None,
        noise: Float[Tensor, "..."] | None,
        generator: torch.Generator | None,
        return_chain: bool,
    ) -> Float[Tensor, "*k b n"]:
        """What the network answers when it is asked once."""
        _refuse(initial=initial, num_steps=num_steps, timesteps=timesteps, noise=noise)
        clean = self.output.clean(self._scores(pairs))
        return clean[None] if return_chain else clean

    def draw(
        self, like: Float[Tensor, "b n"], num_steps: int | None, timesteps: Sequence[int] | None, seed: int
    ) -> tuple[None, None]:
        """Nothing is drawn."""
        return None, None


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name}: the control process='one_step' has neither noise nor steps; leave it out")
