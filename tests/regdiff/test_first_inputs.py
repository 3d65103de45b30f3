"""First inputs: outputs of diffusers' models, schedulers by name, integers, shapes, and data beyond [-1, 1]."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from diffusers.models.unets.unet_1d import UNet1DOutput
from torch import nn

from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler
from regdiff.registers import RegisterDenoiser


def zero(sample, timestep, condition):
    return 0 * sample


def build(denoiser=zero, steps=10, **options):
    return ConditionalDiffusion(denoiser, make_scheduler("ddim", steps), eta=0.0, **options)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: UNet1DOutput(sample=x),
        lambda x: (x,),
        lambda x: {"sample": x},
        lambda x: SimpleNamespace(sample=x),
    ],
)
def test_outputs_of_models_of_diffusers_are_taken(wrap):
    x = torch.randn(2, 3).clamp(-1, 1)
    ours, plain = build(lambda s, t, c: wrap(torch.tanh(s))), build(lambda s, t, c: torch.tanh(s))
    assert torch.equal(ours.sample(x, None, 4), plain.sample(x, None, 4))
    times, noise = torch.tensor([1, 7]), torch.randn(2, 3)
    assert torch.equal(ours.loss(x, None, noise, times), plain.loss(x, None, noise, times))


def test_a_scheduler_by_name_has_the_timesteps_of_the_denoiser():
    diffusion = ConditionalDiffusion(RegisterDenoiser(4, steps=12), "euler")
    assert (diffusion.capabilities.name, diffusion.num_train_timesteps) == ("euler", 12)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_default_device_changes_no_step(name):
    x, expected = torch.randn(2, 3), ConditionalDiffusion(zero, make_scheduler(name, 17))
    with torch.device("meta"):
        diffusion = ConditionalDiffusion(nn.Linear(3, 3), make_scheduler(name, 17), data_range=(-1.0, 1.0))
        assert diffusion.stages(7) == expected.stages(7)
        diffusion.denoiser = zero
        assert diffusion.add_noise(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2).long()).is_meta
    plain = diffusion.with_scheduler(name)
    plain.data_low = plain.data_high = None
    ends = [each.sample(x, None, 7, generator=torch.Generator().manual_seed(0)) for each in (plain, expected)]
    assert torch.equal(*ends)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_another_sampler_by_name_keeps_what_was_learned(name):
    flow = "flow" in SCHEDULERS[name].prediction_types
    betas = {"beta_schedule": "linear", "beta_start": 0.01, "beta_end": 0.2}
    own = {"shift": 2.0} if flow else betas | {"prediction_type": "v_prediction"}
    options = own | {"clip_sample_range": 3.0}
    diffusion = ConditionalDiffusion(zero, make_scheduler("flow" if flow else "ddim", 12, **options))
    ours, plain = diffusion.with_scheduler(name), diffusion.with_scheduler(make_scheduler(name, 12, **options))
    assert {key: ours.scheduler.config[key] for key in options} == options
    x = torch.randn(2, 3)
    ends = [each.sample(x, None, 5, generator=torch.Generator().manual_seed(0)) for each in (ours, plain)]
    assert torch.equal(*ends)


def test_data_beyond_what_samples_are_clipped_to_warn_once():
    diffusion = build()
    with pytest.warns(
        UserWarning, match=r"target: got values up to 2.8, but samples are clipped to \[-1, 1\]; .*data_range"
    ):
        diffusion.loss(torch.full((2, 1), 2.8), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diffusion.loss(torch.full((2, 1), 2.8), None)
        build().loss(torch.full((2, 1), 2.8), None, check_range=False)
        build().loss(torch.full((2, 1), 1.0), None)
    with pytest.warns(UserWarning, match=r"target: got values up to 2 after data_range is mapped to \[-1, 1\]"):
        build(data_range=(-1.0, 3.0)).loss(torch.full((2, 1), 5.0), None)


def test_a_range_maps_targets_samples_and_chains_and_is_saved(tmp_path):
    low, high = torch.tensor([-1.0, 0.0, 10.0]), torch.tensor([1.0, 8.0, 11.0])
    seen = []

    def oracle(sample, timestep, condition, mask=None):
        return torch.tensor([0.0, 0.5, -1.0]).expand_as(sample)

    scheduler = make_scheduler("ddim", 10, prediction_type="sample")
    diffusion = ConditionalDiffusion(oracle, scheduler, eta=0.0, data_range=(low, high))
    clean = torch.tensor([[[0.0, 6.0, 10.0]]])
    start = torch.randn(1, 1, 3)
    torch.testing.assert_close(diffusion.sample(start, None), clean)
    chain = diffusion.sample(start, None, 3, return_chain=True, callback=lambda i, t, x: seen.append(x))
    torch.testing.assert_close(chain, (torch.stack(seen) * (high - low) + low + high) / 2)
    assert diffusion.loss(clean, None) < 1e-12
    mask = torch.tensor([[True, False, True], [False, True, True]])
    chain = diffusion.sample(torch.randn(2, 3, 3), None, 3, mask=mask, return_chain=True)
    assert not chain[:, ~mask].any()
    torch.testing.assert_close(chain[-1][mask], clean.flatten().expand(2, 3, 3)[mask])
    torch.testing.assert_close(diffusion.with_scheduler("euler").sample(start, None), clean)
    diffusion.save_pretrained(tmp_path)
    loaded = ConditionalDiffusion.from_pretrained(tmp_path, denoiser=oracle)
    assert all(torch.equal(*ends) for ends in zip(loaded.data_range, (low, high), strict=True))


def test_constant_coordinates_are_zero_and_come_back_exactly(tmp_path):
    """Pixels that are always black, grippers that never move: low and high are the data's own."""
    data = torch.randn(64, 5) * 3
    data[:, 1], data[:, 3] = 0.1, -7e4
    seen = []

    def denoiser(sample, timestep, condition):
        seen.append(sample)
        return 0.3 * sample

    scheduler = make_scheduler("ddim", 10, prediction_type="sample")
    diffusion = ConditionalDiffusion(denoiser, scheduler, data_range=(data.amin(0), data.amax(0)))
    diffusion.save_pretrained(tmp_path)
    for each in (diffusion, ConditionalDiffusion.from_pretrained(tmp_path, denoiser=denoiser)):
        clean = each.add_noise(data, torch.zeros_like(data), torch.zeros(64, dtype=torch.long))
        assert not clean[:, [1, 3]].any()
        assert clean[:, [0, 2, 4]].abs().amax(0).min() > 0.9
        samples = each.sample(torch.randn(8, 5), None)
        assert torch.equal(samples[:, [1, 3]], data[:8, [1, 3]])
    with pytest.warns(UserWarning, match="target: got values up to 4 after data_range is mapped"):
        diffusion.loss(data + torch.tensor([0.0, 2.0, 0.0, 0.0, 0.0]), None)  # no longer constant
