"""Poincare and Klein coordinates, and the operations of the Poincare ball."""

import geoopt
import pytest
import torch
from hypothesis import given
from laws import LAW, Situation, situations
from mpmath import mp, mpf
from textbook import ball_add, dot
from torch import Tensor

import lorentz
import lorentz.functional as lf
from lorentz.models import (
    from_klein,
    from_poincare,
    mobius_add,
    poincare_dist,
    poincare_expmap,
    poincare_expmap0,
    poincare_logmap,
    poincare_logmap0,
    to_klein,
    to_poincare,
)

DOUBLE = (torch.float64,)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def test_poincare_and_klein_are_the_projections_of_the_point() -> None:
    # Poincare: the line from (-1/sqrt(c), 0) to the point meets x0 = 0 at p. Klein: that from 0 meets x0 = 1/sqrt(c).
    c = 0.4
    x = lf.expmap0(torch.randn(9, 3, dtype=torch.float64), c)
    apex = 1 / c**0.5
    torch.testing.assert_close(to_poincare(x, c), x[:, 1:] * apex / (x[:, :1] + apex))
    torch.testing.assert_close(to_klein(x, c), x[:, 1:] * apex / x[:, :1])


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


@LAW
@given(situations(3, dtypes=DOUBLE, most=3.0))
def test_laws_of_the_ball_and_geoopt_in_float64(situation: Situation) -> None:
    c, _, points = situation
    p, q, w = (to_poincare(x, c) for x in points)
    v = 0.5 * w
    torch.testing.assert_close(poincare_logmap(p, poincare_expmap(p, v, c), c), v, **CLOSE)
    torch.testing.assert_close(mobius_add(-p, mobius_add(p, q, c), c), q, **CLOSE)
    moved = [mobius_add(w, point, c) for point in (p, q)]
    torch.testing.assert_close(poincare_dist(*moved, c), poincare_dist(p, q, c), rtol=1e-7, atol=1e-7)
    ball = geoopt.PoincareBall(c=torch.tensor(c, dtype=torch.float64))
    for ours, theirs in (
        (mobius_add(p, q, c), ball.mobius_add(p, q, project=False)),
        (poincare_dist(p, q, c), ball.dist(p, q)),
        (poincare_expmap(p, v, c), ball.expmap(p, v, project=False)),
        (poincare_logmap(p, q, c), ball.logmap(p, q)),
        (poincare_expmap0(v, c), ball.expmap0(v, project=False)),
        (poincare_logmap0(p, c), ball.logmap0(p)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def exact_of_the_ball(p: list[mpf], q: list[mpf], c: mpf) -> dict[str, list[mpf]]:
    """The textbook's formulas, for mpmath's digits."""

    u, off = ball_add([-a for a in p], q, c), 1 - c * dot(p, p)
    length = mp.sqrt(c * dot(u, u))
    log = [off * mp.atanh(length) / length * a for a in u]
    t = mp.sqrt(c * dot(q, q)) / off  # q as a tangent vector, far too long near the rim: the result is on the rim
    return {
        "add": ball_add(p, q, c),
        "dist": [2 * mp.atanh(length) / mp.sqrt(c)],
        "logmap": log,
        "expmap": ball_add(p, [mp.tanh(t) / t / off * a for a in q], c),
        "logmap0": [mp.atanh(mp.sqrt(c * dot(q, q))) / mp.sqrt(c * dot(q, q)) * a for a in q],
        "expmap0": [mp.tanh(t * off) / (t * off) * a for a in q],
    }


def pairs_near_the_rim(c: float) -> tuple[Tensor, Tensor]:
    """Float32 points up to distance 15 from the centre: apart, close, opposite, and one of them near the centre."""
    radius = torch.tensor([0.5, 4.0, 8.0, 12.0, 15.0]).repeat_interleave(4).unsqueeze(-1) / c**0.5
    u = torch.nn.functional.normalize(torch.randn(20, 3), dim=-1)
    p = to_poincare(lf.expmap0(radius * u, c), c)
    near = to_poincare(lf.expmap0((radius - 0.3 / c**0.5) * (u + 1e-4 * torch.randn(20, 3)), c), c)
    kinds = torch.stack([p.roll(5, 0), near, -near, 1e-3 * p.roll(3, 0)])
    return p, kinds[torch.arange(20) % 4, torch.arange(20)]


@pytest.mark.parametrize("c", [0.3, 1.0, 5.0])
def test_the_ball_is_right_to_rounding_near_the_rim(c: float) -> None:
    """One eps, against 80 digits of the textbook's formulas at the same float32 coordinates."""
    p, q = pairs_near_the_rim(c)
    ours = {
        "add": mobius_add(p, q, c),
        "dist": poincare_dist(p, q, c).unsqueeze(-1),
        "logmap": poincare_logmap(p, q, c),
        "expmap": poincare_expmap(p, q, c),
        "logmap0": poincare_logmap0(q, c),
        "expmap0": poincare_expmap0(q, c),
    }
    with mp.workdps(80):
        for row, (left, right) in enumerate(zip(p.tolist(), q.tolist(), strict=True)):
            exact = exact_of_the_ball([mpf(a) for a in left], [mpf(a) for a in right], mpf(c))
            for name, expected in exact.items():
                gap = mp.norm([mpf(a) - b for a, b in zip(ours[name][row].tolist(), expected, strict=True)])
                assert gap <= torch.finfo(torch.float32).eps * mp.norm(expected), name


def test_second_derivatives_at_the_centre_and_at_equal_points() -> None:
    p = torch.tensor([[0.0, 0.0], [0.3, -0.2]], dtype=torch.float64)
    for function in (lambda p: mobius_add(p, p + 0.1), lambda p: poincare_logmap(p, p + 0.1), poincare_logmap0):
        leaf = p.clone().requires_grad_()
        assert torch.autograd.gradgradcheck(function, leaf)
    for function in (lambda v: poincare_expmap(p, v), poincare_expmap0, lambda v: poincare_logmap(p, p + v)):
        leaf = torch.zeros_like(p).requires_grad_()
        assert torch.autograd.gradgradcheck(function, leaf)
    q = p.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(poincare_dist(p, q).sum(), q)
    assert not gradient.any()


def test_steps_that_are_too_long_end_on_the_rim_and_points_there_are_infinitely_far() -> None:
    p = torch.tensor([[0.999, 0.0], [0.0, 0.0]], requires_grad=True)
    v = torch.tensor([[0.0, 1.0], [1e4, 0.0]], requires_grad=True)
    q = poincare_expmap(p, v)
    torch.testing.assert_close(q.norm(dim=-1), torch.ones(2))
    for gradient in torch.autograd.grad(q.sum(), (p, v)):
        assert torch.isfinite(gradient).all()
    rim = torch.tensor([[1.0, 0.0], [1.0 + 1e-7, 0.0]])
    with lorentz.checked(False):
        assert (poincare_dist(torch.zeros(2), rim) == torch.inf).all()


@pytest.mark.usefixtures("unchecked")
def test_points_outside_the_ball_are_refused_when_checked() -> None:
    p, outside = torch.zeros(2, 3), torch.tensor([[0.5, 0.0, 0.0], [2.0, 0.0, 0.0]])
    for function in (mobius_add, poincare_dist, poincare_logmap):
        with pytest.raises(ValueError, match=r"^q: 1 of 2 points .* got sqrt\(c\) \|q\| up to 2, expected below 1"):
            function(p, outside)
    for back in (from_poincare, from_klein, poincare_logmap0, lambda p: poincare_expmap(p, p)):
        with pytest.raises(ValueError, match=r"^p: 1 of 2 points .* lorentz\.models\.to_poincare\(p, c\)"):
            back(outside)
    with pytest.raises(ValueError, match=r"^p: 2 of 2 points"):
        from_poincare(outside * torch.nan)
    from_poincare(outside, 0.2)  # of radius 2.24
    assert torch.vmap(mobius_add)(p, outside).shape == (2, 3)  # values cannot be read there
