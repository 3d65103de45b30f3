"""The wrapped normal."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.distributions import kl_divergence

import lorentz.functional as lf
from lorentz.distributions import WrappedNormal


def grid(d: int, c: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Points exp_o(v) for v on a grid, and the volume each stands for: h^d (sinh(r)/r)^(d-1), r = sqrt(c)|v|."""
    count, limit = {1: 401, 2: 161, 3: 61}[d], 5.0
    axis = torch.linspace(-limit, limit, count, dtype=torch.float64)
    v = torch.cartesian_prod(*[axis] * d).reshape(-1, d)
    r = c**0.5 * v.norm(dim=-1)
    growth = torch.where(r == 0, 1.0, torch.sinh(r) / torch.where(r == 0, 1.0, r))
    return lf.expmap0(v, c), (axis[1] - axis[0]) ** d * growth ** (d - 1)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("c", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_density_integrates_to_one(d: int, c: float, learnable: bool) -> None:
    loc = lf.expmap0(torch.tensor([0.6, -0.3, 0.2], dtype=torch.float64)[:d], c)
    curvature = torch.tensor(c, dtype=torch.float64, requires_grad=True) if learnable else c
    normal = WrappedNormal(loc, torch.tensor([0.4, 0.6, 0.5])[:d], curvature)
    x, volume = grid(d, c)
    total = (normal.log_prob(x).exp() * volume).sum()
    assert float(total.detach()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.usefixtures("any_time")
def test_density_of_every_batch_entry_with_its_own_curvature() -> None:
    c = torch.tensor([[0.3], [2.0]], dtype=torch.float64)
    normal = WrappedNormal(lf.project(torch.zeros(3, 1, 2, dtype=torch.float64), c), torch.tensor([0.4, 0.6]), c)
    assert normal.batch_shape == (3, 2)
    for i, value in enumerate((0.3, 2.0)):
        x, volume = grid(2, value)
        total = (normal.log_prob(x[:, None, None]).exp() * volume[:, None, None]).sum(0)[:, i]
        torch.testing.assert_close(total, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-4)
        one = WrappedNormal(lf.project(torch.zeros(2, dtype=torch.float64), value), torch.tensor([0.4, 0.6]), value)
        torch.testing.assert_close(normal.log_prob(x[:5, None, None])[:, 0, i], one.log_prob(x[:5]))


def test_samples_have_the_scale_asked_for() -> None:
    loc = lf.expmap0(torch.tensor([1.0, 0.5]), 0.8)
    scale = torch.tensor([0.1, 0.9])
    x = WrappedNormal(loc, scale, 0.8).sample((20000,))
    torch.testing.assert_close(lf.lorentz_inner(x, x), torch.full((20000,), -1.25), rtol=1e-3, atol=1e-3)
    origin = lf.project(torch.zeros(2), 0.8)
    v = lf.parallel_transport(loc, origin, lf.logmap(loc, x, 0.8), 0.8)[:, 1:]
    torch.testing.assert_close(v.std(0), scale, rtol=0.03, atol=0)
    torch.testing.assert_close(v.mean(0), torch.zeros(2), rtol=0, atol=0.03)


def test_draws_in_float64_have_all_its_digits() -> None:
    v = lf.logmap0(WrappedNormal(lf.origin(50, 4, dtype=torch.float64), 1.0).sample())  # the draws themselves
    assert (v - v.float()).abs().gt(1e-10).double().mean() > 0.9


def test_the_mean_is_the_frechet_mean_and_the_mode_has_the_largest_density() -> None:
    loc = lf.expmap0(torch.tensor([1.0, 0.5], dtype=torch.float64), 0.8)
    normal = WrappedNormal(loc, torch.tensor([0.3, 0.8]), 0.8)
    x = normal.sample((20000,))
    both = torch.stack([x, x]), torch.ones(2, 1, len(x), dtype=torch.float64)
    means = lf.frechet_mean(x, c=0.8), lf.centroid(*both, 0.8)[0, 0]
    for mean in means:
        assert float(lf.dist(mean, normal.mean, 0.8)) < 0.02
    assert (normal.log_prob(x) <= normal.log_prob(normal.mode)).all()


def test_the_divergence_is_the_integral_on_average() -> None:
    c = 0.8
    p = WrappedNormal(lf.expmap0(torch.tensor([0.5, 0.1], dtype=torch.float64), c), torch.tensor([0.3, 0.6]), c)
    q = WrappedNormal(lf.origin(3, c=c, dtype=torch.float64), 0.9, c)
    x, volume = grid(2, c)
    log_p = p.log_prob(x)
    exact = (torch.where(log_p > -300, log_p.exp() * (log_p - q.log_prob(x)), 0.0) * volume).sum()
    drawn = kl_divergence(p.expand((40000,)), q)
    assert drawn.shape == (40000,)
    assert float(drawn.mean()) == pytest.approx(float(exact), abs=4 * float(drawn.std()) / 200)
    with pytest.raises(ValueError, match=r"c: got 0\.8 and 1\.0, expected distributions on one"):
        kl_divergence(p, WrappedNormal(lf.origin(3).double(), 0.9))
    torch.testing.assert_close(kl_divergence(p.expand((9,)), p), torch.zeros(9).double(), rtol=0, atol=1e-12)


def test_the_gradient_of_a_divergence_goes_through_its_sample() -> None:
    loc, other = lf.project(torch.randn(2, 3, 2, dtype=torch.float64))
    scale = 0.5 + torch.rand(3, 2, dtype=torch.float64)

    def divergence(scale: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return kl_divergence(WrappedNormal(loc, scale), WrappedNormal(other, 0.7))

    assert gradcheck(divergence, scale.requires_grad_())
