"""regdiff: differentiable conditional diffusion of small tensors, with the schedulers of diffusers."""

from typing import Any

from regdiff import registers
from regdiff.diffusion import ConditionalDiffusion, Denoiser
from regdiff.losses import KLToTarget
from regdiff.schedule import Scheduler, karras_timesteps
from regdiff.schedulers import SCHEDULERS, Capabilities, capabilities, make_scheduler
from regdiff.transformer import TransformerDenoiser

__all__ = [
    "SCHEDULERS",
    "Capabilities",
    "ConditionalDiffusion",
    "Denoiser",
    "KLToTarget",
    "Scheduler",
    "TransformerDenoiser",
    "capabilities",
    "karras_timesteps",
    "make_scheduler",
    "registers",
]


def __getattr__(name: str) -> Any:
    """A name of `regdiff.registers`, as it was imported from here before that namespace was made."""
    if name in registers.__all__:
        return getattr(registers, name)
    raise AttributeError(f"module 'regdiff' has no attribute {name!r}")
