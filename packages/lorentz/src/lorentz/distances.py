"""Inner products and distances, row by row and pairwise."""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _extension
from . import _hyperboloid as hyp
from ._fused import Fused, dist_backward, dist_forward, of_spaces
from ._precision import Precision, Scalar, evaluate
from ._series import asinh, safe_sqrt
from ._validation import check_scalar_like, vectors
from .points import ambient_points, point_spaces


def _inner(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    return (-(1.0 + 0.5 * hyp.separation(hyp.pair(x, y, c), c)) / c).squeeze(-1)


def _length(q: Tensor, c: Scalar) -> Tensor:
    """Distance from Q = 4 sinh^2(sqrt(c) dist / 2); zero subgradient at Q = 0."""
    return 2.0 * torch.asinh(0.5 * safe_sqrt(q)) / hyp.root(c)


def _dist(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    return _length(hyp.separation(hyp.pair(x, y, c), c), c)


_FUSED_DIST = Fused(of_spaces(_dist), dist_forward, dist_backward, compiled=_extension.DIST)


def _dist0(x: Tensor, c: Scalar) -> Tensor:
    return (asinh(hyp.root(c) * hyp.length(x)) / hyp.root(c)).squeeze(-1)


def _pairwise_inner(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    return x @ y.mT - hyp.time(x, c) * hyp.time(y, c).mT


def _of_products(device: torch.device) -> Precision:
    """Where "auto" computes matrix products in float64: on a CPU, at twice the cost; on many GPUs it is 64 times."""
    return "float64" if device.type == "cpu" else "native"


def _pairwise_dist(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    # Rounding can push the Gram form below its true bound of 0; safe_sqrt reads that as distance 0.
    return _length(-2.0 - 2.0 * c * _pairwise_inner(x, y, c), c)


def lorentz_inner(u: Float[Tensor, "*#b n"], v: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b"]:
    """Lorentz inner product of ambient vectors: -u0 v0 + u.v; time parts are read as they are.

    For two points on the hyperboloid prefer `inner`, which does not cancel. Computed in the dtype of the vectors.

    Examples:
        >>> lorentz_inner(torch.tensor([2.0, 1.0]), torch.tensor([3.0, 1.0]))
        tensor(-5.)
    """

    def kernel(u: Tensor, v: Tensor, c: Scalar) -> Tensor:
        return (u[..., 1:] * v[..., 1:]).sum(-1) - u[..., 0] * v[..., 0]

    return evaluate(kernel, "native", 1.0, *vectors(least=2, u=u, v=v))


def inner(
    x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b"]:
    """Lorentz inner product of points: <x, y>_L = -1/c - Q/(2c) with Q = c<x-y, x-y>_L formed without cancellation.

    Args:
        x: ambient point; only its space part is read.
        y: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Values <= -1/c.

    Examples:
        >>> x = torch.tensor([5.0, 3.0, 0.0])
        >>> inner(x, x, c=1 / 16)
        tensor(-16.)
    """
    return evaluate(_inner, precision, c, *point_spaces(c, x=x, y=y))


def dist(
    x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b"]:
    """Geodesic distance: 2/sqrt(c) asinh(sqrt(Q)/2) with Q = c<x-y, x-y>_L = 4 sinh^2(sqrt(c) dist/2).

    Equal to acosh(-c<x, y>_L)/sqrt(c), which loses every digit for close points; zero subgradient at x = y.

    Args:
        x: ambient point; only its space part is read.
        y: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Distances >= 0.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> dist(expmap0(torch.tensor([1.5])), expmap0(torch.tensor([-0.5])))
        tensor(2.0000)
    """
    return _FUSED_DIST.evaluate(precision, c, *ambient_points(c, x=x, y=y)).squeeze(-1)


def dist0(x: Float[Tensor, "*#b n"], c: Scalar = 1.0, *, precision: Precision | None = None) -> Float[Tensor, "*#b"]:
    """Distance from the origin: asinh(sqrt(c)|x|)/sqrt(c); zero subgradient at the origin.

    Args:
        x: ambient point; only its space part is read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Distances >= 0.

    Examples:
        >>> from lorentz.functional import expmap0
        >>> dist0(expmap0(torch.tensor([0.0, -1.5])))
        tensor(1.5000)
    """
    return evaluate(_dist0, precision, c, *point_spaces(c, x=x))


def pairwise_inner(
    x: Float[Tensor, "*#b q n"], y: Float[Tensor, "*#b k n"], c: Scalar = 1.0, *, precision: Precision | None = None
) -> Float[Tensor, "*#b q k"]:
    """Lorentz inner product of every x with every y, by one matrix product.

    Args:
        x: ambient points; only their space parts are read.
        y: ambient points; only their space parts are read.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Matrix of inner products.

    Examples:
        >>> pairwise_inner(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.5431, 1.1752]]))
        tensor([[-1.0000, -1.5431]])
    """
    x, y = point_spaces(c, 2, x=x, y=y)
    return evaluate(_pairwise_inner, precision, c, x, y, auto=_of_products(x.device), axes=2)


def pairwise_dist(
    x: Float[Tensor, "*#b q n"],
    y: Float[Tensor, "*#b k n"],
    c: Scalar = 1.0,
    exact: bool = False,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*#b q k"]:
    """Geodesic distance of every x to every y.

    The default uses a Gram matrix: fast, but pairs closer than about sqrt(eps) cosh(r) at radius r lose their digits
    (eps of the dtype that it is computed in). `exact=True` forms every pair as `dist` does: accurate, about ten times
    slower, memory q * k * n.

    Args:
        x: ambient points; only their space parts are read.
        y: ambient points; only their space parts are read.
        c, precision: see the conventions of `lorentz.functional`.
        exact: accurate for close pairs.

    Returns:
        Matrix of distances.

    Examples:
        >>> pairwise_dist(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.5431, 1.1752]]))
        tensor([[0.0000, 1.0000]])
    """
    x, y = ambient_points(c, 2, x=x, y=y)
    if not exact:
        return evaluate(_pairwise_dist, precision, c, x[..., 1:], y[..., 1:], auto=_of_products(x.device), axes=2)
    if isinstance(c, Tensor) and c.ndim:
        check_scalar_like("c", c, 2, (x, y))
        c = c.unsqueeze(-1)
    return _FUSED_DIST.evaluate(precision, c, x.unsqueeze(-2), y.unsqueeze(-3)).squeeze(-1)


cdist = pairwise_dist
"""`pairwise_dist` under the name that it has in torch, `torch.cdist`."""
