"""Laws of the maps and distances, on points drawn by hypothesis; geoopt in float64 as a second opinion."""

import subprocess
import sys
from collections.abc import Callable

import geoopt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lorentz.functional as lf

curvatures = st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0])
seeds = st.integers(0, 2**20)
radii = st.sampled_from([1e-6, 0.1, 1.0, 4.0])


def points(seed: int, c: float, radius: float, count: int, d: int = 3) -> list[Tensor]:
    """`count` batches of 6 float64 points, at distances of about radius/sqrt(c) from the origin."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(count, 6, d, generator=generator, dtype=torch.float64) * radius / (d * c) ** 0.5
    return list(lf.expmap0(v, c))


def length(x: Tensor, v: Tensor) -> Tensor:
    return lf.lorentz_inner(v, v).clamp_min(0).sqrt()


@given(seeds, curvatures, radii)
def test_points_lie_on_the_hyperboloid(seed: int, c: float, radius: float) -> None:
    (x,) = points(seed, c, radius, 1)
    torch.testing.assert_close(lf.lorentz_inner(x, x), torch.full((6,), -1 / c, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(lf.inner(x, x, c), torch.full((6,), -1 / c, dtype=torch.float64), rtol=1e-15, atol=0)


@given(seeds, curvatures, radii)
def test_log_inverts_exp(seed: int, c: float, radius: float) -> None:
    x, y = points(seed, c, radius, 2)
    v = lf.logmap(x, y, c)
    torch.testing.assert_close(lf.expmap(x, v, c), y, rtol=1e-7, atol=1e-9 * float(y.max()))
    torch.testing.assert_close(length(x, v), lf.dist(x, y, c), rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(lf.lorentz_inner(x, v) / length(x, v), torch.zeros(6).double(), rtol=0, atol=1e-7)
    torch.testing.assert_close(lf.expmap0(lf.logmap0(x, c), c), x, rtol=1e-14, atol=1e-14)


@given(seeds, curvatures, radii)
def test_dist_is_a_metric(seed: int, c: float, radius: float) -> None:
    x, y, z = points(seed, c, radius, 3)
    d = lf.dist(x, y, c)
    assert (d > 0).all()
    assert (lf.dist(x, x, c) == 0).all()
    torch.testing.assert_close(lf.dist(y, x, c), d, rtol=1e-12, atol=0)
    assert (d <= lf.dist(x, z, c) + lf.dist(z, y, c) + 1e-12).all()


@given(seeds, curvatures, radii)
def test_curvature_only_rescales(seed: int, c: float, radius: float) -> None:
    x, y = points(seed, 1.0, radius, 2)
    expected = lf.dist(x, y) / c**0.5
    torch.testing.assert_close(lf.dist(x / c**0.5, y / c**0.5, c), expected, rtol=1e-12, atol=0)


@given(seeds, curvatures, radii)
def test_transport_is_an_isometry_with_an_inverse(seed: int, c: float, radius: float) -> None:
    x, y, z = points(seed, c, radius, 3)
    u, v = lf.logmap(x, z, c), lf.logmap(x, y, c)
    moved_u, moved_v = lf.parallel_transport(x, y, u, c), lf.parallel_transport(x, y, v, c)
    scale = length(x, u) * length(x, v)
    torch.testing.assert_close(
        lf.lorentz_inner(moved_u, moved_v) / scale, lf.lorentz_inner(u, v) / scale, atol=1e-6, rtol=0
    )
    torch.testing.assert_close(lf.parallel_transport(y, x, moved_u, c), u, rtol=1e-8, atol=1e-8 * float(u.abs().max()))
    # Along the geodesic its own direction is carried: PT(log_x y) = -log_y x.
    torch.testing.assert_close(moved_v, -lf.logmap(y, x, c), rtol=1e-8, atol=1e-8 * float(v.abs().max()))


@given(seeds, curvatures, radii)
def test_tangent_projection(seed: int, c: float, radius: float) -> None:
    (x,) = points(seed, c, radius, 1)
    w = torch.randn(6, 4, dtype=torch.float64)
    u = lf.project_tangent(x, w, c)
    torch.testing.assert_close(u, w + c * lf.lorentz_inner(x, w).unsqueeze(-1) * x, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(lf.project_tangent(x, u, c), u, rtol=1e-6, atol=1e-6)


@given(seeds, curvatures, radii)
def test_pairwise_agrees_with_rows(seed: int, c: float, radius: float) -> None:
    x, y = points(seed, c, radius, 2)
    rows = lf.dist(x.unsqueeze(1), y.unsqueeze(0), c)
    torch.testing.assert_close(lf.pairwise_dist(x, y, c, exact=True), rows, rtol=1e-14, atol=0)
    torch.testing.assert_close(lf.pairwise_dist(x, y, c), rows, rtol=1e-8, atol=1e-6)
    inner = lf.inner(x.unsqueeze(1), y.unsqueeze(0), c)
    torch.testing.assert_close(lf.pairwise_inner(x, y, c), inner, rtol=1e-10, atol=0)


@given(seeds, curvatures, radii, st.booleans())
def test_centroid_is_the_minimiser(seed: int, c: float, radius: float, native: bool) -> None:
    x = torch.stack(points(seed, c, radius, 4), dim=-2)
    weights = torch.rand(6, 2, 4, dtype=torch.float64)
    m = lf.centroid(x, weights, c, precision="native" if native else "auto")
    s = weights @ x
    expected = s / (-c * lf.lorentz_inner(s, s)).sqrt().unsqueeze(-1)
    torch.testing.assert_close(m, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(lf.centroid(x, 7.0 * weights, c), m, rtol=1e-9, atol=1e-12)


def test_centroid_far_out_of_equal_points_is_the_point() -> None:
    x = lf.expmap0(torch.tensor([[30.0, 0.0], [30.0, 0.0]]))
    weights = torch.tensor([[0.25, 0.75]])
    torch.testing.assert_close(lf.centroid(x, weights), x[:1])
    torch.testing.assert_close(lf.centroid(x, weights, precision="native")[:, 1:], x[:1, 1:])


@pytest.mark.parametrize("c", [0.3, 1.0, 4.0])
def test_agrees_with_geoopt_in_float64(c: float) -> None:
    theirs = geoopt.Lorentz(k=torch.tensor(1.0 / c, dtype=torch.float64))
    x, y, z = points(3, c, 1.0, 3)
    v = lf.logmap(x, z, c)
    torch.testing.assert_close(lf.dist(x, y, c), theirs.dist(x, y), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lf.logmap(x, y, c), theirs.logmap(x, y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lf.expmap(x, v, c), theirs.expmap(x, v), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lf.parallel_transport(x, y, v, c), theirs.transp(x, y, v), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(lf.project_tangent(x, z, c), theirs.proju(x, z), rtol=1e-8, atol=1e-8)


def test_time_part_of_the_input_is_not_read() -> None:
    x, y = points(0, 1.0, 1.0, 2)
    wrong = torch.cat([torch.full_like(x[..., :1], -5.0), x[..., 1:]], dim=-1)
    assert torch.equal(lf.dist(wrong, y), lf.dist(x, y))
    assert torch.equal(lf.logmap(wrong, y), lf.logmap(x, y))
    assert torch.equal(lf.logmap0(wrong), lf.logmap0(x))


def test_curvature_may_be_a_tensor_per_block() -> None:
    c = torch.tensor([0.2, 1.0, 5.0]).reshape(3, 1, 1)
    v = torch.randn(3, 4, 2)
    w = torch.randn(3, 4, 2)
    x, y = lf.expmap0(v, c), lf.expmap0(w, c)
    for i, value in enumerate([0.2, 1.0, 5.0]):
        one = lf.expmap0(v[i], value), lf.expmap0(w[i], value)
        torch.testing.assert_close(lf.dist(x, y, c)[i], lf.dist(*one, value))
        torch.testing.assert_close(lf.pairwise_dist(x, y, c)[i], lf.pairwise_dist(*one, value))
        torch.testing.assert_close(lf.pairwise_dist(x, y, c, exact=True)[i], lf.pairwise_dist(*one, value))
        torch.testing.assert_close(
            lf.centroid(x, torch.ones(3, 1, 4), c)[i], lf.centroid(one[0], torch.ones(1, 4), value)
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_raised_to_float32(dtype: torch.dtype) -> None:
    v = torch.randn(5, 3).to(dtype)
    for result in (lf.expmap0(v), lf.dist(lf.expmap0(v).to(dtype), lf.expmap0(-v).to(dtype)), lf.logmap0(v)):
        assert result.dtype == torch.float32
    assert torch.equal(lf.expmap0(v), lf.expmap0(v.float()))


def test_autocast_changes_nothing() -> None:
    x, y = lf.expmap0(torch.randn(2, 6, 4))
    weights = torch.rand(2, 6)
    plain = (
        lf.pairwise_inner(x, y, precision="native"),
        lf.centroid(x, weights),
        lf.centroid(x, weights, precision="native"),
        lf.lorentz_attention(x, y, y, scale=2.0),
        lf.lorentz_inner(x, y),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = (
            lf.pairwise_inner(x, y, precision="native"),
            lf.centroid(x, weights),
            lf.centroid(x, weights, precision="native"),
            lf.lorentz_attention(x, y, y, scale=2.0),
            lf.lorentz_inner(x, y),
        )
    for a, b in zip(plain, cast, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("c", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_curvature_is_refused(c: float) -> None:
    with pytest.raises(ValueError, match="expected a finite number > 0"):
        lf.expmap0(torch.zeros(2), c)


def test_unknown_precision_is_refused() -> None:
    # TypeError where annotations are checked at run time, as in these tests.
    with pytest.raises((ValueError, TypeError), match="'native'"):
        lf.expmap0(torch.zeros(2), precision="double")  # type: ignore[arg-type]


def test_float32_and_float64_agree_and_keep_their_dtype(
    name: str, operation: Callable[..., Tensor], inputs: Callable[..., tuple[Tensor, ...]]
) -> None:
    # At their default precision the operations must agree in both dtypes to float32 rounding.
    arguments = inputs(0.8, torch.float32)
    single, double = operation(*arguments), operation(*(argument.double() for argument in arguments))
    assert single.dtype == torch.float32
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("c", [0.5, 2.0])
def test_native_float32_is_sound_near_the_origin(c: float) -> None:
    x, y, z = (p.float() for p in points(5, c, 1.0, 3))
    v = lf.logmap(x, z, c)
    for function, arguments in (
        (lf.dist, (x, y)),
        (lf.inner, (x, y)),
        (lf.logmap, (x, y)),
        (lf.expmap, (x, v)),
        (lf.parallel_transport, (x, y, v)),
        (lf.exterior_angle, (x, y)),
        (lf.half_aperture, (x,)),
        (lf.centroid, (x, torch.ones(2, 6))),
        (lf.pairwise_dist, (x, y)),
    ):
        native = function(*arguments, c=c, precision="native")
        torch.testing.assert_close(native, function(*arguments, c=c, precision="float64"), rtol=1e-4, atol=1e-5)


@given(seeds, curvatures, radii, st.sampled_from([-0.5, 0.0, 0.3, 0.5, 1.0, 1.5]))
def test_geodesic_passes_at_the_share_of_the_distance(seed: int, c: float, radius: float, t: float) -> None:
    x, y = points(seed, c, radius, 2)
    d, z = lf.dist(x, y, c), lf.geodesic(x, y, t, c)
    torch.testing.assert_close(lf.dist(x, z, c), abs(t) * d, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(lf.dist(z, y, c), abs(1 - t) * d, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(z, lf.expmap(x, t * lf.logmap(x, y, c), c), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(z, lf.geodesic(y, x, 1 - t, c), rtol=1e-9, atol=1e-12)


def test_geodesic_ends_exactly_broadcasts_and_survives_the_edges() -> None:
    x, y = lf.expmap0(torch.randn(2, 5, 3), 0.5)
    assert torch.equal(lf.geodesic(x, y, 0.0, 0.5)[:, 1:], x[:, 1:])
    assert torch.equal(lf.geodesic(x, y, 1, 0.5)[:, 1:], y[:, 1:])
    path = lf.geodesic(x, y, torch.linspace(0, 1, 7).reshape(7, 1, 1), 0.5)
    assert path.shape == (7, 5, 4)
    torch.testing.assert_close(path[3], lf.geodesic(x, y, 0.5, 0.5))
    steps = lf.dist(path[1:], path[:-1], 0.5)
    torch.testing.assert_close(steps, (lf.dist(x, y, 0.5) / 6).expand(6, 5), rtol=1e-4, atol=1e-5)
    # Coincident points, and points 100 apart on opposite sides: the middle is the origin.
    assert torch.equal(lf.geodesic(x, x, 0.3)[:, 1:], x[:, 1:])
    far = lf.expmap0(torch.tensor([[50.0, 0.0], [-50.0, 0.0]]))
    assert torch.equal(lf.geodesic(far[0], far[1], 0.5), lf.project(torch.zeros(2)))
    torch.testing.assert_close(lf.dist0(lf.geodesic(far[0], far[1], 0.25)), torch.tensor(25.0))


def test_gradient_of_a_geodesic_by_its_share_is_the_velocity() -> None:
    x, y = (p[0] for p in points(1, 0.7, 1.0, 2))
    for t in (0.0, -0.2, 0.4, 1.0):
        velocity = torch.func.jacrev(lambda t: lf.geodesic(x, y, t, 0.7))(torch.tensor(t, dtype=torch.float64))
        torch.testing.assert_close(lf.lorentz_inner(velocity, velocity).sqrt(), lf.dist(x, y, 0.7))
    torch.testing.assert_close(
        torch.func.jacrev(lambda t: lf.geodesic(x, y, t, 0.7))(torch.zeros((), dtype=torch.float64)),
        lf.logmap(x, y, 0.7),
    )


@given(seeds, curvatures, radii)
def test_dist0_is_the_distance_from_the_origin(seed: int, c: float, radius: float) -> None:
    (x,) = points(seed, c, radius, 1)
    origin = lf.project(torch.zeros(3, dtype=torch.float64), c)
    torch.testing.assert_close(lf.dist0(x, c), lf.dist(origin, x, c), rtol=1e-13, atol=0)
    torch.testing.assert_close(lf.dist0(x, c), lf.logmap0(x, c).norm(dim=-1), rtol=1e-13, atol=0)
    zero = torch.zeros(4).requires_grad_()
    (gradient,) = torch.autograd.grad(lf.dist0(zero, c), zero)
    assert torch.equal(gradient, torch.zeros(4))


_SCRIPT = """
import sys
import {module}
print(sorted(name for name in ("geoopt", "scipy", "matplotlib", "pandas", "IPython") if name in sys.modules))
"""


@pytest.mark.parametrize("module", ["lorentz", "lorentz.models, lorentz.distributions"])
def test_import_pulls_in_torch_and_nothing_else_that_is_large(module: str) -> None:
    script = _SCRIPT.format(module=module)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
