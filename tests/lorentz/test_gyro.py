"""Gyroaddition and gyroscaling: the laws, the definition by maps, and Moebius addition in the Poincare ball."""

import pytest
import textbook as tb
import torch
from hypothesis import given
from laws import LAW, Situation, situations
from mpmath import mp, mpf
from torch import Tensor

import lorentz

F64 = torch.float64
DOUBLE = (F64,)


def inverse(x: Tensor, c: float) -> Tensor:
    return lorentz.project(-x[..., 1:], c)


@LAW
@given(situations(3, dtypes=DOUBLE))
def test_laws_of_a_gyrogroup(situation: Situation) -> None:
    c, _, (x, y, z) = situation
    o = lorentz.origin(len(x), c=c, dtype=F64)
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(lorentz.gyro_add(x, o, c), x, **close)
    torch.testing.assert_close(lorentz.gyro_add(o, x, c), x, **close)
    torch.testing.assert_close(lorentz.gyro_add(inverse(x, c), lorentz.gyro_add(x, y, c), c), y, **close)
    back = lorentz.gyro_add(inverse(x, c), y, c)
    torch.testing.assert_close(lorentz.dist0(back, c), lorentz.dist(x, y, c), **close)
    moved = [lorentz.gyro_add(x, point, c) for point in (y, z)]
    torch.testing.assert_close(lorentz.dist(*moved, c), lorentz.dist(y, z, c), rtol=1e-8, atol=1e-8)


@LAW
@given(situations(1, dtypes=DOUBLE))
def test_laws_of_scaling(situation: Situation) -> None:
    c, _, (x,) = situation
    close = {"rtol": 1e-9, "atol": 1e-9}
    for r, s in ((0.5, 1.5), (-1.0, 0.25), (2.0, 0.0)):
        scaled = [lorentz.gyro_scale(number, x, c) for number in (r, s)]
        torch.testing.assert_close(lorentz.gyro_add(*scaled, c), lorentz.gyro_scale(r + s, x, c), **close)
        torch.testing.assert_close(lorentz.gyro_scale(r, scaled[1], c), lorentz.gyro_scale(r * s, x, c), **close)
        torch.testing.assert_close(lorentz.dist0(scaled[0], c), abs(r) * lorentz.dist0(x, c), **close)
    torch.testing.assert_close(lorentz.gyro_scale(1, x, c), x)
    torch.testing.assert_close(lorentz.gyro_scale(-1, x, c), inverse(x, c))


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_addition_is_right_to_rounding_in_float32(c: float) -> None:
    """Against 120 digits, at radius up to 10, sums that nearly cancel among them."""
    radius = torch.tensor([1.0, 5.0, 10.0]).repeat_interleave(6).unsqueeze(-1) / c**0.5
    x = lorentz.expmap0(radius * torch.nn.functional.normalize(torch.randn(18, 4), dim=-1), c)
    y = lorentz.gyro_add(inverse(x, c), lorentz.expmap0(0.01 * torch.randn(18, 4), c), c)
    got = lorentz.gyro_add(x, torch.cat([y[:9], x[9:].roll(1, 0)]), c)[:, 1:]
    for row, left, right in zip(got, x[:, 1:], torch.cat([y[:9], x[9:].roll(1, 0)])[:, 1:], strict=True):
        p, q, k = ([mpf(number) for number in left.tolist()], [mpf(number) for number in right.tolist()], mpf(c))
        root = mp.sqrt(k)
        share = root * (tb.point(q, k)[0] + root * tb.dot(p, q) / (1 + root * tb.point(p, k)[0]))
        exact = tb.combine(1, q, share, p)
        error = mp.sqrt(sum((mpf(a) - b) ** 2 for a, b in zip(row.tolist(), exact, strict=True)))
        assert error <= torch.finfo(torch.float32).eps * mp.sqrt(tb.dot(exact, exact))


def test_origin_is_where_the_distance_is_zero_and_follows_c() -> None:
    c = torch.tensor(4.0, requires_grad=True)
    o = lorentz.origin(2, 3, c=c)
    assert torch.equal(o.detach(), torch.tensor([[0.5, 0.0, 0.0]] * 2))
    (gradient,) = torch.autograd.grad(o[0, 0], c)
    assert gradient.item() == pytest.approx(-1.0 / 16.0)  # of 1/sqrt(c)
    assert lorentz.origin(2, 3, c=torch.tensor([[1.0], [4.0]])).tolist() == [[1.0, 0.0, 0.0], [0.5, 0.0, 0.0]]
