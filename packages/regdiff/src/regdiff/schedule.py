"""Noise schedules in float64, and a diffusers scheduler that steps through any descending list of timesteps."""

import copy
import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor

#: Schedulers whose `step` was read and tested here: they are driven by `alphas_cumprod` alone.
SUPPORTED = ("DDIMScheduler", "DDPMScheduler")
#: What a denoiser may predict.
PREDICTION_TYPES = ("epsilon", "sample", "v_prediction")


@runtime_checkable
class Scheduler(Protocol):
    """What every diffusers scheduler has; naming their classes here would import them, which is slow."""

    config: Any
    step: Any
    set_timesteps: Any


def float64_betas(config: Any, steps: int) -> Float64[Tensor, "t"] | None:
    """Betas of a diffusers scheduler configuration, in float64; None if the schedule is unknown here.

    `squaredcos_cap_v2` is the cosine schedule of Nichol and Dhariwal (2021):
    beta_t = min(0.999, 1 - f(t + 1) / f(t)), f(t) = cos^2((t / T + 0.008) / 1.008 * pi / 2).

    Args:
        config: The `config` of a scheduler.
        steps: T, the number of trained timesteps.
    """
    if config.trained_betas is not None:
        return torch.as_tensor(config.trained_betas, dtype=torch.float64)
    if config.beta_schedule == "linear":
        return torch.linspace(config.beta_start, config.beta_end, steps, dtype=torch.float64)
    if config.beta_schedule == "scaled_linear":
        return torch.linspace(config.beta_start**0.5, config.beta_end**0.5, steps, dtype=torch.float64) ** 2
    if config.beta_schedule == "squaredcos_cap_v2":
        f = [math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(steps + 1)]
        return torch.tensor([min(1 - f[t + 1] / f[t], 0.999) for t in range(steps)], dtype=torch.float64)
    return None


def float64_alphas_cumprod(scheduler: Scheduler) -> Float64[Tensor, "t"]:
    """abar_t = prod_{s <= t} (1 - beta_s) of a scheduler, recomputed in float64.

    diffusers multiplies float32 numbers, and 1 - 0.999 alone loses 1.3e-5 of its value there. A schedule that is not
    known here (or one that diffusers rescales afterwards) keeps diffusers' own numbers.

    Args:
        scheduler: A diffusers scheduler with `alphas_cumprod`.

    Example:
        >>> from diffusers.schedulers.scheduling_ddim import DDIMScheduler
        >>> scheduler = DDIMScheduler(num_train_timesteps=10, beta_schedule="squaredcos_cap_v2")
        >>> [round(a, 4) for a in float64_alphas_cumprod(scheduler).tolist()][:3]
        [0.9721, 0.8987, 0.7869]
    """
    own: Tensor = vars(scheduler)["alphas_cumprod"].detach().cpu().double()
    betas = float64_betas(scheduler.config, len(own))
    if betas is not None:
        exact = torch.cumprod(1 - betas, dim=0)
        if exact.shape == own.shape and torch.allclose(exact, own, rtol=1e-3, atol=0):
            return exact
    return own


def spaced_timesteps(scheduler: Scheduler, num_steps: int) -> list[int]:
    """The scheduler's own choice (`timestep_spacing`) of `num_steps` descending timesteps, as Python integers.

    Args:
        scheduler: A diffusers scheduler; it is not changed.
        num_steps: Number of sampling steps, at most the number of trained ones.
    """
    scheduler = copy.deepcopy(scheduler)
    scheduler.set_timesteps(num_steps)
    # Rounding gives diffusers' "trailing" one entry too many, a -1, for some pairs such as 7 of 17.
    return [int(t) for t in vars(scheduler)["timesteps"].tolist()[:num_steps]]


def respaced(scheduler: Any, alphas_cumprod: Float64[Tensor, "t"], timesteps: Sequence[int]) -> Any:
    """A copy of `scheduler` whose step i = K-1, ..., 0 goes from timesteps[K-1-i] to the next one of the list.

    This is the respacing of Nichol and Dhariwal (2021): the sub-sequence of abar is itself a schedule. Any strictly
    descending list works, even or uneven, starting at T-1 or (truncated diffusion) below it; after the last entry
    comes the clean sample.

    Args:
        scheduler: A scheduler of `SUPPORTED`; it is not changed.
        alphas_cumprod: abar of all trained timesteps.
        timesteps: Strictly descending timesteps in [0, T).
    """
    scheduler = copy.deepcopy(scheduler)
    scheduler.alphas_cumprod = alphas_cumprod[list(reversed(timesteps))]
    if type(scheduler).__name__ == "DDIMScheduler":
        # DDIM steps from t to t - T // num_inference_steps: this makes that t - 1.
        scheduler.num_inference_steps = scheduler.config.num_train_timesteps
        scheduler.final_alpha_cumprod = (
            torch.ones((), dtype=torch.float64) if scheduler.config.set_alpha_to_one else alphas_cumprod[0]
        )
    else:
        # DDPM without set_timesteps steps from t to t - 1.
        scheduler.num_inference_steps, scheduler.custom_timesteps = None, False
    return scheduler
