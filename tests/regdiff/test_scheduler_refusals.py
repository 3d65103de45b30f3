"""Schedulers and options that are refused, those that are odd but work, and schedulers that were used before."""

import math

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_dpmsolver_singlestep import DPMSolverSinglestepScheduler
from diffusion_textbook import cosine_abar
from torch import nn

from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler


def half(x, timestep, condition):
    return 0.5 * x


def test_lcm_refuses_more_steps_than_it_was_distilled_for():
    diffusion = ConditionalDiffusion(half, make_scheduler("lcm", 100, original_inference_steps=20))
    for num_steps in (21, 100, None):
        with pytest.raises(ValueError, match=rf"num_steps: got {num_steps} \(of 100\), expected 1 to 20"):
            diffusion.sample(torch.randn(1, 2), None, num_steps)
    assert diffusion.sample(torch.randn(1, 2), None, 20).shape == (1, 2)


@pytest.mark.parametrize("variance_type", ["fixed_small", "fixed_small_log", "fixed_large"])
def test_fixed_variances_of_ddpm(variance_type):
    """beta tilde for the small ones, beta for the large one, as the variance of a step."""
    abar = cosine_abar(20)
    beta = 1 - abar[10] / abar[9]
    scheduler = make_scheduler("ddpm", 20, prediction_type="sample", variance_type=variance_type)
    diffusion = ConditionalDiffusion(lambda x, t, c: 0 * x, scheduler)
    x, seed = torch.zeros(2, 3, dtype=torch.float64), torch.Generator().manual_seed(0)
    after = diffusion.sample(x, None, timesteps=[10, 9], generator=seed, return_chain=True)[0]
    z = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = beta * (1 - abar[9]) / (1 - abar[10])
    std = math.sqrt(beta if variance_type == "fixed_large" else small)
    torch.testing.assert_close(after, std * z, rtol=1e-9, atol=1e-12)


def test_zero_terminal_snr_works_without_epsilon():
    for kind in ("sample", "v_prediction"):
        for name in ("ddim", "ddpm", "dpmsolver++", "unipc", "euler", "euler-ancestral", "lcm", "tcd"):
            scheduler = make_scheduler(name, 20, prediction_type=kind, rescale_betas_zero_snr=True)
            assert ConditionalDiffusion(half, scheduler).sample(torch.randn(2, 3), None, 5).isfinite().all()


def test_timesteps_without_signal_are_refused_where_a_solver_divides_by_it():
    scheduler = make_scheduler("euler", 3, trained_betas=[0.1, 0.2, 1.0], prediction_type="sample")
    diffusion = ConditionalDiffusion(half, scheduler)
    with pytest.raises(ValueError, match=r"EulerDiscreteScheduler has no finite step at 2, where the signal is 0"):
        diffusion.sample(torch.randn(2, 3), None)
    assert diffusion.sample(torch.randn(2, 3), None, timesteps=[1, 0]).isfinite().all()


def test_a_used_scheduler_works_and_is_not_changed():
    """Whatever a scheduler went through, sampling starts afresh on a copy."""
    x = torch.randn(2, 3)
    for name in SCHEDULERS:
        fresh, used = make_scheduler(name, 10), make_scheduler(name, 10)
        used.set_timesteps(5)
        first = used.timesteps[0]
        used.scale_model_input(x, first) if "euler" in name else None
        used.step(x, int(first) if name in ("ddpm", "ddim", "lcm", "tcd") else first, x)
        before = {key: repr(value) for key, value in vars(used).items()}
        ends = [
            ConditionalDiffusion(half, scheduler).sample(x, None, 6, generator=torch.Generator().manual_seed(0))
            for scheduler in (fresh, used)
        ]
        assert torch.equal(*ends)
        assert before == {key: repr(value) for key, value in vars(used).items()}


class Plain(DDIMScheduler):
    """Derived, and the same."""


def test_a_derived_scheduler_is_what_it_is_derived_from(tmp_path):
    x, config = torch.randn(4, 3), make_scheduler("ddim", 10).config
    ours, plain = (ConditionalDiffusion(nn.Linear(3, 3), kind.from_config(config)) for kind in (DDIMScheduler, Plain))
    for each in (ours, plain):
        each.denoiser = half
    first, second = (each.sample(x, None, generator=torch.Generator().manual_seed(0)) for each in (ours, plain))
    assert torch.equal(first, second)
    assert plain.capabilities.name == "ddim"
    plain.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the scheduler is not part of diffusers and was not saved; pass scheduler="):
        ConditionalDiffusion.from_pretrained(tmp_path, denoiser=half)
    loaded = ConditionalDiffusion.from_pretrained(tmp_path, denoiser=half, scheduler=Plain.from_config(config))
    assert type(loaded.scheduler) is Plain
    assert torch.equal(loaded.sample(x, None, generator=torch.Generator().manual_seed(0)), second)


@pytest.mark.parametrize(
    "change",
    [lambda x: x.clamp(-50, 50), lambda x: x + 1e-3 * torch.rand(x.shape)],
)
@pytest.mark.parametrize("name", ["ddim", "euler", "dpmsolver++"])
def test_a_derived_step_that_is_not_linear_is_refused(name, change):
    scheduler = make_scheduler(name, 10)

    class Other(type(scheduler)):
        def step(self, *args, **kwargs):
            (x, *rest) = super().step(*args, **kwargs)
            return (change(x), *rest)

    diffusion = ConditionalDiffusion(half, Other.from_config(scheduler.config))
    with pytest.raises(ValueError, match=r"scheduler: the step of Other is not linear in the sample"):
        diffusion.sample(torch.randn(2, 3), None, 4)


def test_a_foreign_scheduler_of_a_known_name_is_refused():
    foreign = type("DDIMScheduler", (DPMSolverSinglestepScheduler,), {})
    with pytest.raises(
        ValueError, match=rf"scheduler: got {__name__}.DDIMScheduler, expected one of diffusers' classes"
    ):
        ConditionalDiffusion(half, foreign.from_config(make_scheduler("ddim", 10).config))
