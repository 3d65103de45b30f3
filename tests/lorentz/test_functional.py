"""Precisions of all operations beside each other, ends and edges of geodesics, and what an import pulls in."""

import math

import pytest
import torch

import lorentz.functional as lf
from lorentz._precision import Precision


@pytest.mark.parametrize("precision", ["auto", "native"])
def test_centroid_without_weights_is_that_of_equal_ones(precision: Precision) -> None:
    x = lf.expmap0(torch.randn(3, 7, 4, dtype=torch.float64), 0.6)
    expected = lf.centroid(x, torch.full((3, 1, 7), 0.2, dtype=torch.float64), 0.6, precision=precision)
    torch.testing.assert_close(lf.centroid(x, c=0.6, precision=precision), expected[:, 0])
    half = lf.centroid(x.half(), c=0.6)
    assert half.dtype == torch.float16


@pytest.mark.usefixtures("any_time")
def test_geodesic_broadcasts_and_survives_the_edges() -> None:
    x, y = lf.expmap0(torch.randn(2, 5, 3), 0.5)
    path = lf.geodesic(x, y, torch.linspace(0, 1, 7).reshape(7, 1, 1), 0.5)
    assert path.shape == (7, 5, 4)
    torch.testing.assert_close(path[3], lf.geodesic(x, y, 0.5, 0.5))
    # Coincident points, and points 100 apart on opposite sides: the middle is the origin.
    assert torch.equal(lf.geodesic(x, x, 0.3)[:, 1:], x[:, 1:])
    far = lf.expmap0(torch.tensor([[50.0, 0.0], [-50.0, 0.0]]))
    assert torch.equal(lf.geodesic(far[0], far[1], 0.5), lf.project(torch.zeros(2)))
    torch.testing.assert_close(lf.dist0(lf.geodesic(far[0], far[1], 0.25)), torch.tensor(25.0))


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0])
def test_along_a_line_maps_are_sinh_and_asinh_and_their_derivatives(c: float) -> None:
    # A fine grid: where a series ends, it is wrong in a narrow band only, and rows drawn at random miss it.
    root = c**0.5
    s = torch.logspace(-6, 0.5, 3000, dtype=torch.float64)
    v = (s / root).unsqueeze(-1).requires_grad_()
    x = (s.sinh() / root).unsqueeze(-1).requires_grad_()
    point = lf.project(x, c)
    start, u = lf.project(x.new_full((1,), math.sinh(0.3) / root), c), (v * math.cosh(0.3)).detach().requires_grad_()
    moved = lf.expmap(start, torch.cat([math.tanh(0.3) * u, u], -1), c)[..., 1:]
    for value, of, expected, slope in (
        (lf.expmap0(v, c)[..., 1:], v, s.sinh() / root, s.cosh()),
        (lf.logmap0(point, c), x, s / root, 1.0 / s.cosh()),
        (lf.dist0(point, c), x, s / root, 1.0 / s.cosh()),
        (moved, u, (0.3 + s).sinh() / root, (0.3 + s).cosh() / math.cosh(0.3)),
    ):
        (gradient,) = torch.autograd.grad(value.sum(), of, retain_graph=True)
        torch.testing.assert_close(value.flatten(), expected, rtol=3e-15, atol=0.0)
        torch.testing.assert_close(gradient.flatten(), slope, rtol=3e-15, atol=0.0)


@pytest.mark.parametrize("precision", ["auto", "native"])
def test_what_expmap_cannot_store_is_inf_and_not_nan(precision: Precision) -> None:
    # Rounded to float32, a vector of length 2 at radius 40 has a part across x of length 1e9: found by nightly points.
    x = lf.expmap0(torch.tensor([[30.0, 20.0], [40.0, 0.0], [40.0, 0.0]]))
    v = torch.tensor([[0.0, -2e17, 1e17], [0.0, 0.0, 1e5], [0.0, 1e19, 0.0]])
    y = lf.expmap(x, v, precision=precision)
    assert torch.equal(y[:, 0], torch.full((3,), torch.inf))
    assert not y.isnan().any()


def test_centroid_far_out_of_equal_points_is_the_point() -> None:
    x = lf.expmap0(torch.tensor([[30.0, 0.0], [30.0, 0.0]]))
    weights = torch.tensor([[0.25, 0.75]])
    torch.testing.assert_close(lf.centroid(x, weights), x[:1])
    torch.testing.assert_close(lf.centroid(x, weights, precision="native")[:, 1:], x[:1, 1:])
