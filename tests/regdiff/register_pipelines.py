"""A small pipeline with random weights, and what it reads."""

import torch
from diffusers import DDPMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, LCMScheduler
from torch import nn

from regdiff.pipeline import RegisterPipeline
from regdiff.registers import make_register_generator

DIM, NUM, ROWS, LENGTH, STEPS = 8, 3, 4, 6, 6
SWAPS = [DDPMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, LCMScheduler]


def exchanged(kind, scheduler):
    """As in diffusers; LCM alone wants to know that this model has fewer than its 50 timesteps."""
    options = {"original_inference_steps": STEPS} if kind is LCMScheduler else {}
    return kind.from_config(scheduler.config, **options)


def spread_weights(module: nn.Module, std: float = 0.4) -> nn.Module:
    """Random weights and biases everywhere, so that no term is hidden by a zero; in eval mode."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=std)
    return module.eval()


def build(**options) -> RegisterPipeline:
    pipeline = RegisterPipeline(spread_weights(make_register_generator(DIM, NUM, 2, steps=STEPS, **options)).train())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def in_hub_cache(module, cache):
    """Saves a module as huggingface_hub keeps a download; the arguments of `from_pretrained` that find it there."""
    repository, commit = cache / "models--someone--registers", "0" * 40
    module.save_pretrained(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return {"pretrained_model_name_or_path": "someone/registers", "cache_dir": cache, "local_files_only": True}


def features(**options) -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, DIM, **options)
