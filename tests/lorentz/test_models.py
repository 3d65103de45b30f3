"""Poincare and Klein coordinates, and the operations of the Poincare ball."""

from collections.abc import Callable
from functools import partial

import pytest
import textbook as tb
import torch
from hypothesis import given
from laws import LAW, Situation, situations
from mpmath import mp, mpf
from textbook import Number, Vector
from torch import Tensor

import lorentz.functional as lf
from lorentz import models
from lorentz.models import (
    from_poincare,
    mobius_add,
    poincare_dist,
    poincare_expmap,
    poincare_expmap0,
    poincare_logmap,
    poincare_logmap0,
    to_poincare,
)

DOUBLE = (torch.float64,)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def test_a_point_of_the_ball_is_the_projection_of_the_point() -> None:
    # Poincare: the line from (-1/sqrt(c), 0) to the point meets x0 = 0 at p.
    c = 0.4
    x = lf.expmap0(torch.randn(9, 3, dtype=torch.float64), c)
    apex = 1 / c**0.5
    torch.testing.assert_close(to_poincare(x, c), x[:, 1:] * apex / (x[:, :1] + apex))


@LAW
@given(situations(2, dtypes=DOUBLE))
def test_operations_of_the_ball_are_those_of_the_hyperboloid(situation: Situation) -> None:
    c, _, (x, y) = situation
    p, q = to_poincare(x, c), to_poincare(y, c)
    torch.testing.assert_close(poincare_dist(p, q, c), lf.dist(x, y, c), **CLOSE)
    torch.testing.assert_close(mobius_add(p, q, c), to_poincare(lf.gyro_add(x, y, c), c), **CLOSE)
    torch.testing.assert_close(2.0 * poincare_logmap0(p, c), lf.logmap0(x, c), **CLOSE)
    torch.testing.assert_close(poincare_expmap0(0.5 * lf.logmap0(x, c), c), p, **CLOSE)
    # The differential of to_poincare carries tangent vectors.
    v = lf.logmap(x, y, c)
    _, carried = torch.func.jvp(lambda space: to_poincare(lf.project(space, c), c), (x[1:],), (v[1:],))
    torch.testing.assert_close(poincare_logmap(p, q, c), carried, **CLOSE)
    torch.testing.assert_close(poincare_expmap(p, carried, c), q, **CLOSE)


def minus(p: Vector) -> Vector:
    return tb.scale(-1, p)


def off(p: Vector, c: Number) -> Number:
    """1 - c|p|^2."""
    return 1 - c * tb.dot(p, p)


def atanh_of(p: Vector, c: Number) -> tuple[Number, Number]:
    """sqrt(c) |p|, and its inverse hyperbolic tangent."""
    length = mp.sqrt(c * tb.dot(p, p))
    return length, mp.atanh(length)


def expmap(p: Vector, v: Vector, c: Number) -> Vector:
    t = mp.sqrt(c * tb.dot(v, v)) / off(p, c)
    return tb.ball_add(p, tb.scale(mp.tanh(t) / t / off(p, c), v), c)


def logmap(p: Vector, q: Vector, c: Number) -> Vector:
    u = tb.ball_add(minus(p), q, c)
    length, angle = atanh_of(u, c)
    return tb.scale(off(p, c) * angle / length, u)


def gyr(u: Vector, v: Vector, w: Vector, c: Number) -> Vector:
    uu, vv, uv, uw, vw = tb.dot(u, u), tb.dot(v, v), tb.dot(u, v), tb.dot(u, w), tb.dot(v, w)
    of_u, of_v = c * vw - c * c * uw * vv + 2 * c * c * uv * vw, -c * c * vw * uu - c * uw
    below = 1 + 2 * c * uv + c * c * uu * vv
    return tb.combine(1, w, 2 / below, tb.combine(of_u, u, of_v, v))


def plane(x: Vector, p: Vector, a: Vector, c: Number) -> Vector:
    u = tb.ball_add(minus(p), x, c)
    return [mp.asinh(2 * mp.sqrt(c) * tb.dot(u, a) / (off(u, c) * mp.sqrt(tb.dot(a, a)))) / mp.sqrt(c)]


def scaled(p: Vector, c: Number) -> Vector:
    length, angle = atanh_of(p, c)
    return tb.scale(mp.tanh(mpf(0.75) * angle) / length, p)


# Ours, the arguments, and the textbook's formulas (Ungar 2008; Ganea et al. 2018).
BALL: dict[Callable[..., Tensor], tuple[str, Callable[..., Vector]]] = {
    models.mobius_add: ("pq", tb.ball_add),
    models.poincare_dist: ("pq", lambda p, q, c: [2 * atanh_of(tb.ball_add(minus(p), q, c), c)[1] / mp.sqrt(c)]),
    models.poincare_expmap: ("pq", expmap),  # far too long a vector near the rim: the result is on the rim
    models.poincare_logmap: ("pq", logmap),
    models.poincare_expmap0: ("q", lambda q, c: expmap([mpf(0)] * len(q), q, c)),
    models.poincare_logmap0: ("q", lambda q, c: logmap([mpf(0)] * len(q), q, c)),
    models.gyration: ("pqv", gyr),
    models.poincare_transport: (
        "pqv",
        lambda p, q, v, c: tb.scale(off(q, c) / off(p, c), gyr(q, minus(p), v, c)),
    ),
    models.poincare_plane_dist: ("qpv", plane),
    partial(models.mobius_scale, 0.75): ("p", scaled),
    models.conformal_factor: ("p", lambda p, c: [2 / off(p, c)]),
}


@pytest.mark.parametrize("c", [0.3, 1.0, 5.0])
def test_the_ball_is_right_to_rounding_near_the_rim(c: float) -> None:
    """One eps at float32 points up to distance 15 from the centre: close, opposite, apart, and one near the centre."""
    radius = torch.tensor([0.5, 4.0, 8.0, 12.0, 15.0]).repeat_interleave(4).unsqueeze(-1) / c**0.5
    u, noise, v = torch.nn.functional.normalize(torch.randn(3, 20, 3), dim=-1)
    p = to_poincare(lf.expmap0(radius * u, c), c)
    near = to_poincare(lf.expmap0((radius - 0.3 / c**0.5) * (u + 1e-4 * noise), c), c)
    q = torch.stack([p.roll(5, 0), near, -near, 1e-3 * p.roll(3, 0)])[torch.arange(20) % 4, torch.arange(20)]
    rows = {"p": p, "q": q, "v": v}
    with mp.workdps(80):
        for ours, (names, exact) in BALL.items():
            values = ours(*(rows[name] for name in names), c).reshape(20, -1)
            for row in range(20):
                expected = exact(*([mpf(a) for a in rows[name][row].tolist()] for name in names), mpf(c))
                gap = mp.norm([mpf(a) - b for a, b in zip(values[row].tolist(), expected, strict=True)])
                assert gap <= torch.finfo(torch.float32).eps * mp.norm(expected), ours


def test_second_derivatives_at_the_centre_and_at_equal_points() -> None:
    p = torch.tensor([[0.0, 0.0], [0.3, -0.2]], dtype=torch.float64)
    for function in (lambda p: mobius_add(p, p + 0.1), lambda p: poincare_logmap(p, p + 0.1), poincare_logmap0):
        leaf = p.clone().requires_grad_()
        assert torch.autograd.gradgradcheck(function, leaf)
    for function in (lambda v: poincare_expmap(p, v), poincare_expmap0, lambda v: poincare_logmap(p, p + v)):
        leaf = torch.zeros_like(p).requires_grad_()
        assert torch.autograd.gradgradcheck(function, leaf)


@pytest.mark.usefixtures("unchecked")
def test_points_outside_the_ball_are_refused_when_checked() -> None:
    p, outside = torch.zeros(2, 3), torch.tensor([[0.5, 0.0, 0.0], [2.0, 0.0, 0.0]])
    for function in (mobius_add, poincare_dist, poincare_logmap):
        with pytest.raises(ValueError, match=r"^q: 1 of 2 points .* got sqrt\(c\) \|q\| up to 2, expected below 1"):
            function(p, outside)
    for back in (from_poincare, poincare_logmap0, lambda p: poincare_expmap(p, p)):
        with pytest.raises(ValueError, match=r"^p: 1 of 2 points .* lorentz\.models\.to_poincare\(p, c\)"):
            back(outside)
    assert torch.vmap(mobius_add)(p, outside).shape == (2, 3)  # values cannot be read there
