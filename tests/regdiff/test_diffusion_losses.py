"""Losses: KL to a distribution, min-SNR weights, averages, and what each of them asks of the others."""

import math

import pytest
import torch
import torch.nn.functional as F
from diffusion_textbook import levels
from hypothesis import given
from hypothesis import strategies as st

from regdiff import ConditionalDiffusion, KLToTarget, make_scheduler
from regdiff.losses import mse


def half(x, timestep, condition, mask=None):
    return 0.5 * x


KINDS = [("ddim", "epsilon"), ("ddim", "sample"), ("ddim", "v_prediction"), ("flow", "flow")]


@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize("gamma", [0.5, 5.0])
def test_min_snr_is_the_formula_row_by_row(name, kind, gamma):
    """min(SNR, gamma) times the squared error of x_0, in a plain loop that solves for x_0."""
    steps = 12
    scheduler = make_scheduler(name, steps, prediction_type=kind)
    diffusion = ConditionalDiffusion(half, scheduler, weighting="min_snr", snr_gamma=gamma)
    target, noise = torch.randn(2, steps, 3, 2, dtype=torch.float64)
    # A flow's last timestep is pure noise: signal 0 and SNR 0.
    times = torch.arange(steps)
    expected = []
    for t, (a, s) in enumerate(zip(*levels(name, steps), strict=True)):
        x = a * target[t] + s * noise[t]
        said = 0.5 * x
        if kind == "epsilon":
            clean = (x - s * said) / a
        elif kind == "sample":
            clean = said
        elif kind == "v_prediction":
            clean = a * x - s * said
        else:
            clean = x - s * said
        expected.append(min(a**2 / s**2, gamma) * ((clean - target[t]) ** 2).mean().item())
    ours = diffusion.loss(target, None, noise, times)
    assert math.isclose(ours.item(), sum(expected) / steps, rel_tol=1e-9)
    single = diffusion.loss(target[4:5], None, noise[4:5], times[4:5])
    assert math.isclose(single.item(), expected[4], rel_tol=1e-9)


def test_the_default_loss_is_torchs():
    diffusion = ConditionalDiffusion(half, make_scheduler("ddim", 8))
    for dtype in (torch.float32, torch.float64):
        target, noise = torch.randn(2, 5, 3, 2, dtype=dtype)
        times = torch.arange(5)
        expected = F.mse_loss(0.5 * diffusion.add_noise(target, noise, times), noise)
        assert torch.equal(diffusion.loss(target, None, noise, times), expected)
        torch.testing.assert_close(mse(target, noise).mean(), F.mse_loss(target, noise))


def test_the_squared_error_draws_the_target_too():
    prediction, target = torch.randn(3, 2), torch.randn(3, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(mse(prediction, target).sum(), target)
    torch.testing.assert_close(slope, 2 * (target.detach() - prediction))


@given(st.data())
def test_kl_to_target_is_the_sum_written_out(data):
    shape = data.draw(st.sampled_from([(3,), (2, 4), (2, 3, 5)]))
    temperature = data.draw(st.sampled_from([0.5, 1.0, 100.0]))
    scores = torch.randn(shape, dtype=torch.float64)
    target = torch.softmax(torch.randn(shape, dtype=torch.float64), -1)
    if data.draw(st.booleans()):
        target = F.one_hot(target.argmax(-1), shape[-1]).double()
    ours = KLToTarget(temperature)(scores, target)
    assert ours.shape == shape[:-1]
    for one, y, s in zip(ours.flatten(), target.view(-1, shape[-1]), scores.view(-1, shape[-1]), strict=True):
        top = max(temperature * v for v in s.tolist())
        total = top + math.log(sum(math.exp(temperature * v - top) for v in s.tolist()))
        terms = [
            p * (math.log(p) - (temperature * v - total)) for p, v in zip(y.tolist(), s.tolist(), strict=True) if p
        ]
        assert math.isclose(one.item(), sum(terms), rel_tol=1e-9, abs_tol=1e-9)
        assert one >= -1e-12
    equal = torch.softmax(temperature * scores, -1)
    torch.testing.assert_close(KLToTarget(temperature)(scores, equal), torch.zeros(shape[:-1]).double())


def test_kl_trains_a_distribution_over_candidates():
    """x_0 is a distribution over n candidates: with a mask, those left out take no part in the softmax."""
    scheduler = make_scheduler("ddim", 6, prediction_type="sample")
    diffusion = ConditionalDiffusion(half, scheduler, loss_fn=KLToTarget(3.0))
    mask = torch.tensor([[True, True, False, True], [True, True, True, True], [False] * 4])
    target = torch.softmax(torch.randn(3, 4).masked_fill(~mask, -torch.inf), -1).nan_to_num(0.0).requires_grad_()
    times, noise = torch.tensor([1, 4, 2]), torch.randn(3, 4)
    loss = diffusion.loss(target, None, noise, times, mask=mask)
    rows = [
        diffusion.loss(target[i : i + 1, mask[i]], None, noise[i : i + 1, mask[i]], times[i : i + 1]) for i in (0, 1)
    ]
    torch.testing.assert_close(loss, torch.stack(rows).mean())
    loss.backward()
    assert target.grad.isfinite().all()
    assert not target.grad[~mask].any()


def test_losses_that_say_too_little_are_refused():
    target, mask = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    scheduler = make_scheduler("ddim", 4)
    scalar = ConditionalDiffusion(half, scheduler, loss_fn=F.l1_loss)
    with pytest.raises(
        ValueError, match=r"loss_fn: returned shape \(\), .*a scalar can be neither masked nor weighted"
    ):
        scalar.loss(target, None, mask=mask)
    rows = ConditionalDiffusion(half, scheduler, loss_fn=lambda p, t: (p - t).abs().mean((1, 2)))
    with pytest.raises(ValueError, match="one value per row, in which padding has its share"):
        rows.loss(target, None, mask=mask)
