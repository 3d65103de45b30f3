"""Ideal points: the Busemann function, whose level sets are horospheres, and the projection along horospheres."""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from ._precision import Precision, Scalar, evaluate
from ._series import safe_divide, safe_sqrt
from ._validation import check_alike, check_batch, vectors
from .points import point_spaces


def _depth(x: Tensor, p: Tensor, c: Scalar) -> Tensor:
    """-<x, (1, p)>_L = x0 - p.x > 0 of unit vectors p.

    Far out towards p the difference cancels, and (1/c + |x across p|^2)/(x0 + p.x) is the same number.
    """
    x0, along = hyp.time(x, c), hyp.dot(x, p)
    across = x - along * p
    ahead = along > 0
    stable = (1.0 / c + hyp.dot(across, across)) / torch.where(ahead, x0 + along, 1.0)
    return torch.where(ahead, stable, x0 - along)


def _unit(p: Tensor) -> Tensor:
    return safe_divide(p, safe_sqrt(hyp.dot(p, p)))


def _busemann(x: Tensor, p: Tensor, c: Scalar) -> Tensor:
    return (torch.log(hyp.root(c) * _depth(x, _unit(p), c)) / hyp.root(c)).squeeze(-1)


def coordinates_along_horospheres(x: Tensor, directions: Tensor, c: Scalar) -> Tensor:
    """Space part (*b, k) of the projection of x (*b, d) to the span of orthonormal p_1 ... p_k: (k, d).

    It keeps every b_i = x0 - p_i.x. A point (y0, a) of the span with these has a_i = y0 - b_i and y0^2 - |a|^2 = 1/c: a
    quadratic for y0 whose discriminant is (x0 - s)^2 + (k - 1) r^2, s = sum_i p_i.x, r the part of x across all p_i.
    The one closer to the origin is the smaller root, here without cancellation.
    """
    inner_c = c.unsqueeze(-1) if isinstance(c, Tensor) and c.ndim else c
    b = _depth(x.unsqueeze(-2), directions, inner_c).squeeze(-1)
    along = x @ directions.mT
    rest = x - along @ directions
    difference = hyp.time(x, c) - along.sum(-1, keepdim=True)
    root = safe_sqrt(difference.square() + (directions.shape[-2] - 1.0) * hyp.dot(rest, rest))
    y0 = (hyp.dot(b, b) + 1.0 / c) / (b.sum(-1, keepdim=True) + root)
    return y0 - b


def busemann(
    x: Float[Tensor, "*#b n"],
    direction: Float[Tensor, "*#b d"],
    c: Scalar = 1.0,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*#b"]:
    """Busemann function of an ideal point: log(sqrt(c) (x0 - p.x)) / sqrt(c), p the unit vector of `direction`.

    The limit of dist(x, y) - dist(o, y) as y goes to infinity along p: 0 at the origin o, falling by 1 per unit of
    distance towards the ideal point. Its level sets are the horospheres around it, and differences of it never exceed
    the distance.

    Args:
        x: ambient point; only its space part is read.
        direction: the ideal point at the end of this direction from the origin; brought to length 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Signed distances from the horosphere through the origin, negative inside.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> busemann(expmap0(torch.tensor([[2.0, 0.0], [-2.0, 0.0]])), torch.tensor([1.0, 0.0]))
        tensor([-2.,  2.])
    """
    (space,) = point_spaces(c, x=x)
    vectors(1, 1, direction=direction)
    check_alike(x=x, direction=direction)
    if direction.shape[-1] != space.shape[-1]:
        raise ValueError(
            f"direction: got shape {tuple(direction.shape)}, expected a last axis of length {space.shape[-1]}, that of "
            f"the space part of x {tuple(x.shape)}"
        )
    check_batch("direction", direction.shape, direction.shape[:-1], "x", x.shape[:-1])
    return evaluate(_busemann, precision, c, space, direction)
