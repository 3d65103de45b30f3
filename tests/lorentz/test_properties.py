"""Laws of distances, maps and transport on points drawn by hypothesis, in float32, float64 and bfloat16.

Half precision is raised to float32 inside, so its results obey the laws to float32 rounding. Bounds count roundings:
`spread`, cosh(sqrt(c) r), is what one of them is worth at radius r.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import (
    LAW,
    Situation,
    curvatures,
    dimensions,
    eps,
    exact,
    exact_tangent,
    length,
    lorentz_transformation,
    seeds,
    situations,
    spread,
    tangents,
)

import lorentz.functional as lf


@LAW
@given(situations(1, most=40.0))
def test_exp_and_log_at_the_origin_are_inverse(drawn: Situation) -> None:
    c, dtype, (x,) = drawn
    v = lf.logmap0(x, c)
    bound = 16 * eps(dtype) * float(1 + c**0.5 * v.norm())
    torch.testing.assert_close(lf.expmap0(v, c)[1:], x[1:].to(v.dtype), rtol=bound, atol=1e-37)
    torch.testing.assert_close(lf.logmap0(lf.expmap0(v, c), c), v, rtol=bound, atol=1e-37)
    torch.testing.assert_close(v.norm(), lf.dist0(x, c), rtol=8 * eps(dtype), atol=1e-20)


@LAW
@given(situations(2), seeds)
def test_exp_and_log_are_inverse(drawn: Situation, seed: int) -> None:
    c, dtype, (x, y) = drawn
    back = lf.expmap(x, lf.logmap(x, y, c).to(x.dtype) if dtype == torch.float64 else lf.logmap(x, y, c), c)
    far = spread(c, x, y)
    assert float(lf.dist(exact(back, c), exact(y, c), c)) <= 8 * eps(dtype) * far**2 / c**0.5
    (v,) = tangents(x, c, seed)
    there = lf.expmap(x, v, c)
    error = lf.logmap(x, there.to(x.dtype) if dtype == torch.float64 else there, c).double() - exact_tangent(x, v, c)
    assert float(error.norm()) <= 8 * eps(dtype) * spread(c, x, x, there) / c**0.5
    torch.testing.assert_close(
        lf.dist(x, there, c).double(), length(exact_tangent(x, v, c)), rtol=0, atol=8 * eps(dtype) * far**2 * 8 / c**0.5
    )


@LAW
@given(situations(3, most=40.0))
def test_dist_is_a_metric(drawn: Situation) -> None:
    c, dtype, (x, y, z) = drawn
    d = lf.dist(x, y, c)
    assert float(lf.dist(x, x, c)) == 0.0
    assert (float(d) == 0.0) == torch.equal(x[1:], y[1:]) or float(d) < 1e-18
    torch.testing.assert_close(lf.dist(y, x, c), d, rtol=2 * eps(dtype), atol=0)
    assert float(d) <= float(lf.dist(x, z, c) + lf.dist(z, y, c)) * (1 + 8 * eps(dtype))
    torch.testing.assert_close(lf.dist0(x, c), lf.dist(lf.project(torch.zeros_like(x[1:]), c), x, c))


@LAW
@given(situations(2), seeds)
def test_transport_is_an_isometry_with_an_inverse(drawn: Situation, seed: int) -> None:
    c, dtype, (x, y) = drawn
    u, v = tangents(x, c, seed, 2)
    there = [lf.parallel_transport(x, y, w, c) for w in (u, v)]
    before = lf.lorentz_inner(exact_tangent(x, u, c), exact_tangent(x, v, c))
    after = lf.lorentz_inner(*(exact_tangent(y, w, c) for w in there))
    size = float(length(exact_tangent(x, u, c)) * length(exact_tangent(x, v, c)))
    rounding = 1e-15 * spread(c, x, x)  # of `before`, the difference of two squares
    assert float((after - before).abs()) <= (32 * eps(dtype) * spread(c, y, y) + rounding) * size
    home = lf.parallel_transport(y, x, there[0].to(y.dtype) if dtype == torch.float64 else there[0], c)
    error = float((home.double() - exact_tangent(x, u, c)).norm())
    assert error <= 32 * eps(dtype) * float(length(exact_tangent(x, u, c))) * spread(c, x, y, y)
    # Its own direction is carried along a geodesic: PT(log_x y) = -log_y x.
    carried = lf.parallel_transport(x.double(), y.double(), lf.logmap(x.double(), y.double(), c), c)
    torch.testing.assert_close(carried, -lf.logmap(y.double(), x.double(), c), rtol=1e-9, atol=1e-12 * spread(c, y))


@LAW
@given(situations(2), seeds)
def test_boosts_and_rotations_change_nothing(drawn: Situation, seed: int) -> None:
    c, dtype, (x, y) = drawn
    matrix = lorentz_transformation(len(x) - 1, seed)
    moved_x, moved_y = (matrix @ exact(p, c) for p in (x, y))
    d = lf.dist(x, y, c)
    far = spread(c, x, y, moved_x, moved_y)
    # In the dtype of the points the transformed ones are rounded, which moves them by `spread` roundings.
    rounded = [lf.project(p[1:].to(d.dtype), c) for p in (moved_x, moved_y)]
    assert (
        float((lf.dist(*rounded, c) - d).abs()) <= 4 * eps(dtype) * (spread(c, moved_x) + spread(c, moved_y)) / c**0.5
    )
    torch.testing.assert_close(
        lf.dist(moved_x, moved_y, c), lf.dist(exact(x, c), exact(y, c), c), rtol=1e-12, atol=4e-16 * far / c**0.5
    )
    v = lf.logmap(exact(x, c), exact(y, c), c)
    close = {"rtol": 0.0, "atol": 1e-13 * far / c**0.5}
    torch.testing.assert_close(lf.logmap(moved_x, moved_y, c), matrix @ v, **close)
    torch.testing.assert_close(lf.expmap(moved_x, matrix @ v, c), matrix @ lf.expmap(exact(x, c), v, c), **close)
    (w,) = (exact_tangent(x, t, c) for t in tangents(x, c, seed))
    carried = lf.parallel_transport(exact(x, c), exact(y, c), w, c)
    torch.testing.assert_close(lf.parallel_transport(moved_x, moved_y, matrix @ w, c), matrix @ carried, **close)


@LAW
@given(situations(2, most=40.0), st.floats(-0.5, 1.5))
def test_geodesic_divides_the_distance(drawn: Situation, t: float) -> None:
    c, dtype, (x, y) = drawn
    point, d = lf.geodesic(x, y, t, c), lf.dist(x, y, c).double()
    bound = 8 * eps(dtype) * spread(c, x, y, *([point] if not 0 <= t <= 1 else [])) / c**0.5
    back = lf.dist(exact(x, c), exact(point, c), c), lf.dist(exact(point, c), exact(y, c), c)
    torch.testing.assert_close(torch.stack(back), torch.stack([abs(t) * d, abs(1 - t) * d]), rtol=0, atol=bound)
    assert torch.equal(lf.geodesic(x, y, 0.0, c)[1:], x[1:].to(point.dtype))
    assert torch.equal(lf.geodesic(x, y, 1.0, c)[1:], y[1:].to(point.dtype))
    assert float(lf.dist(exact(lf.geodesic(y, x, 1.0 - t, c), c), exact(point, c), c)) <= bound


@pytest.mark.usefixtures("any_time")
@LAW
@given(situations(3, radius=1.0, most=2.0), seeds, st.floats(0, 1, width=32))
def test_small_curvature_is_flat_space(drawn: Situation, seed: int, t: float) -> None:
    _, dtype, points = drawn
    x, y, v = (p[1:] for p in points)
    c, result = 1e-10, torch.promote_types(dtype, torch.float32)
    close = {"rtol": 1e-7 + 8 * eps(dtype), "atol": 1e-7 + 64 * eps(dtype)}  # terms of order c |x|^2, |x| up to 40
    X, Y, V = (torch.nn.functional.pad(p, (1, 0)) for p in (x, y, v))
    x, y, v = (p.to(result) for p in (x, y, v))
    torch.testing.assert_close(lf.dist(X, Y, c), (y - x).norm(), **close)
    torch.testing.assert_close(lf.logmap(X, Y, c)[1:], y - x, **close)
    torch.testing.assert_close(lf.expmap(X, V, c)[1:], x + v, **close)
    torch.testing.assert_close(lf.parallel_transport(X, Y, V, c)[1:], v, **close)
    torch.testing.assert_close(lf.geodesic(X, Y, t, c)[1:], x + t * (y - x), **close)
    weights = torch.rand(1, 3, dtype=torch.float64).to(dtype)
    mean = (weights.to(result) @ torch.stack([x, y, v]) / weights.to(result).sum())[0]
    torch.testing.assert_close(lf.centroid(torch.stack([X, Y, V]), weights, c)[0, 1:], mean, **close)


@LAW
@given(curvatures, seeds, dimensions)
def test_pairwise_is_dist_of_every_pair(c: float, seed: int, dim: int) -> None:
    v = torch.randn(2, 5, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / c**0.5
    x, y = lf.expmap0(v, c)
    rows = lf.dist(x.unsqueeze(1), y.unsqueeze(0), c)
    torch.testing.assert_close(lf.pairwise_dist(x, y, c, exact=True), rows, rtol=1e-14, atol=0)
    torch.testing.assert_close(lf.pairwise_dist(x, y, c), rows, rtol=1e-9, atol=1e-6)
    inner = lf.inner(x.unsqueeze(1), y.unsqueeze(0), c)
    torch.testing.assert_close(lf.pairwise_inner(x, y, c), inner, rtol=1e-10, atol=0)
