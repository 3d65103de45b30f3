"""Schedulers by name: their numbers, every cell of the capability table, and every refusal."""

import itertools

import pytest
import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from diffusion_textbook import cosine_abar
from hypothesis import given
from hypothesis import strategies as st

from regdiff import SCHEDULERS, ConditionalDiffusion, capabilities, karras_timesteps, make_scheduler
from regdiff.schedule import schedule_of, spaced_timesteps
from regdiff.schedulers import prediction_type_of

NAMES = list(SCHEDULERS)
VP = [name for name in NAMES if "flow" not in SCHEDULERS[name].prediction_types]


def half(x, timestep, condition):
    return 0.5 * x


@pytest.mark.parametrize("steps", [10, 50, 1000])
@pytest.mark.parametrize("name", VP)
def test_the_copy_in_use_has_a_float64_product(name, steps):
    """It agrees with abar of the textbook to 1e-12."""
    diffusion = ConditionalDiffusion(half, make_scheduler(name, steps))
    book = torch.tensor(cosine_abar(steps), dtype=torch.float64)
    torch.testing.assert_close(diffusion.alphas_cumprod, book, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_a_flow_has_integer_timesteps_up_to_pure_noise(shift):
    schedule = schedule_of(make_scheduler("flow", 50, shift=shift))
    u = torch.arange(1, 51, dtype=torch.float64) / 50
    torch.testing.assert_close(schedule.sigma, shift * u / (1 + (shift - 1) * u), rtol=1e-15, atol=0)
    torch.testing.assert_close(schedule.signal, 1 - schedule.sigma, rtol=0, atol=1e-16)
    assert schedule.sigma[-1] == 1
    # diffusers has the same noise levels where it asks for all timesteps
    own = FlowMatchEulerDiscreteScheduler(num_train_timesteps=50, shift=shift).sigmas.double().flip(0)
    torch.testing.assert_close(schedule.sigma, own, rtol=1e-6, atol=0)
    with pytest.raises(AttributeError, match=r"a flow has none; schedule\.signal"):
        _ = ConditionalDiffusion(half, make_scheduler("flow", 4)).alphas_cumprod


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 10, 17, 100])
def test_every_number_of_steps_is_spaced_well(name, steps):
    scheduler = make_scheduler(name, steps)
    for num_steps in range(1, steps):
        ladder = spaced_timesteps(scheduler, num_steps)
        assert len(ladder) == num_steps
        assert ladder == sorted(set(ladder), reverse=True)
        assert ladder[0] == steps - 1
        assert ladder[-1] >= 0
        assert all(type(t) is int for t in ladder)


@pytest.mark.parametrize("name", NAMES)
def test_make_scheduler_has_our_defaults_and_takes_options(name, unchecked):
    scheduler = make_scheduler(name, 30)
    assert scheduler.config.num_train_timesteps == 30
    assert capabilities(scheduler) is SCHEDULERS[name] is capabilities(name)
    expected = {
        "beta_schedule": "squaredcos_cap_v2",
        "prediction_type": "epsilon",
        "clip_sample": True,
        "set_alpha_to_one": True,
        "timestep_spacing": "trailing",
    }
    assert all(scheduler.config[option] == value for option, value in expected.items() if option in scheduler.config)
    kind = SCHEDULERS[name].prediction_types[-1]
    assert prediction_type_of(make_scheduler(name, 30, prediction_type=kind)) == kind


@given(name=st.sampled_from(["ddim", "flow"]), steps=st.integers(2, 300), data=st.data())
def test_karras_spacing_gives_trained_timesteps_near_its_levels(name, steps, data):
    schedule = schedule_of(make_scheduler(name, steps))
    count = data.draw(st.integers(2, steps))
    ladder = karras_timesteps(schedule, count)
    assert len(ladder) == count
    assert all(steps > a > b >= 0 for a, b in itertools.pairwise(ladder))
    s = schedule.sigma / schedule.signal
    ends = min(80.0, s[-1].item()), max(0.02, s[0].item())
    ramp = torch.linspace(*(end ** (1 / 7) for end in ends), count, dtype=torch.float64) ** 7
    free = [int((s.log() - level).abs().argmin()) for level in ramp.log()]
    if len(set(free)) == count:
        assert ladder == free


# The capability table, cell by cell.


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v_prediction", "flow", "original_sample", "score"])
@pytest.mark.parametrize("name", NAMES)
def test_cell_prediction_type(name, kind):
    row = SCHEDULERS[name]
    if kind in row.prediction_types:
        diffusion = ConditionalDiffusion(half, make_scheduler(name, 6, prediction_type=kind))
        assert diffusion.prediction_type == kind
        assert diffusion.capabilities is row
        assert diffusion.sample(torch.randn(2, 3), None).isfinite().all()
        assert diffusion.loss(torch.randn(2, 3), None).isfinite()
    else:
        with pytest.raises(ValueError, match="predict"):
            make_scheduler(name, 6, prediction_type=kind)


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_cell_own_noise_and_stochastic(name, eta):
    row = SCHEDULERS[name]
    diffusion = ConditionalDiffusion(half, make_scheduler(name, 6), eta=eta)
    x, noise = torch.randn(2, 3), torch.randn(2, 3)

    def holds(cell):
        return eta > 0 if cell == "eta > 0" else cell

    first, second = (diffusion.sample(x, None, 4) for _ in range(2))
    assert torch.equal(first, second) != holds(row.stochastic)
    seeds = [diffusion.sample(x, None, 4, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*seeds)
    if holds(row.own_noise):
        given = [diffusion.sample(x, None, 4, noise=n) for n in (noise, noise.expand(4, 2, 3), noise + 1)]
        assert torch.equal(given[0], given[1])
        assert not torch.equal(given[0], given[2])
    else:
        with pytest.raises(ValueError, match=r"noise: .*deterministic"):
            diffusion.sample(x, None, 4, noise=noise)


@pytest.mark.parametrize("name", NAMES)
def test_cell_custom_timesteps_and_truncated_start(name):
    """The denoiser sees exactly the listed timesteps, in order, and x of the form that `add_noise` gives."""
    assert SCHEDULERS[name].custom_timesteps
    assert SCHEDULERS[name].truncated_start
    seen = []

    def denoiser(x, timestep, condition):
        seen.append((timestep.tolist(), x))
        return half(x, timestep, condition)

    diffusion = ConditionalDiffusion(denoiser, make_scheduler(name, 10))
    start = diffusion.add_noise(torch.zeros(2, 3), torch.randn(2, 3), torch.tensor([6, 6]))
    diffusion.sample(start, None, timesteps=(6, 5, 1))
    calls = [[6, 6], [5, 5], [5, 5], [1, 1]] if SCHEDULERS[name].calls == 2 else [[6, 6], [5, 5], [1, 1]]
    assert [timestep for timestep, _ in seen] == calls
    assert torch.equal(seen[0][1], start)
