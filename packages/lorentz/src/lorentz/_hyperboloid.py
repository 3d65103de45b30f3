"""Cancellation-free building blocks on space parts (axis kept): every public operation is made of these."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._precision import Scalar
from ._series import safe_divide, safe_sqrt


def root(c: Scalar) -> Scalar:
    """sqrt(c) for a number or a tensor."""
    return torch.sqrt(c) if isinstance(c, Tensor) else math.sqrt(c)


def scaled(q: Tensor, factor: Scalar) -> Tensor:
    """q factor; q itself at factor 1, the usual curvature, since a pass over the norms is a tenth of `expmap0`."""
    return q if isinstance(factor, float) and factor == 1.0 else q * factor


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean inner product over the last axis, which stays with length 1."""
    return (a * b).sum(-1, keepdim=True)


# In eps of |e|: the rounding of the part of e across a line. That of float32 inputs is far below what they can hold.
SNAP = 8.0

# Squares of float32 coordinates overflow at radius 44. An exact power of two keeps them in range up to radius 66, and
# what it lets underflow (|x| < 1e-9) is far below the rounding of 1/c.
SHRINK = 2.0**-32


def range_factor(x: Tensor) -> Tensor:
    """An exact power of two for every row, (*b, 1), with which the squares of its coordinates stay in range."""
    top = 2.0 ** (math.frexp(torch.finfo(x.dtype).max)[1] // 2)  # squares of larger numbers overflow
    largest = x.detach().abs().amax(-1, keepdim=True)  # a tenth of the time of the norm of that name
    return torch.where(largest > 2.0**-8 * top, largest.new_full((), 1.0 / top), 1.0)


def length(x: Tensor) -> Tensor:
    """|x| up to the largest coordinates that the dtype has; zero subgradient at 0."""
    factor = range_factor(x)
    small = x * factor
    return safe_sqrt(dot(small, small)) / factor


def time(x: Tensor, c: Scalar) -> Tensor:
    """Time part x0 = sqrt(1/c + |x|^2) of the point with space part x."""
    return torch.sqrt(dot(x, x) + 1.0 / c)


def far_time(x: Tensor, c: Scalar) -> Tensor:
    """`time` up to the largest coordinates that the dtype has."""
    factor = range_factor(x)
    small = x * factor
    return torch.sqrt(dot(small, small) + factor.square() / c) / factor


def safe_time(x: Tensor, c: Scalar) -> Tensor:
    """`time` up to radius 66 in float32, for the cost of `time`: what lies inside of a network stays below that."""
    squares = torch.addcmul(x.new_zeros(()), x, x, value=SHRINK**2)  # the factor is applied before the product
    return torch.sqrt(squares.sum(-1, keepdim=True) + SHRINK**2 / c) / SHRINK


def point(x: Tensor, x0: Tensor) -> Tensor:
    """Put the time part in front; a tensor of curvatures may have given it more leading axes."""
    if x0.shape[:-1] != x.shape[:-1]:
        x = x.expand(*x0.shape[:-1], x.shape[-1])
    return torch.cat([x0, x], dim=-1)


def lifted(x: Tensor, c: Scalar) -> Tensor:
    """The point with space part x."""
    return point(x, time(x, c))


def across(x: Tensor, e: Tensor) -> Tensor:
    """The part of e orthogonal to x (all of e at x = 0)."""
    return e - safe_divide(dot(x, e), dot(x, x)) * x


def across_exact(x: Tensor, e: Tensor) -> Tensor:
    """`across`, but exactly 0 for parallel x and e: the largest coordinate of x is eliminated first.

    e_j x_k and e_k x_j are the same real number on the line, so they round alike and their difference is 0.
    """
    k = x.abs().argmax(-1, keepdim=True)
    pivot = x.gather(-1, k)
    return across(x, safe_divide(e * pivot - e.gather(-1, k) * x, pivot))


def is_rounding(pp: Tensor, ee: Tensor) -> Tensor:
    """Whether |p|^2 of the part p of e across a line is no more than the rounding of e; |e|^2 given."""
    return pp <= (SNAP * torch.finfo(pp.dtype).eps) ** 2 * ee


def off_the_line(p: Tensor, ee: Tensor) -> Tensor:
    """The part p of e across a line, but exactly 0 where it is no more than the rounding of e; |e|^2 given.

    Far out even rounding would count, weighed with c |x|^2. Derivatives of p stay, which are not 0 on the line.
    """
    return torch.addcmul(p, is_rounding(dot(p, p), ee).to(p.dtype), p.detach(), value=-1)


class Pair(NamedTuple):
    """What the formulas for two points share, each dot product formed once. Space parts, axis kept."""

    d: Tensor  # y - x
    e: Tensor  # the shorter of d and y: both have the same part across x, and the shorter one rounds less
    p: Tensor  # the part of y across x, where `near` is false; 0, with a derivative, where it is only rounding
    near: Tensor  # c |x|^2 <= 1
    xx: Tensor
    yy: Tensor
    dd: Tensor
    xy: Tensor
    xd: Tensor
    wedge: tuple[
        Tensor, Tensor
    ]  # factors of |x ^ y|^2 = |x ^ d|^2, |x|^2 |d|^2 - (x.d)^2 near the origin, where it is smooth;
    # far out that cancels and it is |x|^2 |p|^2


def pair(x: Tensor, y: Tensor, c: Scalar) -> Pair:
    """Form the quantities of `Pair`."""
    d = y - x
    xx, yy, dd, xy, xd = dot(x, x), dot(y, y), dot(d, d), dot(x, y), dot(x, d)
    near, short = c * xx <= 1.0, dd < yy
    e = torch.where(short, d, y)
    p = torch.addcmul(e, torch.where(short, xd, xy) / torch.where(near, 1.0, xx), x, value=-1)
    p = off_the_line(p, torch.where(short, dd, yy))
    wedge = torch.where(near, 1.0, xx), torch.where(near, xx * dd - xd.square(), dot(p, p))
    return Pair(d, e, p, near, xx, yy, dd, xy, xd, wedge)


def separation(of: Pair, c: Scalar) -> Tensor:
    """Q = c <x-y, x-y>_L = 4 sinh^2(sqrt(c) dist / 2): to rounding, also for close points far out."""
    a, b = c * of.xx, c * of.yy
    total = 1.0 + torch.sqrt(1.0 + a) * torch.sqrt(1.0 + b)  # 1 + c x0 y0
    same_side = of.xy >= 0
    beyond = total + torch.where(same_side, c * of.xy, 0.0)
    # In this order of factors nothing overflows before the squares a and b do.
    acute = 2.0 * c * (of.dd / beyond + c * (of.wedge[0] / beyond) * of.wedge[1])
    obtuse = 2.0 * (a / total * (1.0 + b) + b / total - c * of.xy)
    return torch.where(same_side, acute, obtuse)


def ahead(of: Pair, q: Tensor, c: Scalar) -> Tensor:
    """|x| (x0 (u.y) - |x| y0), u = x/|x|, q the separation: how far y lies beyond x on the ray from the origin."""
    x0, y0 = torch.sqrt(of.xx + 1.0 / c), torch.sqrt(of.yy + 1.0 / c)
    total = x0 + y0
    near = of.xd / total * ((2.0 + 0.5 * q) / c) - of.wedge[0] / total * of.wedge[1]
    return torch.where(of.xy >= 0, near, x0 * of.xy - of.xx * y0)


def tangent_norm_squared(x: Tensor, v: Tensor, c: Scalar) -> Tensor:
    """|v|_L^2 of the tangent vector at x with space part v, free of the cancellation in |v_s|^2 - v_0^2.

    (|v_s|^2 / c + |x ^ v_s|^2) / x0^2, the wedge by its two forms, see `Pair`.
    """
    xx, xv, vv = dot(x, x), dot(x, v), dot(v, v)
    near = c * xx <= 1.0
    p = off_the_line(torch.addcmul(v, xv / torch.where(near, 1.0, xx), x, value=-1), vv)
    xx0 = xx + 1.0 / c
    return vv / xx0 / c + torch.where(near, (xx * vv - xv.square()) / xx0, xx / xx0 * dot(p, p))


def tangent_inner(x: Tensor, u: Tensor, v: Tensor, c: Scalar) -> Tensor:
    """<u, v>_L of tangent vectors at x by their space parts; `tangent_norm_squared` polarised."""
    xx0 = dot(x, x) + 1.0 / c
    return dot(u, v) / c / xx0 + dot(x, x) / xx0 * dot(across(x, u), across(x, v))
