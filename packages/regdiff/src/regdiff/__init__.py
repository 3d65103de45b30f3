"""regdiff: conditional diffusion of a few register tokens, on diffusers schedulers, differentiable throughout."""

from regdiff.condition import ConditionGenerator, adaptive_average_pool
from regdiff.denoiser import RegisterDenoiser
from regdiff.diffusion import ConditionalDiffusion, Denoiser
from regdiff.gaussian import AttentionReadout, Gaussian, GeneralizedPooling, PriorSampler, TextualPerturbation
from regdiff.registers import RegisterGenerator, Registers

__all__ = [
    "AttentionReadout",
    "ConditionGenerator",
    "ConditionalDiffusion",
    "Denoiser",
    "Gaussian",
    "GeneralizedPooling",
    "PriorSampler",
    "RegisterDenoiser",
    "RegisterGenerator",
    "Registers",
    "TextualPerturbation",
    "adaptive_average_pool",
]
