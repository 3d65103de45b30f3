"""One small driver per family of schedulers: x in, x out, with diffusers' own `step` in between.

Whatever a scheduler does inside, x is always signal_t x_0 + sigma_t eps here. Drivers hand diffusers Python numbers and
CPU scalars only, so that no step waits for an accelerator, and float64 ones, so that only the tensors are rounded.
"""

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from regdiff.noise import Generators, standard_normal
from regdiff.schedule import Schedule, Scheduler
from regdiff.schedulers import capabilities


class Driver(ABC):
    """A private copy of a scheduler that steps through one descending list of timesteps, each step once.

    Args:
        scheduler: A supported scheduler; it is not changed.
        schedule: Its numbers, rounded as wanted.
        timesteps: Strictly descending timesteps in [0, T); after the last one comes the clean sample.
        eta: DDIM's noise scale.
    """

    def __init__(self, scheduler: Scheduler, schedule: Schedule, timesteps: list[int], eta: float) -> None:
        self.scheduler: Any = copy.copy(scheduler)  # every attribute set below is replaced, none changed in place
        self.timesteps = timesteps
        self.eta = eta
        self._prepare(schedule)

    @abstractmethod
    def _prepare(self, schedule: Schedule) -> None:
        """Puts the numbers of the schedule into the copy."""

    @abstractmethod
    def step(self, prediction: Tensor, i: int, x: Tensor, noise: Tensor | None, generator: Generators | None) -> Tensor:
        """x after step i = 0, 1, ..., which is at timesteps[i + 1].

        Args:
            prediction: Of the denoiser at timesteps[i].
            i: Which step.
            x: Before the step.
            noise: The noise to add, where the scheduler accepts it; None draws it.
            generator: Source of the draws, or one for each row.
        """


class _Respaced(Driver):
    """DDPM and DDIM on the sub-sequence of abar, which is itself a schedule (Nichol and Dhariwal 2021)."""

    def _prepare(self, schedule: Schedule) -> None:
        abar = schedule.alphas_cumprod
        assert abar is not None
        self.scheduler.alphas_cumprod = abar[list(reversed(self.timesteps))]

    def _index(self, i: int) -> int:
        return len(self.timesteps) - 1 - i


class _Ddpm(_Respaced):
    def _prepare(self, schedule: Schedule) -> None:
        super()._prepare(schedule)
        # Without set_timesteps it steps from t to t - 1.
        self.scheduler.num_inference_steps, self.scheduler.custom_timesteps = None, False

    def step(self, prediction: Tensor, i: int, x: Tensor, noise: Tensor | None, generator: Generators | None) -> Tensor:
        return self.scheduler.step(prediction, self._index(i), x, generator=generator, return_dict=False)[0]


class _Ddim(_Respaced):
    def _prepare(self, schedule: Schedule) -> None:
        super()._prepare(schedule)
        config, abar = self.scheduler.config, schedule.alphas_cumprod
        assert abar is not None
        # It steps from t to t - T // num_inference_steps: this makes that t - 1.
        self.scheduler.num_inference_steps = config.num_train_timesteps
        self.scheduler.final_alpha_cumprod = (
            torch.ones((), dtype=torch.float64, device="cpu") if config.set_alpha_to_one else abar[0]
        )

    def step(self, prediction: Tensor, i: int, x: Tensor, noise: Tensor | None, generator: Generators | None) -> Tensor:
        options: dict[str, Any] = {"eta": self.eta, "use_clipped_model_output": True}
        if self.eta > 0:
            options["variance_noise"] = standard_normal(x.shape, x, generator) if noise is None else noise
        return self.scheduler.step(prediction, self._index(i), x, return_dict=False, **options)[0]


class _Indexed(Driver):
    """Schedulers that count their steps from a begin index; `set_timesteps` on the copy resets that count."""

    def _prepare(self, schedule: Schedule) -> None:
        self.scheduler.set_timesteps(1)
        self.scheduler.set_begin_index(0)  # otherwise the first step searches a tensor of timesteps for its own
        self.scheduler.timesteps = self.timesteps
        self.scheduler.num_inference_steps = len(self.timesteps)


class _Dpm(_Indexed):
    def _prepare(self, schedule: Schedule) -> None:
        super()._prepare(schedule)
        sigma, signal = (values[self.timesteps] for values in (schedule.sigma, schedule.signal))
        # diffusers takes logarithms of these, so tensors they are; CPU scalars mix with tensors of any device.
        self.scheduler.sigmas = torch.cat([sigma / signal, sigma.new_zeros(1)])
        self._stochastic = capabilities(self.scheduler).stochastic

    def step(self, prediction: Tensor, i: int, x: Tensor, noise: Tensor | None, generator: Generators | None) -> Tensor:
        if self._stochastic and noise is None:
            noise = standard_normal(x.shape, x, generator)
        step, t = self.scheduler.step, self.timesteps[i]
        return step(prediction.to(x.dtype), t, x, variance_noise=noise, return_dict=False)[0]


class _Euler(_Indexed):
    """Works on x / signal = x_0 + (sigma / signal) eps (Karras et al. 2022)."""

    def _prepare(self, schedule: Schedule) -> None:
        super()._prepare(schedule)
        signal = schedule.signal[self.timesteps]
        self._signal = [*signal.tolist(), 1.0]
        self.scheduler.sigmas = [*(schedule.sigma[self.timesteps] / signal).tolist(), 0.0]
        self.scheduler.is_scale_input_called = True  # x itself is the scaled input

    def step(self, prediction: Tensor, i: int, x: Tensor, noise: Tensor | None, generator: Generators | None) -> Tensor:
        step, t = self.scheduler.step, float(self.timesteps[i])  # an integer would be taken for an index, and refused
        after = step(prediction.to(x.dtype), t, x / self._signal[i], return_dict=False)[0]
        return after * self._signal[i + 1]


class _Lcm(_Indexed):
    def _prepare(self, schedule: Schedule) -> None:
        super()._prepare(schedule)
        self.scheduler.alphas_cumprod = schedule.alphas_cumprod

    def step(self, prediction: Tensor, i: int, x: Tensor, noise: Tensor | None, generator: Generators | None) -> Tensor:
        return self.scheduler.step(prediction, self.timesteps[i], x, generator=generator, return_dict=False)[0]


class _Flow(_Indexed):
    def _prepare(self, schedule: Schedule) -> None:
        super()._prepare(schedule)
        self.scheduler.sigmas = [*schedule.sigma[self.timesteps].tolist(), 0.0]

    def step(self, prediction: Tensor, i: int, x: Tensor, noise: Tensor | None, generator: Generators | None) -> Tensor:
        return self.scheduler.step(prediction.to(x.dtype), float(self.timesteps[i]), x, return_dict=False)[0]


def drive(scheduler: Scheduler, schedule: Schedule, timesteps: list[int], eta: float = 1.0) -> Driver:
    """The driver of a supported scheduler; see `Driver`."""
    families: dict[str, type[Driver]] = {
        "DDPMScheduler": _Ddpm,
        "DDIMScheduler": _Ddim,
        "DPMSolverMultistepScheduler": _Dpm,
        "EulerDiscreteScheduler": _Euler,
        "LCMScheduler": _Lcm,
        "FlowMatchEulerDiscreteScheduler": _Flow,
    }
    return families[capabilities(scheduler).scheduler](scheduler, schedule, timesteps, eta)
