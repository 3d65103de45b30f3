"""regdiff: differentiable conditional diffusion of small tensors, with the schedulers of diffusers.

`regdiff.registers`, DreamPRVR's register tokens, is imported when it is first used.
"""

from importlib import import_module
from types import ModuleType

from regdiff.diffusion import ConditionalDiffusion, Denoiser
from regdiff.losses import KLToTarget
from regdiff.masks import checked
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
    "checked",
    "karras_timesteps",
    "make_scheduler",
]


def __getattr__(name: str) -> ModuleType:
    if name == "registers":
        return import_module("regdiff.registers")
    raise AttributeError(f"module 'regdiff' has no attribute {name!r}")
