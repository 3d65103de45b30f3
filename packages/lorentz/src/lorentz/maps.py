"""Projection, exponential and logarithmic maps, parallel transport on the hyperboloid."""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _extension
from . import _hyperboloid as hyp
from ._fused import (
    Fused,
    expmap_backward,
    expmap_forward,
    logmap0_backward,
    logmap0_forward,
    logmap_backward,
    logmap_forward,
    of_spaces,
)
from ._precision import Precision, Scalar, evaluate
from ._series import asinhc, cosh_sinhc, sinhc
from ._validation import spaces, vectors
from .points import ambient_points, check_on_hyperboloid, check_space_part


def _project(x: Tensor, c: Scalar) -> Tensor:
    return hyp.point(x, hyp.far_time(x, c))


def _expmap0(v: Tensor, c: Scalar) -> Tensor:
    x0, factor = cosh_sinhc(hyp.scaled(hyp.dot(v, v), c))
    return hyp.point(factor * v, hyp.scaled(x0, 1.0 / hyp.root(c)))


def _logmap0(x: Tensor, c: Scalar) -> Tensor:
    factor = hyp.range_factor(x)
    small = x * factor
    q = hyp.scaled(hyp.dot(small, small), c)
    # Where a factor is needed |x| is so large that the logarithm of its double is asinh, and a length of its own.
    far = factor < 1.0
    length = torch.sqrt(torch.where(far, q, 1.0))
    return (
        torch.where(
            far, (torch.log(2.0 * length) - torch.log(factor)) / length * factor, asinhc(torch.where(far, 1.0, q))
        )
        * x
    )


def _expmap(x: Tensor, v: Tensor, c: Scalar) -> Tensor:
    q = c * hyp.tangent_norm_squared(x, v, c)
    y = (1.0 + 0.5 * q * sinhc(0.25 * q).square()) * x + sinhc(q) * v
    return hyp.lifted(y, c)


def _tangent(x: Tensor, v: Tensor, c: Scalar) -> Tensor:
    """The tangent vector at x with space part v: v0 = x.v / x0."""
    return hyp.point(v, hyp.dot(x, v) / hyp.time(x, c))


def _logmap(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    of = hyp.pair(x, y, c)
    q = hyp.separation(of, c)
    v = asinhc(0.25 * q) / torch.sqrt(1.0 + 0.25 * q) * (of.d - 0.5 * q * x)
    return _tangent(x.expand_as(v), v, c)


_FUSED_LOGMAP0 = Fused(of_spaces(_logmap0), logmap0_forward, logmap0_backward)
_FUSED_EXPMAP = Fused(of_spaces(_expmap), expmap_forward, expmap_backward, compiled=_extension.EXPMAP)
_FUSED_LOGMAP = Fused(of_spaces(_logmap), logmap_forward, logmap_backward, compiled=_extension.LOGMAP)


def _project_tangent(x: Tensor, w: Tensor, c: Scalar) -> Tensor:
    w0, ws = w[..., :1], w[..., 1:]
    v = ws + c * (hyp.dot(x, ws) - hyp.time(x, c) * w0) * x
    return _tangent(x.expand_as(v), v, c)


def _parallel_transport(x: Tensor, y: Tensor, v: Tensor, c: Scalar) -> Tensor:
    x, y, v = torch.broadcast_tensors(x, y, v)
    of = hyp.pair(x, y, c)
    q, xv = hyp.separation(of, c), hyp.dot(x, v)
    x0, y0 = torch.sqrt(of.xx + 1.0 / c), torch.sqrt(of.yy + 1.0 / c)
    # <y, v>_L, near the origin by differences, far out split into the parts of v along x and across it (p.x = 0).
    direct = hyp.dot(of.d, v) - (2.0 * of.xd + of.dd) / (x0 + y0) * xv / x0
    along_x = xv / torch.where(of.near, 1.0, of.xx)
    split = hyp.ahead(of, q, c) * along_x / x0 + hyp.dot(of.p, v - along_x * x)
    moved = v + c * torch.where(of.near, direct, split) / (2.0 + 0.5 * q) * (x + y)
    return _tangent(y, moved, c)


def project(
    x: Float[Tensor, "*#b d"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b d+1"]:
    """Point with the given space part: (sqrt(1/c + |x|^2), x).

    Args:
        x: space part, any real values.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient point, time first, in the dtype of `x`.

    Examples:
        >>> project(torch.tensor([3.0, 0.0]), c=1 / 16)
        tensor([5., 3., 0.])
    """
    return evaluate(_project, precision, c, *vectors(x=x), auto="native")


def origin(
    *size: int,
    c: Scalar = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "..."]:
    """The origin (1/sqrt(c), 0, ..., 0), repeated.

    Args:
        size: shape of the result, its last number d + 1 >= 2.
        c: see the conventions of `lorentz.functional`.
        dtype: floating-point dtype; None: torch's default.
        device: None: torch's default.

    Returns:
        Ambient points, differentiable in `c`.

    Raises:
        ValueError: `c` is a number <= 0 or does not fit, or the last number of `size` is below 2.
        TypeError: `c` is neither a number nor a floating-point tensor.

    Examples:
        >>> origin(2, 3, c=4.0)
        tensor([[0.5000, 0.0000, 0.0000],
                [0.5000, 0.0000, 0.0000]])
    """
    if not size or size[-1] < 2:
        raise ValueError(f"size: got {size}, expected a last number d + 1 >= 2, the time and the space coordinates")
    return project(torch.zeros(*size[:-1], size[-1] - 1, dtype=dtype, device=device), c)


def expmap0(
    v: Float[Tensor, "*#b d"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b d+1"]:
    """Exponential map at the origin: y = sinh(r)/r v with r = sqrt(c)|v|.

    A function of |v|^2, so the Jacobian at v = 0 is exactly the identity. Float32 overflows for r > 88 (no clamp).

    Args:
        v: space part of a tangent vector at the origin (its time part is 0).
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient point at distance |v| from the origin.

    Examples:
        >>> expmap0(torch.zeros(2))
        tensor([1., 0., 0.])
    """
    vectors(v=v)
    check_space_part(c, v=v)
    return evaluate(_expmap0, precision, c, v, auto="native")


def logmap0(
    x: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b n-1"]:
    """Logarithmic map at the origin, space part: v = asinh(r)/r x with r = sqrt(c)|x|, the inverse of `expmap0`.

    Args:
        x: ambient point; its time part is not read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Space part of the tangent vector, of length dist(o, x).

    Examples:
        >>> from lorentz import expmap0
        >>> logmap0(expmap0(torch.tensor([0.5, 0.0])))
        tensor([0.5000, 0.0000])
    """
    return _FUSED_LOGMAP0.evaluate(precision, c, *ambient_points(c, x=x), auto="native")


def expmap(
    x: Float[Tensor, "*#b n"], v: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b n"]:
    """Exponential map at x: y = cosh(s) x + sinh(s)/s v with s = sqrt(c)|v|_L.

    Args:
        x: ambient point; only its space part is read.
        v: tangent vector at x; only its space part is read (its time part is x.v/x0).
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient point at distance |v|_L from x.

    Examples:
        >>> from lorentz import project
        >>> expmap(project(torch.zeros(1)), torch.tensor([0.0, 1.0]))
        tensor([1.5431, 1.1752])
    """
    tensors = vectors(least=2, x=x, v=v)
    check_on_hyperboloid(c, x=x)
    return _FUSED_EXPMAP.evaluate(precision, c, *tensors)


def logmap(
    x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b n"]:
    """Logarithmic map: the tangent vector at x that leads to y, v_s = (t/sinh t)(y - x - (Q/2) x), t = sqrt(c) dist.

    Q = c<x-y, x-y>_L is formed without cancellation, so close points far out keep their digits.

    Args:
        x: ambient point; only its space part is read.
        y: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient tangent vector at x of Lorentz length dist(x, y).

    Examples:
        >>> from lorentz import project
        >>> logmap(project(torch.zeros(1)), torch.tensor([1.5431, 1.1752]))[1:]
        tensor([1.0000])
    """
    return _FUSED_LOGMAP.evaluate(precision, c, *ambient_points(c, x=x, y=y))


def project_tangent(
    x: Float[Tensor, "*#b n"], w: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b n"]:
    """Orthogonal projection of an ambient vector onto the tangent space at x: w + c<x, w>_L x.

    Args:
        x: ambient point; only its space part is read.
        w: any ambient vector, time part included.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient tangent vector at x.

    Examples:
        >>> from lorentz import project
        >>> project_tangent(project(torch.zeros(1)), torch.tensor([2.0, 3.0]))
        tensor([0., 3.])
    """
    x, w = vectors(least=2, x=x, w=w)
    check_on_hyperboloid(c, x=x)
    return evaluate(_project_tangent, precision, c, x[..., 1:], w)


def parallel_transport(
    x: Float[Tensor, "*#b n"],
    y: Float[Tensor, "*#b n"],
    v: Float[Tensor, "*#b n"],
    c: Scalar = 1.0,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*#b n"]:
    """Parallel transport along the geodesic from x to y: v + c<y, v>_L/(2 + Q/2) (x + y).

    Args:
        x: ambient point v is attached to; only its space part is read.
        y: ambient point to carry v to; only its space part is read.
        v: tangent vector at x; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient tangent vector at y of the same Lorentz length.

    Examples:
        >>> from lorentz import project
        >>> o, y = project(torch.tensor([[0.0], [1.1752]]))
        >>> parallel_transport(o, y, torch.tensor([0.0, 1.0]))
        tensor([1.1752, 1.5431])
    """
    tensors = spaces(x=x, y=y, v=v)
    check_on_hyperboloid(c, x=x, y=y)
    return evaluate(_parallel_transport, precision, c, *tensors)
