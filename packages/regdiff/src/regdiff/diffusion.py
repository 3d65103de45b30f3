"""Conditional diffusion: any denoiser, a diffusers scheduler, a loss and a differentiable sampler."""

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from regdiff.noise import standard_normal
from regdiff.schedule import PREDICTION_TYPES, SUPPORTED, Scheduler, float64_alphas_cumprod, respaced, spaced_timesteps


@runtime_checkable
class Denoiser(Protocol):
    """What `ConditionalDiffusion` needs of a network: any callable of this shape, usually an nn.Module.

    The output is whatever the scheduler's `prediction_type` says: the noise, the clean sample or the velocity.
    """

    def __call__(
        self, sample: Float[Tensor, "b *s"], timestep: Int[Tensor, "b"], condition: Any, /
    ) -> Float[Tensor, "b *s"]: ...


class ConditionalDiffusion:
    r"""Denoising diffusion (Ho et al. 2020; Song et al. 2021) of a tensor, given a condition.

    Training: x_t = sqrt(abar_t) x_0 + sqrt(1 - abar_t) eps, and loss_fn(denoiser(x_t, t, condition), target) where the
    target is eps, x_0 or the velocity sqrt(abar_t) eps - sqrt(1 - abar_t) x_0, as the scheduler's `prediction_type`
    says. Sampling: the scheduler's own `step`, from `initial` down to the clean sample, differentiable throughout.

    It holds no parameters and is no module: the denoiser stays where its owner registered it. The scheduler handed in
    is never changed; the copies in use carry `alphas_cumprod` in float64 on the CPU, so that no step waits for a GPU.

    Args:
        denoiser: Any `Denoiser`.
        scheduler: DDIMScheduler or DDPMScheduler of diffusers.
        loss_fn: (prediction, target) -> scalar.
        eta: DDIM's noise scale: 0 is deterministic, 1 has the variance of DDPM. Ignored by DDPMScheduler.
        schedule_dtype: Precision to which the schedule's numbers are rounded; arithmetic on them is always in float64.
            torch.float32 reproduces code that stores its schedule in float32.

    Raises:
        ValueError: Unsupported scheduler or prediction type, or eta outside [0, 1].

    Example:
        >>> import torch
        >>> from diffusers.schedulers.scheduling_ddim import DDIMScheduler
        >>> scheduler = DDIMScheduler(num_train_timesteps=10, beta_schedule="squaredcos_cap_v2")
        >>> diffusion = ConditionalDiffusion(lambda sample, timestep, condition: sample - condition, scheduler)
        >>> target, condition = torch.zeros(4, 2, 8), torch.zeros(4, 1, 8)
        >>> diffusion.loss(target, condition).shape
        torch.Size([])
        >>> diffusion.sample(torch.randn(4, 2, 8), condition, num_steps=5).shape
        torch.Size([4, 2, 8])
    """

    def __init__(
        self,
        denoiser: Denoiser,
        scheduler: Scheduler,
        *,
        loss_fn: Callable[[Tensor, Tensor], Tensor] = F.mse_loss,
        eta: float = 1.0,
        schedule_dtype: torch.dtype = torch.float64,
    ) -> None:
        name = type(scheduler).__name__
        if name not in SUPPORTED:
            raise ValueError(f"scheduler: got {name}, expected one of {', '.join(SUPPORTED)}")
        config: Any = scheduler.config
        self.prediction_type: str = config.prediction_type
        if self.prediction_type not in PREDICTION_TYPES:
            raise ValueError(
                f"scheduler.config.prediction_type: got {self.prediction_type!r}, "
                f"expected one of {', '.join(PREDICTION_TYPES)}"
            )
        if config.get("variance_type", "fixed_small").startswith("learned"):
            raise ValueError(
                f"scheduler.config.variance_type: got {config.variance_type!r}, expected a fixed one; "
                "no loss here teaches a denoiser its variance"
            )
        if not 0 <= eta <= 1:
            raise ValueError(f"eta: got {eta}, expected a number in [0, 1] (0 = deterministic, 1 = DDPM variance)")
        self.denoiser = denoiser
        self.scheduler = copy.deepcopy(scheduler)
        self.loss_fn = loss_fn
        self.eta = eta
        self.schedule_dtype = schedule_dtype
        self.alphas_cumprod = float64_alphas_cumprod(scheduler)
        self._takes_noise = name == "DDIMScheduler"
        self._on_device: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    @property
    def num_train_timesteps(self) -> int:
        """T, the number of timesteps of the schedule."""
        return len(self.alphas_cumprod)

    def add_noise(
        self, target: Float[Tensor, "b *s"], noise: Float[Tensor, "b *s"], timesteps: Int[Tensor, "b"]
    ) -> Float[Tensor, "b *s"]:
        """The forward process: sqrt(abar_t) target + sqrt(1 - abar_t) noise, row by row.

        Args:
            target: Clean samples x_0.
            noise: eps.
            timesteps: One timestep in [0, T) per row.
        """
        signal, sigma = self._signal_and_sigma(target, timesteps)
        return signal * target + sigma * noise

    def loss(
        self,
        target: Float[Tensor, "b *s"],
        condition: Any,
        noise: Float[Tensor, "..."] | None = None,
        timesteps: Int[Tensor, "b"] | Literal["all"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The denoising loss of Ho et al. (2020), eq. 14, for one random timestep per row or for all of them.

        Args:
            target: Clean samples x_0; gradients flow into it.
            condition: Any pytree of tensors whose first axis is the batch (scalars and other leaves pass untouched).
            noise: None draws fresh Gaussian noise; sample shape is used for every timestep; (T, *sample) with
                timesteps="all" gives one per timestep. Gradients flow into it.
            timesteps: None draws one per row uniformly; "all" takes the mean over all T; a tensor fixes one per row.
            generator: Source of the draws.

        Raises:
            ValueError: Noise, timesteps or condition of a wrong shape.
        """
        rows, steps = target.shape[0], self.num_train_timesteps
        _check_condition(condition, rows)
        if isinstance(timesteps, str):
            if timesteps != "all":
                raise ValueError(f"timesteps: got {timesteps!r}, expected None, 'all' or one integer per row")
            noise = self._noise_of(noise, target, steps, generator).reshape(steps * rows, *target.shape[1:])
            target = target.expand(steps, *target.shape).reshape(steps * rows, *target.shape[1:])
            condition = _repeat(condition, steps)
            timesteps = torch.arange(steps, device=target.device).repeat_interleave(rows)
        else:
            if timesteps is None:
                device = target.device if generator is None else generator.device
                timesteps = torch.randint(steps, (rows,), generator=generator, device=device).to(target.device)
            if timesteps.shape != (rows,):
                raise ValueError(f"timesteps: got shape {tuple(timesteps.shape)}, expected one per row, ({rows},)")
            noise = self._noise_of(noise, target, 1, generator)[0]
        prediction = self.denoiser(self.add_noise(target, noise, timesteps), timesteps, condition)
        return self.loss_fn(prediction, self._training_target(target, noise, timesteps))

    def sample(
        self,
        initial: Float[Tensor, "b *s"],
        condition: Any,
        num_steps: int | None = None,
        timesteps: Sequence[int] | None = None,
        noise: Float[Tensor, "..."] | None = None,
        generator: torch.Generator | None = None,
        return_chain: bool = False,
    ) -> Float[Tensor, "b *s"] | Float[Tensor, "k b *s"]:
        """Run the reverse process from `initial`; gradients flow through every step.

        Args:
            initial: x at the first timestep (a Gaussian draw, or any truncated start).
            condition: As in `loss`.
            num_steps: Number of steps, spaced as the scheduler's `timestep_spacing` says; None takes all T.
            timesteps: An explicit, strictly descending list instead; even or uneven, it may start below T - 1.
            noise: The noise added after each step. None draws fresh Gaussian noise; sample shape is reused in every
                step; (steps, *sample) gives one per step.
            generator: Source of the draws.
            return_chain: Return every x after a step, (steps, b, ...), the result last, instead of the result.

        Raises:
            ValueError: More steps than trained, timesteps out of order or range, noise of a wrong shape, or noise
                where the sampler takes none.

        Example:
            >>> import torch
            >>> from diffusers.schedulers.scheduling_ddim import DDIMScheduler
            >>> clean = torch.tensor([[0.5, -0.5]])
            >>> scheduler = DDIMScheduler(num_train_timesteps=4, prediction_type="sample")
            >>> oracle = ConditionalDiffusion(lambda sample, timestep, condition: clean, scheduler, eta=0.0)
            >>> oracle.sample(torch.randn(1, 2), None)
            tensor([[ 0.5000, -0.5000]])
        """
        _check_condition(condition, initial.shape[0])
        descending = self._timesteps(num_steps, timesteps)
        if noise is not None:
            if not self._takes_noise:
                raise ValueError(
                    "noise: DDPMScheduler draws its own from `generator`; use DDIMScheduler with eta=1 to supply it"
                )
            if self.eta == 0:
                raise ValueError("noise: eta=0 is deterministic and would ignore it; pass noise=None or set eta > 0")
            noise = self._noise_of(noise, initial, len(descending), generator)
        scheduler = respaced(self.scheduler, self.alphas_cumprod.to(self.schedule_dtype).double(), descending)
        x, chain = initial, []
        for i, t in enumerate(descending):
            # Python integers throughout: reading a timestep from a tensor would wait for the device.
            prediction = self.denoiser(x, torch.full((x.shape[0],), t, device=x.device), condition)
            if self._takes_noise:
                options = {"eta": self.eta, "use_clipped_model_output": True}
                if self.eta > 0:
                    options["variance_noise"] = standard_normal(x.shape, x, generator) if noise is None else noise[i]
            else:
                options = {"generator": generator}
            x = scheduler.step(prediction, len(descending) - 1 - i, x, return_dict=False, **options)[0]
            if return_chain:
                chain.append(x)
        return torch.stack(chain) if return_chain else x

    def _timesteps(self, num_steps: int | None, timesteps: Sequence[int] | None) -> list[int]:
        trained = self.num_train_timesteps
        if timesteps is not None:
            if num_steps is not None:
                raise ValueError("num_steps and timesteps: give one of them, not both")
            listed = [int(t) for t in timesteps]
        elif num_steps is None or num_steps == trained:
            listed = list(reversed(range(trained)))
        elif 1 <= num_steps <= trained:
            listed = spaced_timesteps(self.scheduler, num_steps)
        else:
            raise ValueError(f"num_steps: got {num_steps}, expected 1 to {trained}, the number of trained timesteps")
        falling = all(a > b for a, b in itertools.pairwise(listed))
        if not listed or not falling or listed[0] >= trained or listed[-1] < 0:
            raise ValueError(f"timesteps: got {listed}, expected strictly descending integers in [0, {trained})")
        return listed

    def _signal_and_sigma(self, sample: Tensor, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """sqrt(abar_t) and sqrt(1 - abar_t), shaped to multiply `sample`; roots are taken in float64, then rounded."""
        key = (sample.device, sample.dtype)
        if key not in self._on_device:
            with torch.inference_mode(False):  # a cache filled while validating must still serve training
                roots = (self.alphas_cumprod.sqrt(), (1 - self.alphas_cumprod).sqrt())
                signal, sigma = (root.to(self.schedule_dtype).to(sample.dtype).to(sample.device) for root in roots)
            self._on_device[key] = (signal, sigma)
        shape = (-1,) + (1,) * (sample.ndim - 1)
        signal, sigma = self._on_device[key]
        return signal[timesteps].view(shape), sigma[timesteps].view(shape)

    def _training_target(self, target: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        if self.prediction_type == "epsilon":
            return noise
        if self.prediction_type == "sample":
            return target
        signal, sigma = self._signal_and_sigma(target, timesteps)
        return signal * noise - sigma * target

    @staticmethod
    def _noise_of(noise: Tensor | None, sample: Tensor, steps: int, generator: torch.Generator | None) -> Tensor:
        """Noise of shape (steps, *sample) from any of the three accepted forms."""
        full = (steps, *sample.shape)
        if noise is None:
            return standard_normal(full, sample, generator)
        if noise.shape == sample.shape:
            return noise.expand(full)
        if noise.shape == full:
            return noise
        raise ValueError(
            f"noise: got shape {tuple(noise.shape)}, "
            f"expected {tuple(sample.shape)} (the sample) or {full} (one per step)"
        )


def _check_condition(condition: Any, rows: int) -> None:
    for leaf in tree_leaves(condition):
        if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] != rows:
            raise ValueError(
                f"condition: got a tensor of shape {tuple(leaf.shape)}, "
                f"expected a first axis of {rows}, the batch of the sample"
            )


def _repeat(condition: Any, times: int) -> Any:
    """Stack the batch of every tensor leaf `times` times, time-major."""
    return tree_map_only(
        Tensor, lambda leaf: leaf.repeat(times, *(1,) * (leaf.ndim - 1)) if leaf.ndim else leaf, condition
    )
