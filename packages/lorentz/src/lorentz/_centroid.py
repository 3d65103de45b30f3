"""The Lorentz centroid: the weighted mean with respect to squared Lorentz distance."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from . import _extension
from . import _hyperboloid as hyp
from ._fused import Fused
from ._precision import Precision, Scalar, asked, evaluate
from ._series import safe_divide, safe_sqrt
from ._validation import check_alike, check_batch
from .points import ambient_points


def _gap(weights: Tensor, p: Tensor, s: Tensor, c: Scalar) -> Tensor:
    """s0 - |s| = sum_i w_i (1/c + |p_i across s|^2)/(p_i0 + p_i.u), u = s/|s|: a sum of positive terms."""
    p = p.unsqueeze(-3)
    u = safe_divide(s, safe_sqrt(hyp.dot(s, s))).unsqueeze(-2)
    c = c.unsqueeze(-1) if isinstance(c, Tensor) and c.ndim else c
    along, p0 = hyp.dot(p, u), hyp.time(p, c)
    perpendicular = hyp.off_the_line(p - along * u, hyp.dot(p, p))
    forward = along >= 0
    stable = (hyp.dot(perpendicular, perpendicular) + 1.0 / c) / (p0 + torch.where(forward, along, 0.0))
    return weights.unsqueeze(-2) @ torch.where(forward, stable, p0 - along)


def _relative(weights: Tensor) -> Tensor:
    """Weights over their total, a constant factor the centroid does not depend on: tiny weights must not underflow."""
    return _over(weights, weights.sum(-1, keepdim=True))


def _over(x: Tensor, total: Tensor) -> Tensor:
    """x / total, with the total as a constant; 0 where it is next to nothing and gradients, x / total^2, overflow."""
    empty = total.detach() < 64.0 * torch.finfo(total.dtype).tiny
    return torch.where(empty, 0.0, x / torch.where(empty, 1.0, total.detach()))


def stable_centroid(p: Tensor, weights: Tensor, c: Scalar) -> Tensor:
    """Centroids (*b, m, d + 1) of space parts p (*b, n, d) with weights (*b, m, n), without cancellation."""
    weights = _relative(weights)
    s, s0 = weights @ p, weights @ hyp.time(p, c)
    squared = c * _gap(weights, p, s, c).squeeze(-1) * (s0 + safe_sqrt(hyp.dot(s, s)))
    return hyp.lifted(safe_divide(s, safe_sqrt(squared)), c)


def _forward(x: Tensor, weights: Tensor, c: Scalar) -> tuple[Tensor, ...]:
    """`stable_centroid`; beside it the direction u of s and what is known of every centroid and pair."""
    h, w = 1.0 / c, _relative(weights)
    squares = hyp.dot(x, x).mT
    s, p0 = w @ x, torch.sqrt(squares + h)
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    u = s / torch.where(length > 0, length, 1.0)
    along = u @ x.mT
    perpendicular = torch.addcmul(x.unsqueeze(-3), along.unsqueeze(-1), u.unsqueeze(-2), value=-1)
    pp = torch.linalg.vector_norm(perpendicular, dim=-1).square()
    beside = (~hyp.is_rounding(pp, squares)).to(pp.dtype)
    gaps = torch.where(along >= 0, (pp * beside + h) / (p0 + along), p0 - along)
    gap, s0 = (w * gaps).sum(-1, keepdim=True), (w * p0).sum(-1, keepdim=True)
    inverse = 1.0 / torch.sqrt(hyp.scaled(gap * (s0 + length), c))
    inverse = inverse.masked_fill(s0 == 0, 0.0)
    m = s * inverse
    length = length * inverse
    m0 = torch.sqrt(length.square() + h)
    m = hyp.point(m[..., 1:], m0)
    return m, u, length, m0, gap * inverse, inverse, s0, p0, along, gaps, beside


def _backward(of_c: bool, x: Tensor, weights: Tensor, g: Tensor, *numbers: Any) -> tuple[Tensor, ...]:
    """Gradients of m = s/n with n^2 = c (s0^2 - |s|^2), from products with the points x_i = (x_i.u) u + p_i alone.

    m - (m0/x0) x_i = (q u - m0 p_i)/x0, q = |m| x0 - m0 x_i.u = m0 (x0 - x_i.u) - (m0 - |m|) x0, one form near the
    origin and one far out.
    """
    u, length, m0, rest, inverse, s0, p0, along, gaps, beside, c = numbers
    w, own = _relative(weights), g[..., :1] / m0
    g = torch.addcmul(g, own * length, u)
    g[..., 0].zero_()
    gu = hyp.dot(g, u)
    near, far = length * p0, m0 * gaps
    q = torch.where(near < far, near - m0 * along, far - rest * p0)
    share = w * inverse
    turn = share * hyp.scaled(length * gu, c) / p0
    across = turn * m0 * beside
    p = torch.addcmul(x.unsqueeze(-3), along.unsqueeze(-1), u.unsqueeze(-2), value=-1)
    slant = (p @ u.unsqueeze(-1)).squeeze(-1)  # 0 but for rounding, which is weighed with c |m|^2
    # The sum of all w_i p_i is 0 but for the rounding of the largest points, whose p_i it is then taken off.
    excess = ((w * beside).unsqueeze(-2) @ p).squeeze(-2)
    excess = torch.addcmul(excess, hyp.dot(excess, u), u, value=-1) / torch.where(s0 > 0, s0, 1.0)
    gx = share.mT @ g + torch.addcmul(turn * q, across, slant).mT @ u - (across.unsqueeze(-1) * p).sum(-3)
    gx = gx + (turn * m0 * p0).mT @ excess
    gp = torch.addcmul((p @ g.unsqueeze(-1)).squeeze(-1), slant, gu, value=-1) * beside
    gw = (gp - p0 * hyp.dot(excess, g) - hyp.scaled(m0 * gu, c) * q) * inverse
    gw = _over(gw, weights.sum(-1, keepdim=True))
    if not of_c:
        return gx, gw
    bend = 1.0 - s0 * (w / p0).sum(-1, keepdim=True) * inverse.square()
    return gx, gw, -0.5 * (length * gu * bend / c + own / c**2)


_FUSED = Fused(
    lambda x, weights, c: stable_centroid(x[..., 1:], weights, c), _forward, _backward, True, _extension.CENTROID
)


def normalised(s: Tensor, largest: Tensor, c: Scalar) -> Tensor:
    """Space part of the centroid from the sum s = sum_i w_i x_i, w >= 0, with `largest` >= every time part x_i0."""
    s0, ss = s[..., :1], s[..., 1:]
    length = safe_sqrt(hyp.dot(ss, ss))
    squared = c * (s0 - length) * (s0 + length)
    # -c<s,s> >= (sum of weights)^2 >= (s0 / largest)^2 (reversed triangle inequality): rounding must not break it.
    bound = (s0 / largest).square()
    squared = torch.where(squared < bound, bound, squared)
    empty = s0 <= 0
    return torch.where(empty, 0.0, ss / torch.sqrt(torch.where(empty, 1.0, squared)))


def over_its_time(s: Tensor) -> Tensor:
    """s / s0, whose centroid is that of s.

    After dropout the attended keys may be gone, and what is left of a sharp softmax be so small that <s, s> underflows.
    """
    return _over(s, s[..., :1])


def largest_time(p0: Tensor) -> Tensor:
    """The largest of the time parts, and 1 where there are no points."""
    return p0.amax(-2, keepdim=True) if p0.shape[-2] else p0.new_ones((*p0.shape[:-2], 1, 1))


def _plain(p: Tensor, weights: Tensor, c: Scalar) -> Tensor:
    p0 = hyp.time(p, c)
    return hyp.lifted(normalised(_relative(weights) @ hyp.point(p, p0), largest_time(p0), c), c)


def centroid(
    x: Float[Tensor, "*#b n k"],
    weights: Float[Tensor, "*#b m n"] | None = None,
    c: Scalar = 1.0,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*#b m k"] | Float[Tensor, "*#b k"]:
    """Lorentz centroid s / sqrt(-c<s, s>_L), s = sum_i w_i x_i (Law et al. 2019; HLFormer eq. 15).

    Minimises sum_i w_i (-2/c - 2<x_i, m>_L). Invariant to the scale of the weights; all-zero weights give the origin.
    A form without cancellation, in memory m * n * k; "native" takes the plain one, far cheaper and right to 0.1 % up
    to radius 5 in float32 (gradients: 2) and 12 in float64 (`lorentz_attention` uses that one).

    Args:
        x: ambient points; only their space parts are read.
        weights: non-negative, one row per centroid; None is the one centroid of equal weights.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient points, (*b, k) without weights.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> centroid(expmap0(torch.tensor([[1.0], [-1.0]])), torch.ones(1, 2))
        tensor([[1., 0.]])
    """
    ambient_points(c, 2, x=x)
    if weights is None:
        return centroid(x, x.new_ones(1, x.shape[-2]), c, precision=precision).squeeze(-2)
    check_alike(x=x, weights=weights)
    if weights.ndim < 2 or weights.shape[-1] != x.shape[-2]:
        raise ValueError(
            f"weights: got shape {tuple(weights.shape)}, expected (..., m, {x.shape[-2]}), one weight for every point "
            f"of x {tuple(x.shape)}; one centroid is weights.unsqueeze(-2)"
        )
    check_batch("weights", weights.shape, weights.shape[:-2], "x", x.shape[:-2])
    if asked(precision) == "native":
        return evaluate(_plain, precision, c, x[..., 1:], weights, axes=2)
    return _FUSED.evaluate(precision, c, x, weights)
