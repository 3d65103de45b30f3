"""Laws of centroids, entailment cones and the other models, on points drawn by hypothesis in three dtypes."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from laws import LAW, Situation, eps, exact, lorentz_transformation, seeds, situations, spread
from torch import Tensor

import lorentz.functional as lf

positive = st.lists(st.floats(0.0078125, 1.0, width=32), min_size=4, max_size=4)


def scatter(c: float, m: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """What the centroid minimises: the weighted squared Lorentz distances -2/c - 2<x, m>_L."""
    return (weights.double() * (-2 / c - 2 * lf.inner(x, m, c))).sum(-1)


@LAW
@given(situations(4, most=40.0), positive, seeds)
def test_centroid_minimises_the_squared_lorentz_distances(drawn: Situation, weights: list[float], seed: int) -> None:
    c, dtype, rows = drawn
    x, w = torch.stack(rows), torch.tensor([weights], dtype=dtype)
    m = lf.centroid(x, w, c)
    points = lf.project(x[:, 1:].double(), c)
    least = scatter(c, exact(m[0], c), points, w[0])
    noise = torch.randn(16, len(rows[0]) - 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for step in (1e-3, 0.1, 1.0):
        around = lf.expmap0(lf.logmap0(exact(m[0], c), c) + step * noise / c**0.5, c)
        others = torch.stack([scatter(c, other, points, w[0]) for other in around])
        assert (others >= least * (1 - 1e-9) - 1e-9 / c).all()
        assert (others > least).all() or step < 0.1


@LAW
@given(situations(4, most=40.0), positive, st.permutations(range(4)), st.sampled_from([1e-30, 0.25, 3.0, 1e6]))
def test_centroid_knows_neither_order_nor_scale_of_the_weights(
    drawn: Situation, weights: list[float], order: list[int], scale: float
) -> None:
    c, dtype, rows = drawn
    x, w = torch.stack(rows), torch.tensor([weights], dtype=dtype)
    m = lf.centroid(x, w, c)
    bound = 8 * eps(dtype) * spread(c, *rows) ** 0.5
    close = {"rtol": 8 * eps(dtype), "atol": bound / c**0.5}
    torch.testing.assert_close(lf.centroid(x[order], w[:, order], c), m, **close)
    wide = w.to(torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(lf.centroid(x, wide * scale, c), m, **close)
    near = x[:, 1:].to(wide.dtype) / (c**0.5 * x[:, :1].to(wide.dtype).amax())  # where the native form is as good
    native = [lf.centroid(lf.project(near, c), wide * k, c, precision="native") for k in (1.0, scale)]
    torch.testing.assert_close(*native, rtol=64 * eps(dtype), atol=64 * eps(dtype) / c**0.5)
    # Equal points have that point as their centroid, and a weight of one picks a point.
    torch.testing.assert_close(lf.centroid(x[:1].expand(4, -1), w, c)[0, 1:], x[0, 1:].to(m.dtype), **close)
    one = torch.eye(4, dtype=dtype)
    torch.testing.assert_close(lf.centroid(x, one, c)[:, 1:], x[:, 1:].to(m.dtype), **close)


@LAW
@given(situations(4), positive, seeds)
def test_centroid_moves_with_the_points(drawn: Situation, weights: list[float], seed: int) -> None:
    c, _, rows = drawn
    matrix, w = lorentz_transformation(len(rows[0]) - 1, seed), torch.tensor([weights], dtype=torch.float64)
    x = torch.stack([exact(row, c) for row in rows])
    moved = x @ matrix.T
    far = spread(c, x, moved)
    torch.testing.assert_close(
        lf.centroid(moved, w, c), lf.centroid(x, w, c) @ matrix.T, rtol=0, atol=1e-13 * far / c**0.5
    )
    # Attention is a centroid whose weights come from distances: it moves along too.
    torch.testing.assert_close(
        lf.lorentz_attention(moved, moved, moved, c, temperature=2 / c),
        lf.lorentz_attention(x, x, x, c, temperature=2 / c) @ matrix.T,
        rtol=0,
        atol=1e-12 * far**2 / c**0.5,
    )


@pytest.mark.usefixtures("any_time")
@LAW
@given(situations(1, most=2.0), seeds, st.sampled_from([0.05, 0.1, 0.3]))
def test_cones_are_transitive(drawn: Situation, seed: int, min_radius: float) -> None:
    # Entailment is an order (Ganea et al. 2018): z in the cone of y and y in the cone of x put z in the cone of x.
    c, dtype, (x,) = drawn
    generator = torch.Generator().manual_seed(seed)
    x = exact(x, c)
    assume(c**0.5 * float(x[1:].norm()) > 2 * min_radius)  # nearer, the cone is a half space, and no order
    outward = torch.nn.functional.pad(x[1:], (1, 0))

    def descend(apex: Tensor) -> Tensor:
        """Points around the cone of every apex: along its ray, and some way across."""
        noise = torch.randn(*apex.shape, generator=generator, dtype=torch.float64) * min_radius / c**0.5
        return lf.expmap(apex, lf.project_tangent(apex, noise + outward * torch.rand(1, generator=generator), c), c)

    y = descend(x.expand(64, -1))
    z = descend(y)
    x, y, z = (lf.project(p[..., 1:].to(dtype), c).to(dtype) for p in (x.expand(64, -1), y, z))
    upper, lower, both = (lf.entailment_violation(a, b, c, min_radius) for a, b in ((x, y), (y, z), (x, z)))
    chained = (upper == 0) & (lower == 0)
    assume(bool(chained.any()))
    assert (both[chained] <= 8 * eps(dtype) * math.pi).all()


@pytest.mark.usefixtures("any_time")
@LAW
@given(situations(2, most=40.0))
def test_on_its_ray_a_point_entails_what_lies_beyond(drawn: Situation) -> None:
    c, dtype, (x, _) = drawn
    pi = torch.tensor(math.pi, dtype=torch.promote_types(dtype, torch.float32))
    factors = (2.0, 0.5, 0.0, -4.0, *(() if dtype == torch.float64 else (1024.0,)))  # exactly on the line
    for factor in factors if x[1:].any() else ():
        other = torch.cat([x[:1], factor * x[1:]])
        if factor > 1:
            assert float(lf.exterior_angle(x, other, c)) == float(lf.entailment_violation(x, other, c)) == 0.0
        elif torch.equal(other[1:] / factor if factor else x[1:], x[1:]):  # but for what is too small to be halved
            assert torch.equal(lf.exterior_angle(x, other, c), pi)


@LAW
@given(situations(2), seeds)
def test_angles_know_no_rotation(drawn: Situation, seed: int) -> None:
    c, _, (x, y) = drawn
    matrix = lorentz_transformation(len(x) - 1, seed, boost=False)
    x, y = exact(x, c), exact(y, c)
    if float(lf.dist(x, y, c)) > 1e-6 and float(lf.dist0(x, c)) > 1e-6:
        angle = lf.exterior_angle(x, y, c)
        torch.testing.assert_close(lf.exterior_angle(matrix @ x, matrix @ y, c), angle, rtol=0, atol=1e-9)
        # The interior angle at x and the one at y leave room in the triangle o, x, y: their sum is below pi.
        if float(lf.dist0(y, c)) > 1e-6:
            interior = 2 * math.pi - float(angle) - float(lf.exterior_angle(y, x, c))
            assert -1e-9 <= interior <= math.pi + 1e-9


@LAW
@given(situations(1, most=40.0))
def test_no_angle_where_there_is_none(drawn: Situation) -> None:
    # At the origin there is no ray to leave, at x = y no geodesic: 0 by convention, and so no violation.
    c, _, (y,) = drawn
    origin = lf.project(torch.zeros_like(y[1:]), c).to(y.dtype)
    assert float(lf.exterior_angle(origin, y, c)) == 0.0
    assert float(lf.exterior_angle(y, y, c)) == 0.0
