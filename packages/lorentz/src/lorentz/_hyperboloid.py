"""Cancellation-free building blocks on space parts (axis kept): every public operation is made of these."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._precision import Scalar
from ._series import safe_divide


def root(c: Scalar) -> Scalar:
    """sqrt(c) for a number or a tensor."""
    return torch.sqrt(c) if isinstance(c, Tensor) else math.sqrt(c)


def scaled(q: Tensor, factor: Scalar) -> Tensor:
    """q factor; q itself at factor 1, the usual curvature, since a pass over the norms is a tenth of `expmap0`."""
    return q if isinstance(factor, float) and factor == 1.0 else q * factor


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean inner product over the last axis, which stays with length 1."""
    return (a * b).sum(-1, keepdim=True)


# Squares of float32 coordinates overflow at radius 44. An exact power of two keeps them in range up to radius 66, and
# what it lets underflow (|x| < 1e-9) is far below the rounding of 1/c.
SHRINK = 2.0**-32


def shrunk_square(x: Tensor) -> Tensor:
    """SHRINK^2 |x|^2 in one pass, where |x|^2 itself might overflow (the factor is applied before the product)."""
    return torch.addcmul(x.new_zeros(()), x, x, value=SHRINK**2).sum(-1, keepdim=True)


def time(x: Tensor, c: Scalar) -> Tensor:
    """Time part x0 = sqrt(1/c + |x|^2) of the point with space part x."""
    return torch.sqrt(dot(x, x) + 1.0 / c)


def safe_time(x: Tensor, c: Scalar) -> Tensor:
    """`time`, where |x|^2 itself might overflow."""
    return torch.sqrt(shrunk_square(x) + SHRINK**2 / c) / SHRINK


def point(x: Tensor, x0: Tensor) -> Tensor:
    """Put the time part in front; a tensor of curvatures may have given it more leading axes."""
    if x0.shape[:-1] != x.shape[:-1]:
        x = x.expand(*x0.shape[:-1], x.shape[-1])
    return torch.cat([x0, x], dim=-1)


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


def wedge_squared(x: Tensor, v: Tensor, c: Scalar) -> Tensor:
    """|x ^ v|^2 = |x|^2 |v|^2 - (x.v)^2.

    Far out the Gram form cancels and |x|^2 |p|^2 is used, p the part of v across x; near the origin the Gram form is
    exact enough, and smooth.
    """
    xx, xv = dot(x, x), dot(x, v)
    near = c * xx <= 1.0
    p = v - xv / torch.where(near, 1.0, xx) * x
    return torch.where(near, xx * dot(v, v) - xv.square(), xx * dot(p, p))


class Pair(NamedTuple):
    """What the formulas for two points share, each dot product formed once. Space parts, axis kept."""

    d: Tensor  # y - x
    e: Tensor  # the shorter of d and y: both have the same part across x, and the shorter one rounds less
    p: Tensor  # the part of y across x, where `near` is false
    near: Tensor  # c |x|^2 <= 1
    xx: Tensor
    yy: Tensor
    dd: Tensor
    xy: Tensor
    xd: Tensor
    wedge: Tensor  # |x ^ y|^2 = |x ^ d|^2, by the two forms of `wedge_squared`


def pair(x: Tensor, y: Tensor, c: Scalar) -> Pair:
    """Form the quantities of `Pair`."""
    d = y - x
    xx, yy, dd, xy, xd = dot(x, x), dot(y, y), dot(d, d), dot(x, y), dot(x, d)
    near, short = c * xx <= 1.0, dd < yy
    e = torch.where(short, d, y)
    p = torch.addcmul(e, torch.where(short, xd, xy) / torch.where(near, 1.0, xx), x, value=-1)
    wedge = torch.where(near, xx * dd - xd.square(), xx * dot(p, p))
    return Pair(d, e, p, near, xx, yy, dd, xy, xd, wedge)


def separation(of: Pair, c: Scalar) -> Tensor:
    """Q = c <x-y, x-y>_L = 4 sinh^2(sqrt(c) dist / 2): to rounding, also for close points far out."""
    a, b = c * of.xx, c * of.yy
    product = torch.sqrt(1.0 + a) * torch.sqrt(1.0 + b)  # c x0 y0
    same_side = of.xy >= 0
    acute = 2.0 * c * (of.dd + c * of.wedge) / (1.0 + product + torch.where(same_side, c * of.xy, 0.0))
    obtuse = 2.0 * ((a + b + a * b) / (1.0 + product) - c * of.xy)
    return torch.where(same_side, acute, obtuse)


def ahead(of: Pair, q: Tensor, c: Scalar) -> Tensor:
    """|x| (x0 (u.y) - |x| y0), u = x/|x|, q the separation: how far y lies beyond x on the ray from the origin."""
    x0, y0 = torch.sqrt(of.xx + 1.0 / c), torch.sqrt(of.yy + 1.0 / c)
    near = (of.xd * (2.0 + 0.5 * q) / c - of.wedge) / (x0 + y0)
    return torch.where(of.xy >= 0, near, x0 * of.xy - of.xx * y0)


def tangent_norm_squared(x: Tensor, v: Tensor, c: Scalar) -> Tensor:
    """|v|_L^2 of the tangent vector at x with space part v, free of the cancellation in |v_s|^2 - v_0^2."""
    return (dot(v, v) / c + wedge_squared(x, v, c)) / (dot(x, x) + 1.0 / c)


def tangent_inner(x: Tensor, u: Tensor, v: Tensor, c: Scalar) -> Tensor:
    """<u, v>_L of tangent vectors at x by their space parts; `tangent_norm_squared` polarised."""
    wedge = dot(x, x) * dot(across(x, u), across(x, v))
    return (dot(u, v) / c + wedge) / (dot(x, x) + 1.0 / c)
