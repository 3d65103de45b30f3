"""Poincare and Klein coordinates."""

import pytest
import torch

import lorentz.functional as lf
from lorentz.models import from_klein, from_poincare, to_klein, to_poincare


@pytest.mark.parametrize("shape", [(3,), (1, 2), (4, 1, 5), (0, 3)])
@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trips(shape: tuple[int, ...], c: float, dtype: torch.dtype) -> None:
    ball = 0.5 * torch.nn.functional.normalize(torch.randn(shape, dtype=dtype), dim=-1) / c**0.5
    bound = 8 * torch.finfo(dtype).eps
    for forward, back in ((to_poincare, from_poincare), (to_klein, from_klein)):
        torch.testing.assert_close(forward(back(ball, c), c), ball, rtol=bound, atol=0)
        x = back(ball, c)
        torch.testing.assert_close(back(forward(x, c), c), x, rtol=bound, atol=0)


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_distance_formula_of_the_poincare_ball(c: float) -> None:
    x, y = lf.expmap0(torch.randn(2, 9, 4, dtype=torch.float64), c)
    p, q = to_poincare(x, c), to_poincare(y, c)
    gap = (p - q).square().sum(-1)
    shrink = (1 - c * p.square().sum(-1)) * (1 - c * q.square().sum(-1))
    torch.testing.assert_close(torch.acosh(1 + 2 * c * gap / shrink) / c**0.5, lf.dist(x, y, c), rtol=1e-7, atol=0)


def test_klein_geodesics_are_straight() -> None:
    x, y = lf.expmap0(torch.randn(2, 9, 2, dtype=torch.float64))
    middle = lf.expmap(x, 0.5 * lf.logmap(x, y))
    a, b, m = to_klein(x), to_klein(y), to_klein(middle)
    cross = (b - a)[:, 0] * (m - a)[:, 1] - (b - a)[:, 1] * (m - a)[:, 0]
    torch.testing.assert_close(cross, torch.zeros(9, dtype=torch.float64), rtol=0, atol=1e-12)


def test_gradients_are_finite_at_the_centre() -> None:
    for function in (to_poincare, to_klein, from_poincare, from_klein):
        zero = torch.zeros(2, 4).requires_grad_()
        function(zero, 0.5).sum().backward()
        assert zero.grad is not None
        assert torch.isfinite(zero.grad).all()


@pytest.mark.parametrize("c", [1e-4, 0.3, 7.0, 1e4])
def test_curvature_as_number_tensor_and_parameter(c: float) -> None:
    x = lf.project(torch.randn(2, 3, 4, dtype=torch.float64) / c**0.5, c)
    column = torch.full((3, 1), c, dtype=torch.float64)
    learned = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    for forward, back in ((to_poincare, from_poincare), (to_klein, from_klein)):
        ball = forward(x, c)
        assert (ball.norm(dim=-1) * c**0.5 < 1).all()
        for curvature in (column, learned):
            assert torch.equal(forward(x, curvature), ball)
            torch.testing.assert_close(back(ball, curvature), x)
        (gradient,) = torch.autograd.grad(forward(x, learned).square().sum(), learned)
        assert float(gradient.abs()) > 0


def test_poincare_and_klein_are_the_projections_of_the_point() -> None:
    # Poincare: the line from (-1/sqrt(c), 0) to the point meets x0 = 0 at p. Klein: that from 0 meets x0 = 1/sqrt(c).
    c = 0.4
    x = lf.expmap0(torch.randn(9, 3, dtype=torch.float64), c)
    apex = 1 / c**0.5
    torch.testing.assert_close(to_poincare(x, c), x[:, 1:] * apex / (x[:, :1] + apex))
    torch.testing.assert_close(to_klein(x, c), x[:, 1:] * apex / x[:, :1])
