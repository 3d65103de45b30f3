"""Poincare and Klein coordinates."""

import pytest
import torch

import lorentz.functional as lf
from lorentz.models import from_klein, from_poincare, to_klein, to_poincare


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_distance_formula_of_the_poincare_ball(c: float) -> None:
    x, y = lf.expmap0(torch.randn(2, 9, 4, dtype=torch.float64), c)
    p, q = to_poincare(x, c), to_poincare(y, c)
    gap = (p - q).square().sum(-1)
    shrink = (1 - c * p.square().sum(-1)) * (1 - c * q.square().sum(-1))
    torch.testing.assert_close(torch.acosh(1 + 2 * c * gap / shrink) / c**0.5, lf.dist(x, y, c), rtol=1e-7, atol=0)


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
