"""Which diffusers schedulers work here, what each of them can do, and how to make one by name."""

import importlib
import inspect
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, SupportsIndex, cast

import torch

from regdiff.schedule import Scheduler

_VP = ("epsilon", "sample", "v_prediction")


@dataclass(frozen=True)
class Capabilities:
    """What `ConditionalDiffusion` can do with a scheduler; `docs/regdiff.md` shows them all as a table.

    Attributes:
        name: What `make_scheduler` calls it.
        scheduler: Name of its class in diffusers.
        prediction_types: What the denoiser may predict: the noise eps, the clean sample x_0, the velocity
            v = signal eps - sigma x_0 of a variance-preserving process, or the flow eps - x_0.
        stochastic: Whether steps add noise; a text says when.
        own_noise: Whether `sample` accepts that noise as a tensor; a text says when.
        custom_timesteps: Whether `sample` accepts any descending list of trained timesteps.
        truncated_start: Whether `sample` may start below the last trained timestep.
        gradient: Whether gradients flow through `sample`.
        precision: Best precision of a step.
        calls: Calls of the denoiser in a step. Heun makes 2, but 1 where the noise falls to less than a third relative
            to the signal: in its last step, and from pure noise.
    """

    name: str
    scheduler: str
    prediction_types: tuple[str, ...] = _VP
    stochastic: bool | str = False
    own_noise: bool | str = False
    custom_timesteps: bool = True
    truncated_start: bool = True
    gradient: bool = True
    precision: Literal["float64", "float32"] = "float64"
    calls: int = 1


#: The supported schedulers by their `make_scheduler` name: every cell is promised, and tested.
SCHEDULERS: Mapping[str, Capabilities] = MappingProxyType(
    {
        row.name: row
        for row in (
            Capabilities("ddpm", "DDPMScheduler", stochastic=True, own_noise=True),
            Capabilities("ddim", "DDIMScheduler", stochastic="eta > 0", own_noise="eta > 0"),
            Capabilities("dpmsolver++", "DPMSolverMultistepScheduler"),
            Capabilities("sde-dpmsolver++", "DPMSolverMultistepScheduler", stochastic=True, own_noise=True),
            Capabilities("unipc", "UniPCMultistepScheduler"),
            Capabilities("deis", "DEISMultistepScheduler"),
            Capabilities("euler", "EulerDiscreteScheduler"),
            Capabilities("euler-ancestral", "EulerAncestralDiscreteScheduler", stochastic=True, own_noise=True),
            Capabilities("heun", "HeunDiscreteScheduler", calls=2),
            Capabilities("lcm", "LCMScheduler", stochastic=True, own_noise=True),
            Capabilities("tcd", "TCDScheduler", stochastic="eta > 0", own_noise="eta > 0"),
            Capabilities("flow", "FlowMatchEulerDiscreteScheduler", prediction_types=("flow",)),
        )
    }
)

_MODULES = {
    "DDPMScheduler": "scheduling_ddpm",
    "DDIMScheduler": "scheduling_ddim",
    "DPMSolverMultistepScheduler": "scheduling_dpmsolver_multistep",
    "UniPCMultistepScheduler": "scheduling_unipc_multistep",
    "DEISMultistepScheduler": "scheduling_deis_multistep",
    "EulerDiscreteScheduler": "scheduling_euler_discrete",
    "EulerAncestralDiscreteScheduler": "scheduling_euler_ancestral_discrete",
    "HeunDiscreteScheduler": "scheduling_heun_discrete",
    "LCMScheduler": "scheduling_lcm",
    "TCDScheduler": "scheduling_tcd",
    "FlowMatchEulerDiscreteScheduler": "scheduling_flow_match_euler_discrete",
}

_BETWEEN = "it asks for timesteps between the trained ones, which no denoiser here knows"
_UNVERIFIED = "it was not verified here"
#: Options of a configuration that may only have these values, and why.
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "variance_type": (
        (None, "fixed_small", "fixed_small_log", "fixed_large"),
        "no loss here teaches a denoiser its variance, and fixed_large_log is the root of a negative number",
    ),
    "thresholding": ((False,), "it mixes the elements of a row, padding included; clip_sample does not"),
    "use_karras_sigmas": ((None, False), f"{_BETWEEN}; karras_timesteps lists the nearest trained ones"),
    "use_exponential_sigmas": ((None, False), _BETWEEN),
    "use_beta_sigmas": ((None, False), _BETWEEN),
    "use_lu_lambdas": ((None, False), _BETWEEN),
    "interpolation_type": (("linear",), _BETWEEN),
    "timestep_type": (("discrete",), _BETWEEN),
    "use_flow_sigmas": ((None, False), "FlowMatchEulerDiscreteScheduler is the one for flows"),
    "use_dynamic_shifting": ((False,), "its noise levels depend on the input; set a fixed shift"),
    "shift_terminal": ((None,), "its noise levels depend on the number of steps"),
    "invert_sigmas": ((False,), _UNVERIFIED),
    "stochastic_sampling": ((False,), "diffusers 0.36, the oldest supported, ignores the generator there"),
    "algorithm_type": (("dpmsolver++", "sde-dpmsolver++", "deis"), "diffusers is removing the others"),
    "solver_order": ((1, 2, 3), "there is no other"),
    "solver_type": (("midpoint", "heun", "bh1", "bh2", "logrho"), "there is no other"),
    "predict_x0": ((True,), "its last step does not lead to the clean sample otherwise"),
    "solver_p": ((None,), _UNVERIFIED),
    "final_sigmas_type": (("zero",), "the last step leads to the clean sample"),
    "lambda_min_clipped": ((-math.inf,), "for a truncated start list the timesteps instead"),
}


def capabilities(scheduler: Scheduler | str) -> Capabilities:
    """What `ConditionalDiffusion` can do with a scheduler.

    Args:
        scheduler: A diffusers scheduler, a `make_scheduler` name, or the name of a class of diffusers.

    Raises:
        ValueError: A scheduler that is not supported; the message names those that are.

    Examples:
        >>> capabilities("euler").own_noise
        False
        >>> capabilities("DDIMScheduler").own_noise
        'eta > 0'
    """
    named = isinstance(scheduler, str)
    name = scheduler if named else _diffusers_name(scheduler)
    if name == "DPMSolverMultistepScheduler" and not named:
        stochastic = scheduler.config.algorithm_type.startswith("sde-")
        return SCHEDULERS["sde-dpmsolver++" if stochastic else "dpmsolver++"]
    for row in SCHEDULERS.values():
        if name in (row.name, row.scheduler):
            return row
    if named:
        raise ValueError(f"scheduler: got {name}, expected one of {', '.join(sorted(SCHEDULERS))}")
    raise ValueError(
        f"scheduler: got {type(scheduler).__module__}.{type(scheduler).__name__}, expected one of diffusers' classes "
        f"{', '.join(sorted(_MODULES))}, or one derived from these"
    )


def _diffusers_name(scheduler: Scheduler) -> str | None:
    """The supported class of diffusers that a scheduler is of, or derived from; None where there is none."""
    for kind in type(scheduler).__mro__:
        name = kind.__name__
        module = sys.modules.get(f"diffusers.schedulers.{_MODULES.get(name)}")  # there is no object of it otherwise
        if getattr(module, name, None) is kind:
            return name
    return None


def check_own_noise(row: Capabilities, eta: float) -> None:
    """Refuse noise given as a tensor where a scheduler would not use it.

    Args:
        row: What the scheduler can do.
        eta: DDIM's noise scale.

    Raises:
        ValueError: The scheduler adds none.
    """
    if not row.own_noise:
        takers = ", ".join(other.name for other in SCHEDULERS.values() if other.own_noise)
        raise ValueError(f"noise: {row.scheduler} is deterministic and adds none; those that accept a tensor: {takers}")
    if row.own_noise == "eta > 0" and eta == 0:
        raise ValueError("noise: eta=0 is deterministic and would ignore it; pass noise=None or set eta > 0")


def clip_of(scheduler: Scheduler) -> float | None:
    """What the estimate of the clean sample is clipped to, [-limit, limit]; None leaves it.

    That is what its configuration says, `clip_sample` and `clip_sample_range`. Classes that do not have these options
    have them from `make_scheduler`, or from the scheduler whose configuration they were made of, and clip as well.

    Args:
        scheduler: A diffusers scheduler.

    Examples:
        >>> clip_of(make_scheduler("euler", 10)), clip_of(make_scheduler("euler", 10, clip_sample=False))
        (1.0, None)
    """
    return scheduler.config.get("clip_sample_range", 1.0) if scheduler.config.get("clip_sample", False) else None


def prediction_type_of(scheduler: Scheduler) -> str:
    """What the denoiser predicts under this scheduler, after checking that all its options are supported.

    Args:
        scheduler: A diffusers scheduler.

    Raises:
        ValueError: An unsupported scheduler, prediction type or option.
    """
    row, config = capabilities(scheduler), scheduler.config
    for option, (values, why) in _ONLY.items():
        if option in config and config[option] not in values:
            expected = " or ".join(repr(value) for value in values)
            raise ValueError(f"scheduler.config.{option}: got {config[option]!r}, expected {expected}: {why}")
    kind = config.get("prediction_type", "flow")
    if kind not in row.prediction_types:
        raise ValueError(
            f"scheduler.config.prediction_type: got {kind!r}, expected one of {', '.join(row.prediction_types)}, "
            f"which {row.scheduler} supports"
        )
    if config.get("clip_sample") and not config.get("clip_sample_range", 1.0) > 0:
        raise ValueError(
            f"scheduler.config.clip_sample_range: got {config.clip_sample_range}, expected a positive number, or "
            "clip_sample=False"
        )
    if row.name == "sde-dpmsolver++" and config.solver_order > 2:
        raise ValueError(
            f"scheduler.config.solver_order: got {config.solver_order} for sde-dpmsolver++, expected 1 or 2: diffusers "
            "has the curvature of the third order with a wrong sign"
        )
    if config.get("rescale_betas_zero_snr") and kind == "epsilon":
        raise ValueError(
            "scheduler.config.rescale_betas_zero_snr: got True with prediction_type 'epsilon', but at zero signal the "
            "noise does not determine x_0; expected prediction_type 'sample' or 'v_prediction'"
        )
    if config.get("original_inference_steps", 0) > config.num_train_timesteps:
        raise ValueError(
            f"scheduler.config.original_inference_steps: got {config.original_inference_steps}, "
            f"expected at most {config.num_train_timesteps}, the trained timesteps"
        )
    return kind


def make_scheduler(name: str, steps: int, **options: Any) -> Scheduler:
    """A diffusers scheduler by name, with the defaults of this package.

    Those are: the cosine schedule, prediction_type "epsilon" ("flow" for a flow), the estimate of the clean sample
    clipped to [-1, 1], timesteps spaced evenly down from the last trained one ("trailing"), and a last step to the
    clean sample.

    Args:
        name: "ddpm" (Ho et al. 2020), "ddim" (Song et al. 2021), "dpmsolver++" or "sde-dpmsolver++" (Lu et al. 2022),
            "unipc" (Zhao et al. 2023), "deis" (Zhang and Chen 2023), "euler", "euler-ancestral" or "heun" (Karras et
            al. 2022), "lcm" (Luo et al. 2023), "tcd" (Zheng et al. 2024) or "flow" (Lipman et al. 2023, Esser et al.
            2024).
        steps: T, the number of trained timesteps.
        **options: Other options of the diffusers class, such as solver_order=3. Every scheduler takes clip_sample and
            clip_sample_range, whether its class has them or not: the range of the targets, see `data_range` of
            `ConditionalDiffusion`.

    Raises:
        ValueError: An unknown name or option, or one that is not supported.

    Examples:
        >>> make_scheduler("dpmsolver++", 10, prediction_type="v_prediction").config.solver_order
        2
    """
    if name not in SCHEDULERS:
        raise ValueError(f"name: got {name!r}, expected one of {', '.join(SCHEDULERS)}")
    if not isinstance(steps, SupportsIndex) or steps < 1:
        raise ValueError(f"steps: got {steps!r}, expected an integer of at least 1")
    row = SCHEDULERS[name]
    if row.prediction_types == ("flow",) and options.get("prediction_type") == "flow":
        del options["prediction_type"]  # ours: diffusers' class has no such option, as it predicts nothing else
    _, accepted = _class_of(row.scheduler)
    allowed = accepted - {"num_train_timesteps"} | {"clip_sample", "clip_sample_range"}
    if not options.keys() <= allowed:
        unknown = ", ".join(sorted(options.keys() - allowed))
        hint = "; it predicts the flow" if row.prediction_types == ("flow",) and "prediction_type" in options else ""
        free = {option for option in allowed if option not in _ONLY or len({*_ONLY[option][0]} - {None}) > 1}
        raise ValueError(f"options: got {unknown}, expected some of {', '.join(sorted(free))}{hint}")
    defaults = {
        "beta_schedule": "squaredcos_cap_v2",
        "clip_sample": True,
        "clip_sample_range": 1.0,
        "set_alpha_to_one": True,
        "timestep_spacing": "trailing",
        "original_inference_steps": steps,
        "algorithm_type": name,
    }
    chosen = {option: value for option, value in defaults.items() if option in allowed} | options
    return _made(row.scheduler, chosen | {"num_train_timesteps": steps})


def _class_of(name: str) -> tuple[Any, set[str]]:
    """A class of diffusers, and the options that it takes itself."""
    module = importlib.import_module(f"diffusers.schedulers.{_MODULES[name]}")  # slow, so only when asked
    kind = getattr(module, name)
    return kind, set(inspect.signature(kind.__init__).parameters) - {"self"}


def _made(name: str, options: Mapping[str, Any]) -> Scheduler:
    """A scheduler of a class, whose configuration also holds the options that the class does not know."""
    options = {option: value for option, value in options.items() if not option.startswith("_")}
    kind, accepted = _class_of(name)
    try:
        with torch.device("cpu"):  # whatever the default device is: diffusers mixes it with NumPy
            scheduler = kind(**{option: options[option] for option in options if option in accepted})
    except NotImplementedError as error:
        raise ValueError(f"options: got some that diffusers does not know: {error}") from error
    scheduler.register_to_config(**{option: options[option] for option in options if option not in accepted})
    prediction_type_of(scheduler)
    return cast(Scheduler, scheduler)


#: What a denoiser has learned, and what its samples are clipped to.
_LEARNED = (
    *("prediction_type", "beta_schedule", "beta_start", "beta_end", "trained_betas", "rescale_betas_zero_snr", "shift"),
    *("clip_sample", "clip_sample_range"),
)


def scheduler_like(scheduler: Scheduler, name: str) -> Scheduler:
    """Another scheduler by name, with the noise schedule, the prediction type and the clipping of this one.

    Args:
        scheduler: A supported scheduler.
        name: As of `make_scheduler`.

    Raises:
        ValueError: An unknown name, or one that does not support the prediction type.

    Examples:
        >>> scheduler_like(make_scheduler("ddim", 10, prediction_type="sample"), "euler").config.prediction_type
        'sample'
    """
    values = _configuration(scheduler)
    other = _configuration(make_scheduler(name, scheduler.config.num_train_timesteps))
    learned = {option: values[option] for option in _LEARNED if option in values and option in other}
    return _made(SCHEDULERS[name].scheduler, other | learned)


def described(scheduler: Scheduler) -> dict[str, Any] | None:
    """The configuration of a scheduler and the name of its class, for JSON; None of a class that diffusers has not.

    Args:
        scheduler: A supported scheduler.

    Examples:
        >>> scheduler_of(described(make_scheduler("euler", 10))).config.clip_sample
        True
    """
    name = capabilities(scheduler).scheduler
    return _configuration(scheduler) | {"_class_name": name} if type(scheduler) is _class_of(name)[0] else None


def _configuration(scheduler: Scheduler) -> dict[str, Any]:
    return json.loads(cast(Any, scheduler).to_json_string())


def scheduler_of(values: Mapping[str, Any]) -> Scheduler:
    """A scheduler of what `described` gave.

    Args:
        values: A configuration and the name of its class, `_class_name`.

    Raises:
        ValueError: The class is not supported.
    """
    name = values.get("_class_name")
    if name not in _MODULES:
        raise ValueError(f"scheduler: got {name!r}, expected one of {', '.join(sorted(_MODULES))}")
    return _made(name, values)
