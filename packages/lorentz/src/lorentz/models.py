"""Two other models of the same hyperbolic space: the Poincare and the Klein ball, of radius 1/sqrt(c)."""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from ._precision import Precision, Scalar, evaluate
from ._series import safe_sqrt
from ._validation import vectors
from .points import point_spaces


def _off_boundary(p: Tensor, c: Scalar) -> Tensor:
    """1 - c|p|^2 as a product, which keeps its digits near the boundary."""
    r = hyp.root(c) * safe_sqrt(hyp.dot(p, p))
    return (1.0 - r) * (1.0 + r)


def _to_poincare(x: Tensor, c: Scalar) -> Tensor:
    return x / (1.0 + hyp.root(c) * hyp.time(x, c))


def _from_poincare(p: Tensor, c: Scalar) -> Tensor:
    x = 2.0 * p / _off_boundary(p, c)
    return hyp.point(x, hyp.time(x, c))


def _to_klein(x: Tensor, c: Scalar) -> Tensor:
    return x / (hyp.root(c) * hyp.time(x, c))


def _from_klein(p: Tensor, c: Scalar) -> Tensor:
    x = p / torch.sqrt(_off_boundary(p, c))
    return hyp.point(x, hyp.time(x, c))


def to_poincare(
    x: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b n-1"]:
    """Point of the Poincare ball: x / (1 + sqrt(c) x0) (stereographic projection).

    Args:
        x: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ball coordinates of norm < 1/sqrt(c), which is the largest radius they can hold: rounded to float32 they are
        on the rim beyond sqrt(c) dist(o, x) = 17, in float64 beyond 37.

    Examples:
        >>> to_poincare(torch.tensor([1.25, 0.75]))
        tensor([0.3333])
    """
    return evaluate(_to_poincare, precision, c, *point_spaces(c, x=x))


def from_poincare(
    p: Float[Tensor, "*#b d"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b d+1"]:
    """Point of the hyperboloid from Poincare coordinates: 2p / (1 - c|p|^2).

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient point.

    Examples:
        >>> from_poincare(torch.tensor([1 / 3]))
        tensor([1.2500, 0.7500])
    """
    return evaluate(_from_poincare, precision, c, *vectors(p=p))


def to_klein(
    x: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b n-1"]:
    """Point of the Klein ball: x / (sqrt(c) x0) (projection from the centre; geodesics become straight lines).

    Args:
        x: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ball coordinates of norm < 1/sqrt(c); rounded to float32 they are on the rim beyond sqrt(c) dist(o, x) = 8.5, in
        float64 beyond 18.5.

    Examples:
        >>> to_klein(torch.tensor([1.25, 0.75]))
        tensor([0.6000])
    """
    return evaluate(_to_klein, precision, c, *point_spaces(c, x=x))


def from_klein(
    p: Float[Tensor, "*#b d"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b d+1"]:
    """Point of the hyperboloid from Klein coordinates: p / sqrt(1 - c|p|^2).

    Args:
        p: ball coordinates, sqrt(c)|p| < 1.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient point.

    Examples:
        >>> from_klein(torch.tensor([0.6]))
        tensor([1.2500, 0.7500])
    """
    return evaluate(_from_klein, precision, c, *vectors(p=p))
