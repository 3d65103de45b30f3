"""A small pipeline with random weights, and what it reads."""

import torch
from diffusers import DDPMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, LCMScheduler

from regdiff import make_register_generator
from regdiff.pipeline import RegisterPipeline

DIM, NUM, ROWS, LENGTH, STEPS = 8, 3, 4, 6, 6
SWAPS = [DDPMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, LCMScheduler]


def exchanged(kind, scheduler):
    """As in diffusers; LCM alone wants to know that this model has fewer than its 50 timesteps."""
    options = {"original_inference_steps": STEPS} if kind is LCMScheduler else {}
    return kind.from_config(scheduler.config, **options)


def build(**options) -> RegisterPipeline:
    model = make_register_generator(DIM, NUM, 2, steps=STEPS, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    pipeline = RegisterPipeline(model)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def features(**options) -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, DIM, **options)
