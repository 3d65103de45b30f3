"""The Frechet mean: an independent minimiser, its laws, its gradients, and points far out."""

import runpy

import pytest
import torch
from hypothesis import given
from laws import LAW, Situation, lorentz_transformation, situations
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import lorentz
import lorentz.means

F64 = torch.float64
DOUBLE = (F64,)


def cost(m: Tensor, x: Tensor, weights: Tensor, c: float) -> Tensor:
    return (weights * lorentz.dist(m.unsqueeze(-2), x, c).square()).sum(-1)


@LAW
@given(situations(4, dtypes=DOUBLE))
def test_the_logarithms_at_the_mean_cancel_and_isometries_carry_it(situation: Situation) -> None:
    c, _, points = situation
    x, weights = torch.stack(points), torch.tensor([1.0, 2.0, 0.0, 0.5], dtype=F64)
    m = lorentz.frechet_mean(x, weights, c)
    at_origin = lorentz.gyro_add(lorentz.project(-m[1:], c), x, c)
    pull = (weights.unsqueeze(-1) * lorentz.logmap0(at_origin, c)).sum(-2)
    torch.testing.assert_close(pull, torch.zeros_like(pull), rtol=0.0, atol=1e-9)
    matrix = lorentz_transformation(x.shape[-1] - 1, seed=len(str(situation)))
    torch.testing.assert_close(lorentz.frechet_mean(x @ matrix.T, weights, c), m @ matrix.T, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(lorentz.frechet_mean(x.flip(0), weights.flip(0) * 7.0, c), m, rtol=1e-9, atol=1e-9)
    assert bool((cost(m, x, weights, c) <= cost(lorentz.centroid(x, weights[None], c)[0], x, weights, c) + 1e-12).all())


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("radius", [1e-6, 1.0, 8.0, 30.0])
def test_two_points_have_their_mean_on_the_geodesic(radius: float, dtype: torch.dtype) -> None:
    direction = torch.nn.functional.normalize(torch.randn(2, 6, 3, dtype=F64), dim=-1)
    x, y = lorentz.expmap0(radius * direction, 1.0).to(dtype)
    weights = torch.tensor([0.7, 0.3], dtype=dtype)
    m = lorentz.frechet_mean(torch.stack([x, y], dim=-2), weights)
    expected = lorentz.geodesic(x, y, 0.3)
    rounding = 16.0 * torch.finfo(dtype).eps * expected[:, 0]  # of a coordinate far out, as a distance
    assert bool((lorentz.dist(m, expected) <= rounding).all())


@pytest.mark.usefixtures("any_time")
def test_batches_broadcast_and_edges_have_answers() -> None:
    x = lorentz.expmap0(torch.randn(2, 5, 3))
    weights = torch.rand(4, 1, 5)
    c = torch.tensor([0.5, 2.0]).reshape(2, 1, 1)
    together = lorentz.frechet_mean(x, weights, c)
    assert together.shape == (4, 2, 4)
    torch.testing.assert_close(together[3, 1], lorentz.frechet_mean(x[1], weights[3, 0], 2.0))
    origin = lorentz.origin(2, 4)
    assert torch.equal(lorentz.frechet_mean(x, torch.zeros(2, 5)), origin)
    assert torch.equal(lorentz.frechet_mean(x[:, :0]), origin)
    same = lorentz.expmap0(torch.ones(1, 3)).expand(5, 4)
    torch.testing.assert_close(lorentz.frechet_mean(same), same[0])


@pytest.mark.usefixtures("any_time")
def test_gradient_is_that_of_the_implicit_function() -> None:
    """With respect to points, weights and c; also where all points are one."""
    x = lorentz.expmap0(torch.randn(2, 4, 2, dtype=F64)).requires_grad_()
    weights, c = torch.rand(2, 4, dtype=F64, requires_grad=True), torch.tensor(0.6, dtype=F64, requires_grad=True)
    assert gradcheck(lorentz.frechet_mean, (x, weights, c), fast_mode=True)
    assert gradgradcheck(lorentz.frechet_mean, (x, weights, c), fast_mode=True, atol=1e-4)
    same = lorentz.expmap0(torch.ones(3, 2, dtype=F64)).requires_grad_()
    assert gradcheck(lambda x: lorentz.frechet_mean(x), (same,))


def test_a_second_import_leaves_the_operator_of_the_first() -> None:
    operator = torch.ops.lorentz.frechet_solution
    again = runpy.run_path(lorentz.means.__file__, run_name="lorentz.means")
    assert torch.ops.lorentz.frechet_solution is operator  # a new one frees it, and what is freed may still answer
    x = lorentz.expmap0(torch.randn(5, 3))
    assert torch.equal(again["frechet_mean"](x), lorentz.frechet_mean(x))
