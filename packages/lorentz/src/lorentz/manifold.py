"""The hyperboloid, and the Poincare ball, as geoopt manifolds."""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from . import _hyperboloid as hyp
from . import functional as lf
from ._ball import PoincareBall
from ._manifold import Hyperbolic, ScalingInfo, Vectors, last
from ._manifold_curvature import ManifoldCurvature, as_float, one_number, read_names_of_manifold
from ._precision import Scalar, evaluate
from ._series import asinhc, safe_sqrt
from ._validation import spaces, vectors
from .nn.curvature import Curvature
from .points import check_on_hyperboloid, check_time_zero, point_spaces

__all__ = ["Lorentz", "PoincareBall"]


def _project(x: Tensor, c: Scalar) -> Tensor:
    return lf.project(*spaces(x=x), c=c)


def _riemannian(x: Tensor, u: Tensor, c: Scalar) -> Tensor:
    x, u = vectors(least=2, x=x, u=u)
    return lf.project_tangent(x, torch.cat([-u[..., :1], u[..., 1:]], dim=-1), c)


def _inner(x: Tensor, u: Tensor, v: Tensor, c: Scalar) -> Tensor:
    tensors = spaces(x=x, u=u, v=v)
    check_on_hyperboloid(c, x=x)
    return evaluate(hyp.tangent_inner, None, c, *tensors).squeeze(-1)


def _inner0(v: Tensor, c: Scalar) -> Tensor:
    (v,) = vectors(least=2, v=v)
    return evaluate(lambda v0, c: -v0 / hyp.root(c), None, c, v[..., :1]).squeeze(-1)


def _dist2(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    """dist^2 without a root: smooth at x = y."""

    def kernel(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
        q = hyp.separation(hyp.pair(x, y, c), c)
        return q * asinhc(0.25 * q).square() / c

    return evaluate(kernel, None, c, *point_spaces(c, x=x, y=y)).squeeze(-1)


def _expmap0(u: Tensor, c: Scalar) -> Tensor:
    (space,) = spaces(u=u)
    check_time_zero(u=u)
    return lf.expmap0(space, c)


class Lorentz(Hyperbolic):
    """Lorentz model for `geoopt.ManifoldParameter` and geoopt's optimisers, accurate in float32.

    Has every method and keyword of `geoopt.Lorentz`. Points and tangent vectors are ambient, time first, d + 1 numbers
    in every method: `expmap0` takes and `logmap0` returns (*b, d+1), where `lorentz.expmap0` and `lorentz.logmap0` have
    the d space coordinates. The time part of an argument is recomputed from its space part: points do not drift, and
    there is nothing to stabilise. `dim` is the axis of the coordinates; `project`, which asks geoopt to mend the time
    part of a result, is accepted and changes nothing.

    The curvature is -c, and geoopt's k is 1/c. A `state_dict` holds c, and a checkpoint of another fixed curvature is
    refused when it is loaded; the k of a `geoopt.Lorentz` is converted.

    Args:
        curvature: a `lorentz.nn.Curvature`, or c. A number without a name other than 1 is c, with a warning: the first
            argument of `geoopt.Lorentz` is k = 1/c.
        learnable: learn log c, so that c stays positive; a `Curvature` decides this itself.
        c: curvature -c < 0: a number, a tensor of one number, or a `lorentz.nn.Curvature`, which is followed with its
            gradient and may be shared with layers. 1 where nothing is given.
        k: the curvature as geoopt has it, <x, x>_L = -k, and -1/k is the curvature; in place of c.

    Raises:
        ValueError: `c` or `k` <= 0, a tensor of more than one number, two curvatures, or learnable with a `Curvature`.
        TypeError: `c` or `k` is neither a number nor a floating-point tensor.

    Examples:
        >>> import geoopt
        >>> manifold = Lorentz(c=0.5)
        >>> x = geoopt.ManifoldParameter(manifold.origin(3, 5), manifold=manifold)
        >>> optimiser = geoopt.optim.RiemannianAdam([x], lr=0.1)
        >>> manifold.dist(x, manifold.random_normal(3, 5)).sum().backward()
        >>> optimiser.step()
    """

    name = "Lorentz"
    __scaling__ = Hyperbolic.__scaling__.copy()
    _dist, _logmap, _transport = staticmethod(lf.dist), staticmethod(lf.logmap), staticmethod(lf.parallel_transport)

    def __init__(
        self,
        curvature: Scalar | Curvature | None = None,
        /,
        learnable: bool = False,
        *,
        c: Scalar | Curvature | None = None,
        k: Scalar | None = None,
    ) -> None:
        if sum(value is not None for value in (curvature, c, k)) > 1:
            first = curvature if c is None else c
            raise ValueError(f"c, k: got {first} and {c if k is None else k}, expected one of them (k = 1/c)")
        unnamed, c = curvature is not None, curvature if c is None else c
        if k is not None:
            number = 1.0 / one_number("k", k, "<x, x>_L = -k, and the curvature is -1/k")
            own = ManifoldCurvature(number, learnable, k if isinstance(k, Tensor) else None)
        else:
            own = 1.0 if c is None else c
        super().__init__("c", own, learnable)
        if unnamed and not isinstance(c, Curvature) and (number := as_float(self.c)) != 1.0:
            warnings.warn(
                f"Lorentz({number:g}): read as c, the curvature is -c; geoopt.Lorentz reads its first argument as "
                "k = 1/c. Write Lorentz(c=...) or Lorentz(k=...)",
                stacklevel=2,
            )
        self.register_load_state_dict_pre_hook(read_names_of_manifold)

    @property
    def k(self) -> Float[Tensor, ""]:
        """geoopt's k = 1/c, a tensor as there, with <x, x>_L = -k."""
        c = self.c
        return 1.0 / c if isinstance(c, Tensor) else torch.tensor(1.0 / c, dtype=self.dtype, device=self.device)

    def projx(self, x: Vectors, *, dim: int = -1) -> Vectors:
        """The point with the space part of x."""
        return self._vectors(_project, dim, x)

    def proju(self, x: Vectors, v: Vectors, *, dim: int = -1) -> Vectors:
        """Orthogonal projection of an ambient vector onto the tangent space at x."""
        return self._vectors(lf.project_tangent, dim, x, v)

    def egrad2rgrad(self, x: Vectors, u: Vectors, *, dim: int = -1) -> Vectors:
        """Riemannian gradient from the ambient one: raise the index with the Minkowski metric, then project."""
        return self._vectors(_riemannian, dim, x, u)

    def inner(
        self, x: Vectors | None, u: Vectors, v: Vectors | None = None, *, keepdim: bool = False, dim: int = -1
    ) -> Float[Tensor, "..."]:
        """Lorentz inner product of tangent vectors at x; never negative for v = u.

        With None for x that of any two ambient vectors, time parts as they are.
        """
        v = u if v is None else v
        if x is None:
            return self._numbers(lambda u, v, c: lf.lorentz_inner(u, v), keepdim, dim, u, v)
        return self._numbers(_inner, keepdim, dim, x, u, v)

    def inner0(self, v: Vectors, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Lorentz inner product of an ambient vector with the origin: -v0 / sqrt(c)."""
        return self._numbers(_inner0, keepdim, dim, v)

    def norm(
        self, x: Vectors | None = None, u: Vectors | None = None, *, keepdim: bool = False, dim: int = -1
    ) -> Float[Tensor, "..."]:
        """Lorentz length of a tangent vector at x; zero subgradient at 0.

        `norm(u)`, as in geoopt, reads the time part of u, which far out leaves no digits: `norm(x, u)` is exact.
        """
        if u is None:
            x, u = None, x
        if u is None:
            raise TypeError("u: got None, expected a tangent vector, as norm(u) or norm(x, u)")
        return safe_sqrt(self.inner(x, u, keepdim=keepdim, dim=dim))

    def dist2(self, x: Vectors, y: Vectors, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Squared geodesic distance, smooth at x = y."""
        return self._numbers(_dist2, keepdim, dim, x, y)

    def cdist(self, x: Float[Tensor, "*#b q n"], y: Float[Tensor, "*#b k n"]) -> Float[Tensor, "*#b q k"]:
        """Geodesic distance of every x to every y: `lorentz.pairwise_dist`, fast but inaccurate for close pairs."""
        return lf.pairwise_dist(x, y, self.c)

    @__scaling__(ScalingInfo(1))
    def dist0(self, x: Vectors, *, dim: int = -1, keepdim: bool = False) -> Float[Tensor, "..."]:
        """Distance from the origin."""
        return self._numbers(lf.dist0, keepdim, dim, x)

    def expmap(self, x: Vectors, u: Vectors, *, norm_tan: bool = False, project: bool = True, dim: int = -1) -> Vectors:
        """Exponential map at x.

        The space part of u is read: right for a tangent vector. `norm_tan=True` (geoopt's default) first projects u
        orthogonally, which is for vectors that are not tangent, and costs digits far out.
        """
        return self._vectors(lf.expmap, dim, x, self.proju(x, u, dim=dim) if norm_tan else u)

    retr = expmap  # exact and cheap here, so it serves as retraction

    @__scaling__(ScalingInfo(u=-1))
    def expmap0(self, u: Vectors, *, project: bool = True, dim: int = -1) -> Vectors:
        """Exponential map at the origin of an ambient tangent vector: (*b, d+1), its time part 0 and not read.

        `lorentz.expmap0` takes the d space coordinates alone.
        """
        return self._vectors(_expmap0, dim, u)

    @__scaling__(ScalingInfo(1))
    def logmap0(self, y: Vectors, *, dim: int = -1) -> Vectors:
        """Logarithmic map at the origin, ambient: (*b, d+1) with time part 0. `lorentz.logmap0` gives d numbers."""
        return self._vectors(lambda y, c: pad(lf.logmap0(y, c), (1, 0)), dim, y)

    @__scaling__(ScalingInfo(1))
    def logmap0back(self, x: Vectors, *, dim: int = -1) -> Vectors:
        """Logarithmic map of the origin at x: the tangent vector at x that leads to the origin."""
        return self.logmap(x, self._origin_like(x, dim), dim=dim)

    def geodesic(self, t: Scalar, x: Vectors, y: Vectors, *, dim: int = -1) -> Vectors:
        """Point at share t of the way from x to y; t is a number or has an axis `dim` of length 1."""
        return self._vectors(lf.geodesic, dim, x, y, t)

    def _origin_like(self, x: Tensor, dim: int) -> Tensor:
        return self.projx(torch.zeros_like(x), dim=dim)

    def _from_origin(self, v: Tensor) -> Tensor:
        return lf.expmap0(v, self.c)

    def _space_size(self, *size: int | tuple[int, ...]) -> tuple[int, ...]:
        shape = super()._space_size(*size)
        self._assert_check_shape(shape, "size")  # pyright: ignore[reportArgumentType]
        return (*shape[:-1], shape[-1] - 1)

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        if len(shape) >= 1 and shape[-1] >= 2:
            return True, None
        return False, f"{name}: got shape {tuple(shape)}, expected a last axis of d + 1 >= 2, time first"

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        (x,) = last(dim, x)
        time = self.projx(x)[..., 0]
        if torch.allclose(x[..., 0].to(time.dtype), time, atol=atol, rtol=rtol):
            return True, None
        return False, "time part is not sqrt(1/c + |x|^2)"

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, ok_point: bool = True, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        x, u = last(dim, x, u)
        point = self.projx(x)
        time = (point[..., 1:] * u[..., 1:]).sum(-1) / point[..., 0]
        if torch.allclose(u[..., 0].to(time.dtype), time, atol=atol, rtol=rtol):
            return True, None
        return False, "time part is not x.u / x0"
