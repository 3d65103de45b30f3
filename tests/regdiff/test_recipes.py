"""Recipes of docs/regdiff.md that need no code of ours: averaged weights, one step of a chain, straightened flows."""

import copy

import pytest
import torch
from torch import nn

from regdiff import ConditionalDiffusion, make_scheduler

T = 20


class Net(nn.Module):
    """A denoiser of vectors (b, 2)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, sample, timestep, condition):
        angle = timestep[:, None] * (torch.pi / 2 / T)
        return self.layers(torch.cat([sample, angle.sin(), angle.cos()], dim=-1))


def fit(loss, module, steps=300):
    optimizer = torch.optim.Adam(module.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()


def draw(count):
    """Four points, not on the axes."""
    return 0.7 * torch.sign(torch.randn(count, 2)) + 0.05 * torch.randn(count, 2)


def trained(name, kind):
    diffusion = ConditionalDiffusion(Net(), make_scheduler(name, T, prediction_type=kind), eta=0.0)
    fit(lambda: diffusion.loss(draw(256), None), diffusion)
    return diffusion.requires_grad_(False)


@pytest.mark.parametrize("recipe", ["chain", "flow"])
def test_one_step_learns_what_the_chain_makes_of_a_start(recipe):
    """By regression (Luhman and Luhman 2021), or by a second flow on the pairs (Liu et al. 2023)."""
    teacher = trained("flow", "flow") if recipe == "flow" else trained("ddim", "v_prediction")
    starts = torch.randn(4096, 2)
    ends = teacher.sample(starts, None)

    def loss():
        rows = torch.randint(len(starts), (256,))
        if recipe == "flow":
            return student.loss(ends[rows], None, noise=starts[rows])
        return (student.sample(starts[rows], None, num_steps=1) - ends[rows]).square().mean()

    options = {} if recipe == "flow" else {"prediction_type": "sample", "clip_sample": False}
    scheduler = make_scheduler("flow" if recipe == "flow" else "ddim", T, **options)
    student = ConditionalDiffusion(copy.deepcopy(teacher.denoiser), scheduler, eta=0.0).requires_grad_(True)
    fit(loss, student)
    fresh = torch.randn(1000, 2)
    with torch.no_grad():
        chain = teacher.sample(fresh, None)
        errors = [(each.sample(fresh, None, 1) - chain).square().mean().item() for each in (teacher, student)]
    assert errors[1] < 0.25 * errors[0]
