"""The wrapped normal."""

import pytest
import torch

import lorentz.functional as lf
from lorentz.distributions import WrappedNormal


@pytest.mark.parametrize("c", [0.5, 2.0])
def test_density_integrates_to_one(c: float) -> None:
    normal = WrappedNormal(lf.expmap0(torch.tensor([0.6, -0.3], dtype=torch.float64), c), torch.tensor([0.4, 0.7]), c)
    # Polar grid around the origin: the volume element is sinh(sqrt(c) r)/sqrt(c) dr dphi.
    r = torch.linspace(0, 8, 801, dtype=torch.float64)[1:]
    phi = torch.linspace(0, 2 * torch.pi, 181, dtype=torch.float64)[1:]
    v = r[:, None, None] * torch.stack([phi.cos(), phi.sin()], -1)
    density = normal.log_prob(lf.expmap0(v, c)).exp() * torch.sinh(c**0.5 * r)[:, None] / c**0.5
    total = density.sum() * (r[1] - r[0]) * (phi[1] - phi[0])
    assert float(total) == pytest.approx(1.0, abs=1e-4)


def test_samples_have_the_scale_asked_for() -> None:
    loc = lf.expmap0(torch.tensor([1.0, 0.5]), 0.8)
    scale = torch.tensor([0.1, 0.9])
    x = WrappedNormal(loc, scale, 0.8).sample((20000,))
    torch.testing.assert_close(lf.lorentz_inner(x, x), torch.full((20000,), -1.25), rtol=1e-3, atol=1e-3)
    origin = lf.project(torch.zeros(2), 0.8)
    v = lf.parallel_transport(loc, origin, lf.logmap(loc, x, 0.8), 0.8)[:, 1:]
    torch.testing.assert_close(v.std(0), scale, rtol=0.03, atol=0)
    torch.testing.assert_close(v.mean(0), torch.zeros(2), rtol=0, atol=0.03)


def test_broadcasting_and_gradients() -> None:
    loc = lf.expmap0(torch.randn(4, 1, 3)).requires_grad_()
    log_scale = torch.zeros(5, 3, requires_grad=True)
    c = torch.tensor(0.7, requires_grad=True)
    normal = WrappedNormal(loc, log_scale.exp(), c)
    x = normal.rsample((2,))
    assert x.shape == (2, 4, 5, 4)
    assert normal.batch_shape == (4, 5)
    assert normal.event_shape == (4,)
    assert normal.log_prob(x).shape == (2, 4, 5)
    for gradient in torch.autograd.grad(normal.log_prob(x).sum(), (loc, log_scale, c)):
        assert torch.isfinite(gradient).all()
    assert torch.isfinite(normal.log_prob(lf.project(torch.zeros(3)))).all()
    with pytest.raises(ValueError, match="scale"):
        WrappedNormal(loc, -log_scale.exp(), validate_args=True)


def test_log_prob_does_not_overflow_far_out() -> None:
    normal = WrappedNormal(lf.project(torch.zeros(3)), torch.tensor(1.0))
    assert torch.isfinite(normal.log_prob(lf.expmap0(torch.tensor([40.0, 0.0, 0.0]))))
