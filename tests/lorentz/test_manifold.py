"""The geoopt manifold: its laws, and an optimisation that needs every digit."""

import geoopt
import pytest
import torch

from lorentz.manifold import Lorentz


@pytest.mark.parametrize("c", [0.5, 2.0])
def test_agrees_with_geoopt(c: float) -> None:
    ours, theirs = Lorentz(c=c), geoopt.Lorentz(k=torch.tensor(1 / c, dtype=torch.float64))
    x, y, z = ours.random_normal(3, 6, 4, dtype=torch.float64)
    u, v = ours.logmap(x, y), ours.logmap(x, z)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(ours.dist(x, y), theirs.dist(x, y), **close)
    torch.testing.assert_close(ours.dist2(x, y), theirs.dist(x, y).square(), **close)
    torch.testing.assert_close(ours.dist0(x), theirs.dist0(x), **close)
    torch.testing.assert_close(u, theirs.logmap(x, y), **close)
    torch.testing.assert_close(ours.expmap(x, v), theirs.expmap(x, v), **close)
    torch.testing.assert_close(ours.expmap0(ours.logmap0(x)), x, **close)
    torch.testing.assert_close(ours.logmap0(x), theirs.logmap0(x), **close)
    torch.testing.assert_close(ours.transp(x, y, v), theirs.transp(x, y, v), **close)
    torch.testing.assert_close(ours.inner(x, u, v), theirs.inner(x, u, v), **close)
    torch.testing.assert_close(ours.inner(x, u, keepdim=True), theirs.inner(x, u, keepdim=True), **close)
    torch.testing.assert_close(ours.norm(x, u), ours.dist(x, y), **close)
    w = torch.randn(6, 4, dtype=torch.float64)
    torch.testing.assert_close(ours.proju(x, w), theirs.proju(x, w), **close)
    torch.testing.assert_close(ours.egrad2rgrad(x, w), theirs.egrad2rgrad(x, w.clone()), **close)
    torch.testing.assert_close(torch.as_tensor(ours.k, dtype=torch.float64), theirs.k)
    ours.assert_check_point_on_manifold(x)
    ours.assert_check_vector_on_tangent(x, u)
    assert not ours.check_point_on_manifold(x + 1.0)
    assert not ours.check_vector_on_tangent(x, x)


def test_riemannian_gradient_is_tangent_and_steepest() -> None:
    manifold = Lorentz(c=0.7)
    x, y = manifold.random_normal(2, 5, 4, dtype=torch.float64)
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(manifold.dist(x, y).sum(), x)
    riemannian = manifold.egrad2rgrad(x, gradient)
    # The gradient of the distance is the unit vector pointing away from y.
    away = -manifold.logmap(x, y) / manifold.dist(x, y, keepdim=True)
    torch.testing.assert_close(riemannian, away)


def test_random_normal_uses_std_and_origin_is_the_origin() -> None:
    manifold = Lorentz(c=4.0)
    x = manifold.random_normal(20000, 3, std=0.2)
    assert abs(float(manifold.logmap0(x)[:, 1:].std()) - 0.2) < 0.01
    assert torch.equal(torch.as_tensor(manifold.origin(2, 3)), torch.tensor([[0.5, 0.0, 0.0]] * 2))
    assert float(manifold.dist0(manifold.origin(3))) == 0.0


def test_learnable_curvature_stays_positive_and_gets_a_gradient() -> None:
    manifold = Lorentz(c=2.0, learnable=True)
    x, y = manifold.random_normal(2, 5, 4)
    manifold.dist(x, y).sum().backward()
    (log_c,) = manifold.parameters()
    assert log_c.grad is not None
    assert float(log_c.grad.abs()) > 0
    with pytest.raises(ValueError, match="expected a finite number > 0"):
        Lorentz(c=0.0)


@pytest.mark.parametrize("c", [0.5, 2.0])
def test_geodesic_and_transport_from_and_to_the_origin(c: float) -> None:
    ours, theirs = Lorentz(c=c), geoopt.Lorentz(k=torch.tensor(1 / c, dtype=torch.float64))
    x, y = ours.random_normal(2, 6, 4, dtype=torch.float64)
    half = ours.geodesic(0.5, x, y)
    torch.testing.assert_close(ours.dist(x, half), 0.5 * ours.dist(x, y))
    torch.testing.assert_close(ours.geodesic(torch.full((6, 1), 0.5), x, y), half)
    u = ours.logmap(x, y) / ours.dist(x, y, keepdim=True)
    t = torch.linspace(0.0, 2.0, 6, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(ours.dist(x, ours.geodesic_unit(t, x, u), keepdim=True), t)
    v = ours.logmap0(y)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(ours.transp0(x, v), theirs.transp0(x, v), **close)
    torch.testing.assert_close(ours.transp0back(x, u), theirs.transp0back(x, u), **close)
    torch.testing.assert_close(ours.transp0back(x, ours.transp0(x, v)), v)


def test_curvature_may_be_a_tensor() -> None:
    fixed, learned = Lorentz(c=torch.tensor(2.0).double()), Lorentz(c=torch.tensor(2.0).double(), learnable=True)
    x, y = Lorentz(c=2.0).random_normal(2, 5, 4, dtype=torch.float64)
    for manifold in (fixed, learned):
        torch.testing.assert_close(manifold.dist(x, y), Lorentz(c=2.0).dist(x, y))
    assert list(fixed.state_dict()) == ["curvature.c"]
    assert [name for name, _ in learned.named_parameters()] == ["curvature.log_c"]
