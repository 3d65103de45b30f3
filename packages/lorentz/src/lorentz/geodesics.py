"""Points along a geodesic."""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from ._precision import Precision, Scalar, evaluate
from ._series import asinhc, sinhc
from ._validation import check_factor
from .points import point_spaces


def _share(t: Tensor, q: Tensor) -> Tensor:
    """sinh(t s)/sinh(s) at s = sqrt(q): smooth through q = 0, and without overflow for t in [0, 1]."""
    small = q < 1.0
    near = torch.where(small, q, 0.0)
    s, size = torch.sqrt(torch.where(small, 1.0, q)), torch.where(t < 0, -t, t)
    far = torch.exp((size - 1.0) * s) * torch.expm1(-2.0 * size * s) / torch.expm1(-2.0 * s)
    return torch.where(small, t * sinhc(t * t * near) / sinhc(near), torch.where(t < 0, -far, far))


def on_geodesic(x: Tensor, y: Tensor, t: Scalar, c: Scalar) -> Tensor:
    """Space part of the point at share t of the way from x to y."""
    q = hyp.separation(hyp.pair(x, y, c), c)
    share = t.to(x.dtype) if isinstance(t, Tensor) else torch.full_like(q, t)
    squared = q * asinhc(0.25 * q).square()
    return _share(1.0 - share, squared) * x + _share(share, squared) * y


def geodesic(
    x: Float[Tensor, "*#b n"],
    y: Float[Tensor, "*#b n"],
    t: float | int | Float[Tensor, "..."],
    c: Scalar = 1.0,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*#b n"]:
    """Point at share t of the way from x to y: (sinh((1-t)s) x + sinh(t s) y)/sinh(s), s = sqrt(c) dist(x, y).

    Exactly x at t = 0 and y at t = 1; t = 0.5 is the midpoint, and outside [0, 1] the geodesic goes on.

    Args:
        x: ambient point; only its space part is read.
        y: ambient point; only its space part is read.
        t: a number, or a tensor that broadcasts against the points with a last axis of length 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient points.

    Examples:
        >>> from lorentz.functional import expmap0, logmap0
        >>> x, y = expmap0(torch.tensor([[0.0], [2.0]]))
        >>> logmap0(geodesic(x, y, torch.tensor([[0.25], [0.5]])))
        tensor([[0.5000],
                [1.0000]])
    """
    tensors = point_spaces(c, x=x, y=y)
    check_factor("t", t, tensors)
    return evaluate(lambda x, y, c: hyp.lifted(on_geodesic(x, y, t, c), c), precision, c, *tensors)
