"""A scheduler as numbers: every step of diffusers' `step` is a weighted sum, whose weights are read off once.

After the estimate of the clean sample, each of these solvers is linear: x after a step is a sum of x at this call and
earlier ones, of the clean samples estimated there, and of noise. So diffusers' own `step` runs once on unit vectors, in
float64 on the CPU, and what comes out are the weights. Uneven numbers beside the units tell whether the step of a
derived class is linear. Sampling then needs a few multiplications per step in the sample's own precision, on any
device, and reads nothing back from it.

Whatever a scheduler does inside, x is always signal_t x_0 + sigma_t eps here.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regdiff.schedule import Schedule, Scheduler
from regdiff.schedulers import capabilities

#: Weights below this share of the largest are what cancelled up to rounding.
NEGLIGIBLE = 1e-13

#: Sizes of the uneven numbers: a step may clamp what is large, and lose what is small.
SIZES = (1e-2, 1.0, 1e2, 1e4)

#: Error of a linear step on those, relative to the sum of its terms; rounding makes 2e-11 at T = 1000.
TOLERANCE = 1e-6

#: Heun's correction multiplies an error of the second estimate by (s / s' - 1) / 2 where s = sigma / signal falls to
#: s': beyond this ratio, by more than 1.
LARGEST_FALL = 3.0


@dataclass(frozen=True)
class Stage:
    """One call of the denoiser, and x after it.

    Attributes:
        timestep: At which the denoiser is called, an integer in [0, T).
        signal, sigma: How much signal and noise the forward process holds there.
        samples: Weight of x at this call, at the one before, and so on.
        cleans: Weight of the clean sample estimated at this call, at the one before, and so on.
        unclipped: Weight of this call's estimate before it was clipped.
        noise: Weight of the noise, which is standard normal.
        step: Which step of the sampler it belongs to.
        ends_step: Whether x after it is x after the step: not so where Heun calls the denoiser again.
    """

    timestep: int
    signal: float
    sigma: float
    samples: tuple[float, ...]
    cleans: tuple[float, ...]
    unclipped: float
    noise: float
    step: int
    ends_step: bool


def clean_sample(prediction_type: str, prediction: Tensor, x: Tensor, signal: float, sigma: float) -> Tensor:
    """The estimate of x_0 that a prediction stands for.

    Args:
        prediction_type: "epsilon", "sample", "v_prediction" or "flow".
        prediction: What the denoiser said.
        x: What it was asked about.
        signal, sigma: How much signal and noise x holds.
    """
    if prediction_type == "sample":
        return prediction.to(x.dtype)
    if prediction_type == "epsilon":
        # The gradient of a sum is one kernel, that of a difference two.
        return torch.add(x, prediction, alpha=-sigma) / signal
    if prediction_type == "flow":
        return torch.add(x, prediction, alpha=-sigma)
    return torch.add(signal * x, prediction, alpha=-sigma)


class History:
    """x and the clean samples at the latest calls of the denoiser, and the sum of them that a stage asks for.

    Args:
        stages: All that follow; no more is kept than they need.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        # Not a deque: where torch.compile breaks the graph, torch 2.13 forgets what a full one is given.
        self.samples: list[Tensor] = []
        self.cleans: list[Tensor] = []
        self.depths = [max(map(len, weights)) for weights in zip(*((s.samples, s.cleans) for s in stages), strict=True)]

    def advance(self, stage: Stage, x: Tensor, clean: Tensor, limit: float | None) -> Tensor:
        """x after the stage, without its noise.

        Args:
            stage: The weights.
            x: Before it.
            clean: The estimate of x_0 from it.
            limit: Clips the estimate to [-limit, limit]; None leaves it.
        """
        self.samples = [x, *self.samples][: self.depths[0]]
        # Not `clamp`, whose gradient is five kernels where this one's is one.
        clipped = clean if limit is None else F.hardtanh(clean, -limit, limit)
        self.cleans = [clipped, *self.cleans][: self.depths[1]]
        terms = [*zip(stage.cleans, self.cleans, strict=False), *zip(stage.samples, self.samples, strict=False)]
        if stage.unclipped:
            terms.append((stage.unclipped, clean))
        terms = [(weight, value) for weight, value in terms if weight]
        if not terms:
            return torch.zeros_like(x)
        (first, total), *others = terms
        total = total if first == 1.0 else total * first
        for weight, value in others:
            total = torch.add(total, value, alpha=weight)
        return total


def stages_of(
    scheduler: Scheduler,
    schedule: Schedule,
    timesteps: Sequence[int],
    eta: float = 1.0,
    use_clipped_model_output: bool = True,
) -> tuple[Stage, ...]:
    """The stages in which a supported scheduler goes through these timesteps, down to the clean sample.

    Args:
        scheduler: It is not changed.
        schedule: Its numbers, rounded as wanted.
        timesteps: Strictly descending, in [0, T).
        eta: Noise scale of DDIM and TCD.
        use_clipped_model_output: As of `ConditionalDiffusion`; DDIM alone reads it.

    Raises:
        ValueError: A step that is not finite, or not linear.

    Examples:
        >>> from regdiff.schedule import schedule_of
        >>> from regdiff.schedulers import make_scheduler
        >>> ddim = make_scheduler("ddim", 4)
        >>> last = stages_of(ddim, schedule_of(ddim), [2, 0], eta=0.0)[-1]
        >>> last.cleans, last.noise
        ((1.0,), 0.0)
    """
    kind = capabilities(scheduler).scheduler
    with torch.device("cpu"):
        probe = _PROBES[kind](scheduler, kind, schedule, list(timesteps), eta)
    size = len(probe.calls)
    width = 2 * size + 1
    units = torch.eye(width, dtype=torch.float64, device="cpu")
    # sin(k^2) is as good as random, and may be computed within vmap.
    counts = torch.arange(width * len(SIZES), dtype=torch.float64, device="cpu").view(width, -1)
    uneven = counts.square().sin() * units.new_tensor(SIZES)
    rows = torch.cat([units, uneven], dim=1).unsqueeze(1)  # x at each call, the clean samples, the noise
    stages = []
    with torch.device("cpu"), torch.inference_mode(False), torch.no_grad(), _Exact(rows[-1]):
        for i, (level, step, ends) in enumerate(probe.calls):
            if probe.ends_clean and i + 1 == size:
                after = rows[size + i]
            else:
                after = probe.step(i, rows[i], rows[size + i])
                probe.keep(i, rows[min(i + 1, size - 1)], after)
            weights, others = after[0].clone().split((width, len(SIZES)))
            if not weights.isfinite().all():
                raise ValueError(
                    f"timesteps: {type(scheduler).__name__} has no finite step at {probe.timesteps[level]}, where the "
                    f"signal is {probe.signal[level]:.3g}; start at a lower timestep, or take another scheduler"
                )
            terms = weights[:, None] * uneven
            if not ((others - terms.sum(0)).abs() <= TOLERANCE * terms.abs().sum(0)).all():
                raise ValueError(
                    f"scheduler: the step of {type(scheduler).__name__} is not linear in the sample, the clean samples "
                    f"and noise of torch.randn at timestep {probe.timesteps[level]}; expected a step as {kind} has it"
                )
            weights[weights.abs() < NEGLIGIBLE * weights.abs().max()] = 0
            samples, cleans = (_latest_first(weights[at : at + i + 1]) for at in (0, size))
            unclipped = 0.0
            if kind == "DDIMScheduler" and not use_clipped_model_output and samples:
                # The noise is then that of the estimate before it was clipped: (x - signal x_0) / sigma.
                unclipped = -samples[0] * probe.signal[level]
                cleans = (cleans[0] - unclipped,)
            at = (probe.timesteps[level], probe.signal[level], probe.sigma[level])
            stages.append(Stage(*at, samples, cleans, unclipped, weights[-1].item(), step, ends))
    return tuple(stages)


def _latest_first(weights: Tensor) -> tuple[float, ...]:
    listed = weights.flip(0).tolist()
    while listed and not listed[-1]:
        listed.pop()
    return tuple(listed)


class _Exact(TorchFunctionMode):
    """Runs a scheduler in float64, whatever precision it asks for, with one tensor in place of all that it draws."""

    def __init__(self, drawn: Tensor) -> None:
        super().__init__()
        self.drawn = drawn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.randn:
            return self.drawn.clone()
        kwargs = kwargs or {}
        if func is torch.Tensor.to:
            args = tuple(map(_widened, args))
            kwargs = {name: _widened(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class _Probe(ABC):
    """A private copy of a scheduler that goes through one descending list of timesteps on unit vectors.

    Args:
        scheduler: A supported scheduler; it is not changed.
        kind: Its class in diffusers, which it may be derived from.
        schedule: Its numbers, rounded as wanted.
        timesteps: Strictly descending timesteps in [0, T); after the last one comes the clean sample.
        eta: Noise scale of DDIM and TCD.
    """

    predicts = "sample"  # what the copy is handed: the clean sample itself, or the noise where it knows nothing else
    ends_clean = False  # the last step leads to the clean sample, where diffusers' own stays at timestep 0

    def __init__(self, scheduler: Scheduler, kind: str, schedule: Schedule, timesteps: list[int], eta: float) -> None:
        self.kind, self.timesteps, self.schedule, self.eta = kind, timesteps, schedule, eta
        self.signal, self.sigma = (values[timesteps].tolist() for values in (schedule.signal, schedule.sigma))
        self.scheduler: Any = copy.copy(scheduler)  # every attribute set below is replaced, none changed in place
        options = {"prediction_type": self.predicts, "clip_sample": False}  # clipping is not linear: `History` does it
        config = type(scheduler.config)({**scheduler.config, **options})
        vars(self.scheduler)["_internal_dict"] = config
        #: For each call of the denoiser: which of the timesteps, which step, and whether the step ends with it.
        self.calls = [(level, level, True) for level in range(len(timesteps))]
        self.options: dict[str, Any] = {}  # further arguments of the scheduler's own step
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Puts the numbers of the schedule into the copy."""

    def step(self, i: int, x: Tensor, clean: Tensor) -> Tensor:
        """x after call i, from x and the clean sample at it, all (1, width)."""
        return self.scheduler.step(clean, self.timesteps[i], x, return_dict=False, **self.options)[0]

    def keep(self, i: int, x: Tensor, after: Tensor) -> None:  # noqa: B027  most schedulers keep no x
        """Told that `after`, x after call i, is x at the next call."""

    def _indexed(self, timesteps: Any) -> None:
        """For schedulers that count their steps from a begin index; `set_timesteps` on the copy resets that count."""
        self.scheduler.set_timesteps(1)
        self.scheduler.set_begin_index(0)
        self.scheduler.timesteps, self.scheduler.num_inference_steps = timesteps, len(timesteps)

    def _relative_sigmas(self) -> Tensor:
        """sigma / signal of each timestep, and 0 for the clean sample."""
        sigmas = torch.tensor(self.sigma, dtype=torch.float64, device="cpu")
        return torch.cat([sigmas / torch.tensor(self.signal, dtype=torch.float64, device="cpu"), sigmas.new_zeros(1)])


class _Respaced(_Probe):
    """DDPM and DDIM on the sub-sequence of abar, which is itself a schedule (Nichol and Dhariwal 2021)."""

    def _prepare(self) -> None:
        abar = self.schedule.alphas_cumprod
        assert abar is not None
        self.scheduler.alphas_cumprod = abar[list(reversed(self.timesteps))]
        if self.kind == "DDPMScheduler":
            # Without set_timesteps it steps from t to t - 1.
            self.scheduler.num_inference_steps, self.scheduler.custom_timesteps = None, False
        else:
            # It steps from t to t - T // num_inference_steps: this makes that t - 1.
            self.scheduler.num_inference_steps = self.scheduler.config.num_train_timesteps
            self.scheduler.final_alpha_cumprod = (
                abar.new_ones(()) if self.scheduler.config.set_alpha_to_one else abar[0]
            )
            self.options = {"eta": self.eta, "use_clipped_model_output": True}

    def step(self, i: int, x: Tensor, clean: Tensor) -> Tensor:
        return self.scheduler.step(clean, len(self.timesteps) - 1 - i, x, return_dict=False, **self.options)[0]


class _Consistency(_Probe):
    """LCM and TCD, which look abar up at the timesteps themselves."""

    def _prepare(self) -> None:
        self._indexed(torch.tensor(self.timesteps, device="cpu"))
        self.scheduler.alphas_cumprod = self.schedule.alphas_cumprod
        self.ends_clean = self.kind == "TCDScheduler"
        self.options = {"eta": self.eta} if self.ends_clean else {}


class _Multistep(_Probe):
    """DPM-Solver++, DEIS and UniPC, which compute with logarithms of sigma / signal."""

    def _prepare(self) -> None:
        self._indexed(self.timesteps)
        self.scheduler.sigmas = self._relative_sigmas()
        self.ends_clean = self.kind != "DPMSolverMultistepScheduler"  # which does so itself


class _UniPc(_Multistep):
    def keep(self, i: int, x: Tensor, after: Tensor) -> None:
        # It corrects x at the next call by starting from `last_sample` again. As x there is (sigma' / sigma) times
        # that sample plus clean samples, the correction of x depends on clean samples alone: expressed so, it needs no
        # earlier x, and goes on from where a callback or a mask has put x.
        if i + 1 < len(self.calls):
            self.scheduler.last_sample = self.scheduler.last_sample + (x - after) * self.sigma[i] / self.sigma[i + 1]


class _Karras(_Probe):
    """Euler, Euler ancestral and Heun work on x / signal = x_0 + (sigma / signal) eps (Karras et al. 2022).

    Heun calls the denoiser a second time where a step leads, and takes the mean of both slopes. Karras et al. omit that
    in the last step, which leads to s = 0; here it is omitted wherever s falls to less than a third, as it does from
    the pure noise at the top of a cosine schedule.
    """

    predicts = "epsilon"

    def _prepare(self) -> None:
        sigmas = self._relative_sigmas()
        if self.kind == "HeunDiscreteScheduler":
            self.calls = []
            for step in range(len(self.timesteps)):
                corrected = bool(sigmas[step] <= LARGEST_FALL * sigmas[step + 1])
                self.calls.append((step, step, not corrected))
                if corrected:
                    self.calls.append((step + 1, step, True))
        self._indexed([float(self.timesteps[level]) for level, _, _ in self.calls])  # integers would be refused
        self.scheduler.sigmas = sigmas[[level for level, _, _ in self.calls] + [-1]]
        self.scheduler.is_scale_input_called = True  # x itself is the scaled input

    def step(self, i: int, x: Tensor, clean: Tensor) -> Tensor:
        level, step, ends = self.calls[i]
        signal, sigma = self.signal[level], self.sigma[level]
        eps = (x - signal * clean) / sigma
        after = self.scheduler.step(eps, float(self.timesteps[level]), x / signal, return_dict=False)[0]
        if ends:
            self.scheduler.dt = None  # Heun's next call begins a step
        return after * [*self.signal, 1.0][step + 1]  # where both halves of a step of Heun lead


class _Flow(_Probe):
    def _prepare(self) -> None:
        self._indexed(self.timesteps)
        self.scheduler.sigmas = [*self.sigma, 0.0]

    def step(self, i: int, x: Tensor, clean: Tensor) -> Tensor:
        flow = (x - clean) / self.sigma[i]
        return self.scheduler.step(flow, float(self.timesteps[i]), x, return_dict=False)[0]


_PROBES: dict[str, type[_Probe]] = {
    "DDPMScheduler": _Respaced,
    "DDIMScheduler": _Respaced,
    "DPMSolverMultistepScheduler": _Multistep,
    "DEISMultistepScheduler": _Multistep,
    "UniPCMultistepScheduler": _UniPc,
    "EulerDiscreteScheduler": _Karras,
    "EulerAncestralDiscreteScheduler": _Karras,
    "HeunDiscreteScheduler": _Karras,
    "LCMScheduler": _Consistency,
    "TCDScheduler": _Consistency,
    "FlowMatchEulerDiscreteScheduler": _Flow,
}
