"""Configuration of registers, and where version 0.1 had some of its keys."""

from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config.strict import STRICT
from prvr.errors import InputError


@dataclass(frozen=True, config=STRICT)
class RegisterConfig:
    """Global register tokens that every block sees as extra keys and values (DreamPRVR)."""

    kind: Literal["none", "pooled", "condition", "prior", "diffusion"] = "none"
    """prior: where the diffusion would start, without condition and denoiser."""
    num: int = Field(default=8, ge=1, le=4096)
    steps: int = Field(default=10, ge=1, le=10_000)
    """Diffusion steps trained."""
    sampling_steps: int | None = Field(default=None, ge=1, le=10_000)
    """Steps taken when sampling, at most `steps`; None = all of them."""
    scheduler: Literal[
        "ddim",
        "ddpm",
        "dpmsolver++",
        "sde-dpmsolver++",
        "unipc",
        "deis",
        "euler",
        "euler-ancestral",
        "heun",
        "lcm",
        "tcd",
        "flow",
    ] = "ddim"
    """The sampler, by its name in `regdiff.SCHEDULERS`. The denoiser predicts the noise, with flow the flow."""
    clip: bool = True
    """Whether each step clips its estimate of the clean registers to [-1, 1]."""
    variance: Literal["posterior", "beta"] = "posterior"
    """Variance of the noise that a step adds: that of the posterior, or beta, with scheduler='ddpm' alone."""
    layers: int = Field(default=2, ge=1, le=256)
    start: Literal["prior_mean", "prior_sample", "gaussian"] = "prior_sample"
    """Where the diffusion starts: at the prior's mean, at a sample of the prior, or at N(0, I) without a prior. With
    kind='prior' these are the registers themselves."""
    loss_timesteps: Literal["all", "random"] = "all"
    """The diffusion loss is the mean over all timesteps, or takes one random timestep per video."""

    @model_validator(mode="after")
    def _consistent(self) -> "RegisterConfig":
        if self.sampling_steps is not None and self.sampling_steps > self.steps:
            raise InputError(f"sampling_steps={self.sampling_steps} is beyond steps={self.steps}, the trained ones")
        if self.variance == "beta" and self.scheduler != "ddpm":
            raise InputError(f"variance='beta' needs scheduler='ddpm', got {self.scheduler!r}")
        if self.kind == "prior" and self.start == "gaussian":
            raise InputError("kind='prior' needs start='prior_sample' or 'prior_mean': 'gaussian' has no prior")
        return self

    @property
    def prediction_type(self) -> str:
        """What the denoiser predicts, as `regdiff.make_scheduler` calls it."""
        return "flow" if self.scheduler == "flow" else "epsilon"

    @property
    def scheduler_options(self) -> dict[str, Any]:
        """The options of `regdiff.make_scheduler` that say how a step clips and how much noise it adds."""
        return {"clip_sample": self.clip} | ({"variance_type": "fixed_large"} if self.variance == "beta" else {})

    @property
    def provides(self) -> tuple[str, ...]:
        """What losses may ask of these registers, see `prvr.config.LOSSES`."""
        diffusion = ("diffusion",) if self.kind == "diffusion" else ()
        prior = ("prior",) if self.kind in ("diffusion", "prior") and self.start != "gaussian" else ()
        return diffusion + prior


_MOVED: dict[str, tuple[str, dict[Any, str]]] = {
    "noise": ("register_noise", {}),
    "time_table": ("register_times", {}),
    "float32_constants": ("register_constants", {True: "float32", False: "float64"}),
}
"""Keys of `registers` in version 0.1, their place in `compat` today, and the values that changed."""


def read_moved(values: Any) -> Any:
    """The values of a model with the keys of version 0.1 in their place of today; a key of today wins."""
    registers = values.get("registers") if isinstance(values, dict) else None
    if not isinstance(registers, dict) or not _MOVED.keys() & registers.keys():
        return values
    registers, compat = dict(registers), {}
    for old in _MOVED.keys() & registers.keys():
        new, renamed = _MOVED[old]
        value = registers.pop(old)
        compat[new] = renamed.get(value, value) if isinstance(value, bool) else value
    return values | {"registers": registers, "compat": compat | dict(values.get("compat", {}))}
