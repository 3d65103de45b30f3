"""Masks: padded registers change nothing, whatever they hold, and get nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler

NAMES = list(SCHEDULERS)
JUNK = [0.0, 1e30, float("nan"), float("inf")]


def mixing(x, timestep, condition, mask=None):
    """Registers see each other: the mean of the valid ones reaches them all."""
    if mask is None:
        mean = x.mean(1, keepdim=True)
    else:
        mean = (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1).clamp(min=1).view(-1, 1, 1)
    return torch.tanh(x - mean + condition) + timestep.view(-1, 1, 1) / 10


def build(name, denoiser=mixing, **options):
    return ConditionalDiffusion(denoiser, make_scheduler(name, 6), **options)


def filled(x, mask, junk):
    return torch.where(mask[..., None], x, torch.full_like(x, junk))


masks = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=4).map(torch.tensor)


@given(name=st.sampled_from(NAMES), mask=masks, junk=st.sampled_from(JUNK))
def test_sampling_does_not_see_padding(name, mask, junk):
    """Bit for bit the same registers and gradients with any junk in padding; zeros come back there."""
    diffusion = build(name)
    rows = len(mask)
    x, c = torch.randn(rows, 3, 2), torch.randn(rows, 1, 2)
    z = torch.randn(5, rows, 3, 2) if SCHEDULERS[name].own_noise else None
    ends, gradients = [], []
    for value in (0.0, junk):
        start = filled(x, mask, value).requires_grad_()
        noise = None if z is None else torch.stack([filled(step, mask, value) for step in z])
        seed = torch.Generator().manual_seed(0)
        chain = diffusion.sample(start, c, 5, noise=noise, generator=seed, return_chain=True, mask=mask)
        chain.sum().backward()
        ends.append(chain)
        gradients.append(start.grad)
    assert torch.equal(*ends)
    assert torch.equal(*gradients)
    assert ends[0].isfinite().all()
    assert not ends[0][:, ~mask].any()
    assert not gradients[0][~mask].any()


@pytest.mark.parametrize("name", NAMES)
def test_each_row_is_what_its_own_registers_give_alone(name):
    """The loss and the samples of a padded batch, against a plain loop over rows without any padding."""
    mask = torch.tensor([[True, True, True], [False, True, False], [True, False, True]])
    x, target, noise, c = (torch.randn(3, 3, 2, dtype=torch.float64) for _ in range(4))
    c = c[:, :1]
    times, diffusion = torch.tensor([0, 3, 5]), build(name)
    padded = [filled(value, mask, torch.nan) for value in (target, noise)]
    together = diffusion.loss(padded[0], c, padded[1], times, mask=mask)
    errors = []
    for i, own in enumerate(mask):
        alone = (value[i : i + 1, own] for value in (target, noise))
        clean, eps = alone
        loss = diffusion.loss(clean, c[i : i + 1], eps, times[i : i + 1])
        errors += [loss] * int(own.sum())  # a mean over the registers of this row
    torch.testing.assert_close(together, torch.stack(errors).mean(), rtol=1e-12, atol=0)

    if not SCHEDULERS[name].stochastic or SCHEDULERS[name].own_noise:
        own_noise = noise if SCHEDULERS[name].own_noise else None
        chain = diffusion.sample(x, c, noise=own_noise, mask=mask)
        for i, own in enumerate(mask):
            z = None if own_noise is None else own_noise[i : i + 1, own]
            single = diffusion.sample(x[i : i + 1, own], c[i : i + 1], noise=z)
            torch.testing.assert_close(chain[i : i + 1, own], single, rtol=1e-5, atol=1e-5)


def test_a_row_or_a_batch_without_registers_counts_nothing():
    diffusion, x, c = build("ddim"), torch.randn(2, 3, 2), torch.randn(2, 1, 2)
    none = torch.zeros(2, 3, dtype=torch.bool)
    assert not diffusion.sample(x, c, mask=none).any()
    assert diffusion.loss(x, c, mask=none) == 0
    half = torch.tensor([[True] * 3, [False] * 3])
    noise, times = torch.randn(2, 3, 2), torch.tensor([2, 3])
    both = diffusion.loss(x, c, noise, times, mask=half)
    torch.testing.assert_close(both, diffusion.loss(x[:1], c[:1], noise[:1], times[:1]))
