"""Every scheduler against the textbook of this folder: steps, chains, orders, and the marginals of a Gaussian."""

import math
from statistics import NormalDist

import pytest
import torch
from diffusion_textbook import Gaussian, affine_moments, chain, levels, predicted
from hypothesis import given
from hypothesis import strategies as st

from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler
from regdiff.noise import standard_normal

TARGET = Gaussian()
#: Names with options: every sampler of which the textbook has the formulas, in each of its forms. UniPC and DEIS are
#: compared with diffusers' own loop, in test_diffusers_loop.py.
SAMPLERS = [
    ("ddpm", {}),
    ("ddim", {"eta": 0.0}),
    ("ddim", {"eta": 0.4}),
    ("ddim", {"eta": 1.0}),
    ("dpmsolver++", {"order": 1}),
    ("dpmsolver++", {"order": 2}),
    ("dpmsolver++", {"order": 2, "solver_type": "heun"}),
    ("dpmsolver++", {"order": 3}),
    ("sde-dpmsolver++", {"order": 1}),
    ("sde-dpmsolver++", {"order": 2}),
    ("sde-dpmsolver++", {"order": 2, "solver_type": "heun"}),
    ("euler", {}),
    ("euler-ancestral", {}),
    ("heun", {}),
    ("lcm", {}),
    ("tcd", {"eta": 0.0}),
    ("tcd", {"eta": 0.3}),
    ("tcd", {"eta": 1.0}),
    ("flow", {}),
]
EACH = pytest.mark.parametrize(("name", "options"), SAMPLERS, ids=str)


def build(name, steps, denoise, prediction_type=None, **options):
    """A diffusion whose denoiser says what follows from `denoise(x, signal, sigma)`, the clean sample."""
    kind = prediction_type or SCHEDULERS[name].prediction_types[0]
    signal, sigma = (torch.tensor(values, dtype=torch.float64) for values in levels(name, steps))

    def denoiser(x, timestep, condition):
        at = [values[timestep].to(x.dtype).view(-1, *(1,) * (x.ndim - 1)) for values in (signal, sigma)]
        return predicted(kind, x, denoise(x, *at), *at)

    known = {"order": "solver_order", "solver_type": "solver_type", "scaling": "timestep_scaling"}
    chosen = {known[key]: value for key, value in options.items() if key in known} | {"clip_sample": False}
    if options.get("full_order"):
        chosen["lower_order_final"] = False
    scheduler = make_scheduler(name, steps, prediction_type=kind, **chosen)
    return ConditionalDiffusion(denoiser, scheduler, eta=options.get("eta", 1.0))


def ladder(steps, count):
    return [round(steps * (count - i) / count) - 1 for i in range(count)]


@EACH
@pytest.mark.parametrize(("steps", "count"), [(5, 4), (10, 9), (50, 20), (1000, 12)])
def test_every_chain_is_the_textbook_one(name, options, steps, count):
    """A nonlinear denoiser of every prediction type, noise replayed: each x of the chain, not only the last."""
    for kind in SCHEDULERS[name].prediction_types:
        diffusion = build(name, steps, lambda x, a, s: torch.tanh(x + a - s), kind, **options)
        x = torch.randn(3, 2, dtype=torch.float64)
        seed, times = torch.Generator().manual_seed(7), ladder(steps, count)
        noises = [standard_normal(x.shape, x, seed) for _ in times]
        seed.manual_seed(7)
        ours = diffusion.sample(x, None, timesteps=times, generator=seed, return_chain=True)
        theirs = chain(name, steps, times, x, lambda x, a, s: torch.tanh(x + a - s), noises, **options)
        # The first step of a cosine schedule multiplies the rounding of eps by 1 / signal.
        amplified = 1.0 if kind in ("sample", "flow") else 1 / levels(name, steps)[0][times[0]]
        limit = amplified * 1e-13 + 1e-9
        torch.testing.assert_close(ours, torch.stack(theirs), rtol=limit, atol=limit)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_an_oracle_recovers_the_clean_sample(name):
    """Whatever the prediction type, timesteps and noise (LCM without its boundary condition); its loss is 0."""
    clean = torch.randn(4, 3, dtype=torch.float64)
    for kind in SCHEDULERS[name].prediction_types:
        options = {"scaling": 1e9} if name == "lcm" else {}
        diffusion = build(name, 20, lambda x, a, s: clean.repeat(len(x) // 4, 1), kind, **options)
        for num_steps in (1, 7, 19):
            end = diffusion.sample(torch.randn(4, 3, dtype=torch.float64), None, num_steps)
            amplified = 1.0 if kind in ("sample", "flow") else 1 / levels(name, 20)[0][-1]
            limit = amplified * 1e-12
            torch.testing.assert_close(end, clean, rtol=limit, atol=limit)
        for timesteps in (None, "all", torch.tensor([0, 4, 9, 19])):
            assert diffusion.loss(clean, None, timesteps=timesteps).item() < 1e-16


def test_lcm_keeps_its_boundary_condition():
    """At timestep 0 a consistency model is the identity, whatever the network says."""
    x = torch.randn(2, 3, dtype=torch.float64)
    assert torch.equal(build("lcm", 10, lambda x, a, s: 0 * x).sample(x, None, timesteps=[0]), x)


@given(
    name=st.sampled_from(["ddim", "dpmsolver++", "unipc", "deis", "euler", "heun", "tcd", "flow"]),
    steps=st.integers(1, 12),
    data=st.data(),
)
def test_with_the_exact_noise_x_stays_on_the_forward_path(name, steps, data):
    """Deterministic samplers on any ladder: x after each step is the forward process at the next timestep."""
    times = data.draw(st.lists(st.integers(0, steps - 1), min_size=1, unique=True).map(lambda t: sorted(t)[::-1]))
    options = {"order": data.draw(st.integers(1, 3))} if name in ("dpmsolver++", "unipc", "deis") else {}
    target, noise = torch.randn(2, 3, 4, dtype=torch.float64)
    diffusion = build(name, steps, lambda x, a, s: target, eta=0.0, **options)

    def noised(t):
        return diffusion.add_noise(target, noise, torch.full((3,), t))

    steps_of = diffusion.sample(noised(times[0]), None, timesteps=times, return_chain=True)
    expected = torch.stack([*map(noised, times[1:]), target])
    torch.testing.assert_close(steps_of, expected, rtol=1e-8, atol=1e-8)


def ode_error(name, order, count):
    """The probability-flow ODE of a Gaussian is solved by (x - signal m) / sqrt(signal^2 v + sigma^2) = constant."""
    signal, sigma = levels(name, 1000)
    times = [round(900 - 800 * i / count) for i in range(count + 1)]
    x = torch.tensor([[1.5]], dtype=torch.float64)
    diffusion = (
        build(name, 1000, TARGET.clean, order=order, full_order=name != "heun")
        if order
        else build(name, 1000, TARGET.clean)
    )
    # The last step leads to the clean sample in first order: what is measured is x before it.
    at = diffusion.sample(x, None, timesteps=times, return_chain=True)[-2].item()
    (m0, v0), (m1, v1) = (TARGET.marginal(signal[t], sigma[t]) for t in (times[0], times[-1]))
    return abs(at - (m1 + math.sqrt(v1 / v0) * (1.5 - m0)))


def test_higher_orders_converge_faster():
    def ratios(name, order):
        return [ode_error(name, order, count) / ode_error(name, order, 2 * count) for count in (20, 40)]

    assert all(1.7 < ratio < 2.4 for ratio in ratios("dpmsolver++", 1))
    assert all(1.7 < ratio < 2.4 for ratio in ratios("euler", None))
    for name in ("dpmsolver++", "deis"):
        assert all(3.2 < ratio < 5.5 for ratio in ratios(name, 2)), name
    assert all(3.2 < ratio < 5.5 for ratio in ratios("heun", None))
    assert ode_error("dpmsolver++", 3, 20) < ode_error("dpmsolver++", 2, 20) / 2
    # UniPC corrects each x once its own prediction is known, which is worth one order more.
    assert all(ratio > 5.5 for ratio in ratios("unipc", 2))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_forward_marginals_are_gaussian(name):
    """x_t of x_0 ~ N(m, v): mean signal m, variance signal^2 v + sigma^2, at five timesteps; 1 - 1e-6 confidence."""
    rows, steps = 20_000, 50
    diffusion = build(name, steps, TARGET.clean)
    clean = TARGET.mean + math.sqrt(TARGET.variance) * torch.randn(rows, 1, dtype=torch.float64)
    signal, sigma = levels(name, steps)
    times = (0, 12, 25, 37, 49)
    for t in times:
        x = diffusion.add_noise(clean, torch.randn(rows, 1, dtype=torch.float64), torch.full((rows,), t))
        check_moments(x, TARGET.marginal(signal[t], sigma[t]), comparisons=2 * len(times))


@EACH
def test_reverse_marginals_are_the_exact_recursion(name, options):
    """Mean and variance after every one of 12 steps against the affine recursion; 1 - 1e-6 confidence over all.

    The recursion holds the discretisation of 12 steps exactly, so that the bound has sampling error alone.
    """
    rows, steps = 20_000, 50
    times = ladder(steps, 12)
    diffusion = build(name, steps, TARGET.clean, **options)
    xs = diffusion.sample(torch.randn(rows, 1, dtype=torch.float64), None, timesteps=times, return_chain=True)
    expected = affine_moments(name, steps, times, TARGET, (0.0, 1.0), **options)
    for x, moments in zip(xs, expected, strict=True):
        check_moments(x, moments, comparisons=2 * len(times))


def check_moments(x, moments, comparisons, confidence=1 - 1e-6):
    """Sample mean and variance of a Gaussian within their bounds, the confidence shared among all comparisons."""
    mean, variance = moments
    z = NormalDist().inv_cdf(1 - (1 - confidence) / comparisons / 2)
    assert abs(x.mean().item() - mean) <= z * math.sqrt(variance / len(x))
    # n s^2 / variance is chi-squared: by its normal limit, good to 1 % of the bound at these sizes.
    assert abs(x.var().item() / variance - 1) <= 1.01 * z * math.sqrt(2 / (len(x) - 1))
