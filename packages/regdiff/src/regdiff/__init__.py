"""regdiff: differentiable conditional diffusion of small tensors, with the schedulers of diffusers."""

from regdiff.condition import ConditionGenerator, NoCondition, SegmentAverages, adaptive_average_pool
from regdiff.denoiser import RegisterDenoiser
from regdiff.diffusion import ConditionalDiffusion, Denoiser
from regdiff.gaussian import AttentionReadout, Gaussian, GeneralizedPooling, PriorSampler, TextualPerturbation
from regdiff.losses import KLToTarget
from regdiff.noise import NoiseSource
from regdiff.registers import RegisterGenerator, RegisterOptions, Registers, Sampling, make_register_generator
from regdiff.schedule import Scheduler
from regdiff.schedulers import SCHEDULERS, Capabilities, capabilities, make_scheduler
from regdiff.transformer import TransformerDenoiser

__all__ = [
    "SCHEDULERS",
    "AttentionReadout",
    "Capabilities",
    "ConditionGenerator",
    "ConditionalDiffusion",
    "Denoiser",
    "Gaussian",
    "GeneralizedPooling",
    "KLToTarget",
    "NoCondition",
    "NoiseSource",
    "PriorSampler",
    "RegisterDenoiser",
    "RegisterGenerator",
    "RegisterOptions",
    "Registers",
    "Sampling",
    "Scheduler",
    "SegmentAverages",
    "TextualPerturbation",
    "TransformerDenoiser",
    "adaptive_average_pool",
    "capabilities",
    "make_register_generator",
    "make_scheduler",
]
