"""Gyrovector operations of the hyperboloid: what addition and scaling become in hyperbolic space (Ungar 2008)."""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from . import maps
from ._precision import Precision, Scalar, evaluate
from ._validation import check_factor
from .points import point_spaces


def boosted(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    """Space part of y under the boost that carries the origin to x.

    It is y + sqrt(c) (y0 + w.y) x with w = sqrt(c) x/(1 + sqrt(c) x0). Far out that cancels for y near -x: there the
    part of y across x stays, and the part along it is formed as distances are.
    """
    root = hyp.root(c)
    unit = root * x / (1.0 + root * hyp.time(x, c))  # of length < 1
    smooth = y + root * (hyp.time(y, c) + hyp.dot(unit, y)) * x
    of = hyp.pair(-x, y, c)
    along = root * hyp.ahead(of, hyp.separation(of, c), c) / torch.where(of.near, 1.0, of.xx)
    return torch.where(of.near, smooth, of.p - along * x)


def gyro_add(
    x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b n"]:
    """Gyroaddition x (+) y = exp_x(PT_{o -> x} log_o y), the Moebius addition of the Poincare ball on the hyperboloid.

    Neither commutative nor associative. The origin is neutral, the inverse of (x0, x) is (x0, -x), and
    (-x) (+) (x (+) y) = y; y -> x (+) y is an isometry, dist(x, y) = dist0((-x) (+) y).

    Args:
        x: ambient point; only its space part is read.
        y: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient points.

    Examples:
        >>> from lorentz.functional import expmap0, logmap0
        >>> x, y = expmap0(torch.tensor([[1.5], [-0.5]]))
        >>> logmap0(gyro_add(x, y))
        tensor([1.0000])
    """
    return evaluate(lambda x, y, c: hyp.lifted(boosted(x, y, c), c), precision, c, *point_spaces(c, x=x, y=y))


def gyro_scale(
    r: float | int | Float[Tensor, "..."],
    x: Float[Tensor, "*#b n"],
    c: Scalar = 1.0,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*#b n"]:
    """Gyroscaling r (*) x = exp_o(r log_o x): the point r times as far from the origin, in the direction of x.

    (r + s) (*) x = r (*) x (+) s (*) x, and (r s) (*) x = r (*) (s (*) x).

    Args:
        r: a number, or a tensor that broadcasts against the points with a last axis of length 1.
        x: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient points.

    Examples:
        >>> from lorentz.functional import expmap0, logmap0
        >>> logmap0(gyro_scale(2.0, expmap0(torch.tensor([1.5]))))
        tensor([3.0000])
    """
    (space,) = point_spaces(c, x=x)
    check_factor("r", r, (space,))

    def kernel(x: Tensor, c: Scalar) -> Tensor:
        return maps._expmap0((r.to(x.dtype) if isinstance(r, Tensor) else r) * maps._logmap0(x, c), c)

    return evaluate(kernel, precision, c, space)
