"""Noise schedules in float64: how much signal and noise each timestep holds, and which timesteps a sampler visits."""

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat, SupportsIndex, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor

#: Constants of the cosine schedule (Nichol and Dhariwal 2021, section 3.2): the offset that keeps beta_0 from being
#: tiny, and the largest beta, which keeps the last steps from a singularity.
COSINE_OFFSET, LARGEST_BETA = 0.008, 0.999


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
    on_cpu = {"dtype": torch.float64, "device": "cpu"}  # whatever the default device is
    if config.trained_betas is not None:
        return torch.as_tensor(config.trained_betas, **on_cpu)
    if config.beta_schedule == "linear":
        return torch.linspace(config.beta_start, config.beta_end, steps, **on_cpu)
    if config.beta_schedule == "scaled_linear":
        return torch.linspace(config.beta_start**0.5, config.beta_end**0.5, steps, **on_cpu) ** 2
    if config.beta_schedule == "squaredcos_cap_v2":
        angles = [(t / steps + COSINE_OFFSET) / (1 + COSINE_OFFSET) * math.pi / 2 for t in range(steps + 1)]
        f = [math.cos(angle) ** 2 for angle in angles]
        return torch.tensor([min(1 - f[t + 1] / f[t], LARGEST_BETA) for t in range(steps)], **on_cpu)
    return None


def float64_alphas_cumprod(scheduler: Scheduler) -> Float64[Tensor, "t"]:
    """abar_t = prod_{s <= t} (1 - beta_s) of a scheduler, recomputed in float64.

    diffusers multiplies float32 numbers, and 1 - 0.999 alone loses 1.3e-5 of its value there. A schedule that is not
    known here (or one that diffusers rescales afterwards) keeps diffusers' own numbers.

    Args:
        scheduler: A diffusers scheduler with `alphas_cumprod`.

    Examples:
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


@dataclass(frozen=True, eq=False)
class Schedule:
    """The forward process x_t = signal_t x_0 + sigma_t eps at the T trained timesteps, in float64 on the CPU.

    Attributes:
        signal: sqrt(abar_t) of a variance-preserving process, 1 - s_t of a flow.
        sigma: sqrt(1 - abar_t), or s_t.
        alphas_cumprod: abar_t; None for a flow.
    """

    signal: Float64[Tensor, "t"]
    sigma: Float64[Tensor, "t"]
    alphas_cumprod: Float64[Tensor, "t"] | None = None

    def __len__(self) -> int:
        return len(self.signal)

    @classmethod
    def of_alphas_cumprod(cls, abar: Float64[Tensor, "t"]) -> "Schedule":
        """The variance-preserving process of abar_t."""
        return cls(abar.sqrt(), (1 - abar).sqrt(), abar)


def schedule_of(scheduler: Scheduler) -> Schedule:
    """The schedule of a diffusers scheduler.

    A flow-matching scheduler has s_t = k u / (1 + (k - 1) u) with u = (t + 1) / T and k its `shift` (Esser et al.
    2024, eq. 23), so that t = T - 1 is pure noise and every timestep is an integer. All others preserve variance.

    Args:
        scheduler: A diffusers scheduler; it is not changed.

    Examples:
        >>> from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
        >>> schedule_of(FlowMatchEulerDiscreteScheduler(num_train_timesteps=4)).sigma.tolist()
        [0.25, 0.5, 0.75, 1.0]
    """
    if hasattr(scheduler, "alphas_cumprod"):
        return Schedule.of_alphas_cumprod(float64_alphas_cumprod(scheduler))
    steps, shift = scheduler.config.num_train_timesteps, float(scheduler.config.shift)
    u = torch.arange(1, steps + 1, dtype=torch.float64, device="cpu") / steps
    sigma = shift * u / (1 + (shift - 1) * u)
    return Schedule(1 - sigma, sigma)


def spaced_timesteps(scheduler: Scheduler, num_steps: int) -> list[int]:
    """The scheduler's own choice (`timestep_spacing`) of `num_steps` descending timesteps, as Python integers.

    Where a scheduler would ask for a timestep between two trained ones (Euler's "linspace"), the nearest trained one
    is taken. A flow starts at T - 1 and goes down evenly ("trailing"), as T / K, 2 T / K, ... are its noise levels.

    Args:
        scheduler: A diffusers scheduler; it is not changed.
        num_steps: Number of sampling steps K, at most the number of trained ones.
    """
    if hasattr(scheduler, "alphas_cumprod"):
        scheduler = copy.deepcopy(scheduler)
        with torch.device("cpu"):
            scheduler.set_timesteps(num_steps)
        # Heun lists most timesteps twice, once for each call of the denoiser. Rounding gives diffusers' "trailing" one
        # entry too many, a -1, for some pairs such as 7 of 17.
        return list(dict.fromkeys(round(t) for t in vars(scheduler)["timesteps"].tolist()))[:num_steps]
    stride = scheduler.config.num_train_timesteps / num_steps
    return [round(stride * k) - 1 for k in range(num_steps, 0, -1)]


def karras_timesteps(
    schedule: Schedule, num_steps: int, *, rho: float = 7.0, largest: float = 80.0, smallest: float = 0.02
) -> list[int]:
    r"""Timesteps for `sample` whose noise levels are spaced as in EDM (Karras et al. 2022, eq. 5), the nearest trained.

    With s = sigma / signal, from `largest` to `smallest` (or as far as the schedule goes), level i of K is
    (largest^(1/rho) + i / (K - 1) (smallest^(1/rho) - largest^(1/rho)))^rho. Where two levels have one nearest
    timestep, the second takes the one below.

    Args:
        schedule: That of the diffusion.
        num_steps: K, from 2 to T.
        rho: How much denser the levels are at low noise.
        largest: The first level.
        smallest: The last one.

    Raises:
        ValueError: Fewer steps than two, or more than trained, levels that do not fall, or no schedule.

    Examples:
        >>> from regdiff import ConditionalDiffusion, make_scheduler
        >>> diffusion = ConditionalDiffusion(lambda x, timestep, condition: x, make_scheduler("ddim", 1000))
        >>> karras_timesteps(diffusion.schedule, 5)
        [991, 969, 844, 271, 6]
    """
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule: got {type(schedule).__name__}, expected the `schedule` of a ConditionalDiffusion")
    if not isinstance(num_steps, SupportsIndex) or not 2 <= num_steps <= len(schedule):
        raise ValueError(f"num_steps: got {num_steps!r}, expected 2 to {len(schedule)}, the trained timesteps")
    if not (rho > 0 and 0 < smallest < largest):
        raise ValueError(f"levels: got {rho=}, {largest=}, {smallest=}, expected rho > 0 and 0 < smallest < largest")
    levels = (schedule.sigma / schedule.signal).log()
    first = math.exp(min(levels[-1].item(), math.log(largest)) / rho)
    last = math.exp(max(levels[0].item(), math.log(smallest)) / rho)
    timesteps: list[int] = []
    for i in range(num_steps):
        level = rho * math.log(first + i / (num_steps - 1) * (last - first))
        nearest = int((levels - level).abs().argmin())
        highest = timesteps[-1] - 1 if timesteps else len(schedule) - 1
        timesteps.append(min(max(nearest, num_steps - 1 - i), highest))
    return timesteps


def descending_timesteps(
    scheduler: Scheduler, trained: int, num_steps: int | None, timesteps: Sequence[SupportsFloat] | None
) -> list[int]:
    """The timesteps that a sampler visits: an explicit list, or `num_steps` of them, or all.

    Args:
        scheduler: A diffusers scheduler; it is not changed.
        trained: T, the number of trained timesteps.
        num_steps: Number of steps; None takes all T.
        timesteps: The list itself instead.

    Raises:
        ValueError: Both given, more steps than trained, or a list that is not strictly descending in [0, T).
    """
    if timesteps is not None:
        if num_steps is not None:
            raise ValueError("num_steps and timesteps: give one of them, not both")
        listed: list[Any] = [int(t) if t.is_integer() else t for t in map(float, timesteps)]
    else:
        steps = trained if num_steps is None else num_steps
        if not isinstance(steps, SupportsIndex) or not 1 <= steps <= trained:
            raise ValueError(
                f"num_steps: got {num_steps!r}, expected 1 to {trained}, the number of trained timesteps, an integer"
            )
        distilled = scheduler.config.get("original_inference_steps", trained)
        if steps > distilled:
            raise ValueError(
                f"num_steps: got {num_steps} (of {trained}), expected 1 to {distilled}, the original_inference_steps "
                f"of {type(scheduler).__name__}; raise those, or list the timesteps yourself"
            )
        listed = list(reversed(range(trained))) if steps == trained else spaced_timesteps(scheduler, steps)
    good = all(a > b for a, b in itertools.pairwise(listed)) and not any(isinstance(t, float) for t in listed)
    if not listed or not good or listed[0] >= trained or listed[-1] < 0:
        raise ValueError(f"timesteps: got {listed}, expected strictly descending integers in [0, {trained})")
    return listed
