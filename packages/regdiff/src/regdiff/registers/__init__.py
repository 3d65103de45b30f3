"""Register tokens of a sequence (DreamPRVR): a condition, a prior, a short diffusion from it, and their parts."""

from regdiff.registers.condition import ConditionGenerator, NoCondition, SegmentAverages, adaptive_average_pool
from regdiff.registers.denoiser import RegisterDenoiser
from regdiff.registers.gaussian import (
    AttentionReadout,
    Gaussian,
    GeneralizedPooling,
    PriorSampler,
    TextualPerturbation,
)
from regdiff.registers.generator import (
    RegisterGenerator,
    RegisterOptions,
    Registers,
    Sampling,
    make_register_generator,
)
from regdiff.registers.noise import NoiseSource

__all__ = [
    "AttentionReadout",
    "ConditionGenerator",
    "Gaussian",
    "GeneralizedPooling",
    "NoCondition",
    "NoiseSource",
    "PriorSampler",
    "RegisterDenoiser",
    "RegisterGenerator",
    "RegisterOptions",
    "Registers",
    "Sampling",
    "SegmentAverages",
    "TextualPerturbation",
    "adaptive_average_pool",
    "make_register_generator",
]
