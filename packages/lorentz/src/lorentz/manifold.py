"""The hyperboloid, and the Poincare ball, as geoopt manifolds."""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from . import functional as lf
from . import models
from ._manifold_curvature import ManifoldCurvature, as_float, one_number, read_names_of_manifold
from ._precision import Scalar, evaluate
from ._series import asinhc, safe_divide, safe_sqrt
from ._validation import spaces, vectors
from .models import Ball
from .nn.curvature import Curvature
from .points import check_on_hyperboloid, check_time_zero, point_spaces

with warnings.catch_warnings():  # geoopt compiles its own functions by torch.jit.script, which torch deprecates
    for category in (DeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", message=r".*torch\.jit", category=category)
    try:
        import geoopt
        from geoopt.manifolds.base import Manifold, ScalingInfo
        from geoopt.utils import size2shape
    except Exception as error:  # of any kind, where torch no longer has what geoopt asks for
        raise ImportError(
            f"lorentz.manifold needs geoopt, which cannot be imported ({error!r}). geoopt 0.5.1 was tested with torch "
            "2.10 and 2.13: pip install 'geoopt>=0.5.1,<0.6' 'torch>=2.10,<2.14'. The rest of lorentz works without it."
        ) from error

Vectors = Float[Tensor, "*#b n"]
"""Points or tangent vectors of the manifold, ambient: n = d + 1 numbers, time first."""


def _dist2(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    """dist^2 without a root: smooth at x = y."""
    q = hyp.separation(hyp.pair(x, y, c), c)
    return (q * asinhc(0.25 * q).square() / c).squeeze(-1)


def _tangent_inner(x: Tensor, u: Tensor, v: Tensor, c: Scalar) -> Tensor:
    return hyp.tangent_inner(x, u, v, c).squeeze(-1)


def _last(dim: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors with the axis of their coordinates at the end, where the functions expect it."""
    return tensors if dim == -1 else tuple(tensor.movedim(dim, -1) for tensor in tensors)


def _back(dim: int, value: Tensor) -> Tensor:
    return value if dim == -1 else value.movedim(-1, dim)


def _with_dim(value: Tensor, keepdim: bool, dim: int) -> Tensor:
    return value.unsqueeze(dim) if keepdim else value


def _share(dim: int, t: Any) -> Any:
    return t.movedim(dim, -1) if isinstance(t, Tensor) and t.ndim and dim != -1 else t


class _Hyperbolic(Manifold):
    ndim = 1
    reversible = True
    __scaling__ = Manifold.__scaling__.copy()

    def __init__(self, curvature: Curvature | ManifoldCurvature) -> None:
        super().__init__()
        self.curvature = curvature

    @property
    def c(self) -> Scalar:
        """Curvature -c: a number, or a scalar tensor with gradient if it is learned."""
        return self.curvature()

    @__scaling__(ScalingInfo(std=-1), "random")
    def random_normal(
        self,
        *size: int | tuple[int, ...],
        mean: float | Tensor = 0.0,
        std: float | Tensor = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> geoopt.ManifoldTensor:
        """Wrapped normal at the origin: the points that tangent vectors mean + std * standard normal lead to.

        `size` is that of the points; dtype and device are those of the manifold unless given. In the ball, as on the
        hyperboloid, `std` is a length. geoopt scales every tangent vector to length 1 in place of using `std`.
        """
        v = torch.randn(self._space_size(*size), **self._kind(dtype, device), generator=generator)
        return geoopt.ManifoldTensor(self._from_origin(mean + std * v).detach(), manifold=self)  # pyright: ignore[reportCallIssue]

    random = random_normal

    def origin(
        self,
        *size: int | tuple[int, ...],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        seed: int | None = 42,
    ) -> geoopt.ManifoldTensor:
        """The origin, repeated; `size` is that of the points, `seed` is there for geoopt and not read."""
        space = torch.zeros(self._space_size(*size), **self._kind(dtype, device))
        return geoopt.ManifoldTensor(self._from_origin(space).detach(), manifold=self)  # pyright: ignore[reportCallIssue]

    def transp0(self, y: Vectors, u: Vectors, *, dim: int = -1) -> Vectors:
        """Parallel transport of u from the origin to y."""
        y, u = _last(dim, y, u)
        return _back(dim, self.transp(self._origin_like(y), y, u))

    def transp0back(self, x: Vectors, u: Vectors, *, dim: int = -1) -> Vectors:
        """Parallel transport of u from x to the origin."""
        x, u = _last(dim, x, u)
        return _back(dim, self.transp(x, self._origin_like(x), u))

    def expmap_transp(
        self, x: Vectors, u: Vectors, v: Vectors, *, dim: int = -1, project: bool = True
    ) -> tuple[Tensor, Tensor]:
        """expmap(x, u), and v parallel transported there."""
        y = self.expmap(x, u, dim=dim)  # pyright: ignore[reportCallIssue]
        return y, self.transp(x, y, v, dim=dim)  # pyright: ignore[reportCallIssue]

    def retr_transp(
        self, x: Vectors, u: Vectors, v: Vectors, *, dim: int = -1, project: bool = True
    ) -> tuple[Tensor, Tensor]:
        """retr(x, u), and v parallel transported there."""
        y = self.retr(x, u, dim=dim)  # pyright: ignore[reportCallIssue]
        return y, self.transp(x, y, v, dim=dim)  # pyright: ignore[reportCallIssue]

    def transp_follow_expmap(
        self, x: Vectors, u: Vectors, v: Vectors, *, dim: int = -1, project: bool = True
    ) -> Vectors:
        """Parallel transport of v from x to expmap(x, u)."""
        return self.expmap_transp(x, u, v, dim=dim)[1]

    def transp_follow_retr(self, x: Vectors, u: Vectors, v: Vectors, *, dim: int = -1, project: bool = True) -> Vectors:
        """Parallel transport of v from x to retr(x, u)."""
        return self.retr_transp(x, u, v, dim=dim)[1]

    @__scaling__(ScalingInfo(t=-1))
    def geodesic_unit(self, t: Scalar, x: Vectors, u: Vectors, *, dim: int = -1, project: bool = True) -> Vectors:
        """Point at distance t from x in the direction of u; t is a number or has an axis `dim` of length 1."""
        unit = safe_divide(u, self.norm(x, u, keepdim=True, dim=dim))  # pyright: ignore[reportCallIssue]
        return self.expmap(x, t * unit, dim=dim)  # pyright: ignore[reportCallIssue]

    @abstractmethod
    def _origin_like(self, x: Tensor) -> Tensor:
        """The origin, once for each of the points."""

    def _space_size(self, *size: int | tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size2shape(*size))  # pyright: ignore[reportArgumentType]

    @abstractmethod
    def _from_origin(self, v: Tensor) -> Tensor:
        """The points that tangent vectors at the origin lead to; v has their lengths."""

    def _kind(self, dtype: torch.dtype | None, device: torch.device | str | None) -> dict[str, Any]:
        return {"dtype": self.dtype if dtype is None else dtype, "device": self.device if device is None else device}

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"c={as_float(self.c):g}, learnable={self.curvature.learnable}"


def _curvature(name: str, value: Scalar | Curvature, learnable: bool) -> Curvature | ManifoldCurvature:
    """A curvature of a manifold's own, or the one that is given."""
    if not isinstance(value, Curvature):
        return ManifoldCurvature(one_number(name, value), learnable, value if isinstance(value, Tensor) else None)
    if learnable:
        raise ValueError("learnable: got True and a Curvature; write Curvature(..., learnable=True) instead")
    return value


class Lorentz(_Hyperbolic):
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
    __scaling__ = _Hyperbolic.__scaling__.copy()

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
            own = _curvature("c", 1.0 if c is None else c, learnable)
        super().__init__(own)
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
        return _back(dim, lf.project(spaces(x=_last(dim, x)[0])[0], self.c))

    def proju(self, x: Vectors, v: Vectors, *, dim: int = -1) -> Vectors:
        """Orthogonal projection of an ambient vector onto the tangent space at x."""
        return _back(dim, lf.project_tangent(*_last(dim, x, v), c=self.c))

    def egrad2rgrad(self, x: Vectors, u: Vectors, *, dim: int = -1) -> Vectors:
        """Riemannian gradient from the ambient one: raise the index with the Minkowski metric, then project."""
        x, u = _last(dim, x, u)
        x, u = vectors(least=2, x=x, u=u)
        return _back(dim, lf.project_tangent(x, torch.cat([-u[..., :1], u[..., 1:]], dim=-1), self.c))

    def inner(
        self, x: Vectors | None, u: Vectors, v: Vectors | None = None, *, keepdim: bool = False, dim: int = -1
    ) -> Float[Tensor, "..."]:
        """Lorentz inner product of tangent vectors at x; never negative for v = u.

        With None for x that of any two ambient vectors, time parts as they are.
        """
        u, v = _last(dim, u, u if v is None else v)
        if x is None:
            return _with_dim(lf.lorentz_inner(u, v), keepdim, dim)
        c, (x,) = self.c, _last(dim, x)
        tensors = spaces(x=x, u=u, v=v)
        check_on_hyperboloid(c, x=x)
        value = evaluate(_tangent_inner, None, c, *tensors)
        return _with_dim(value, keepdim, dim)

    def inner0(self, v: Vectors, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Lorentz inner product of an ambient vector with the origin: -v0 / sqrt(c)."""
        (v,) = vectors(least=2, v=_last(dim, v)[0])
        return _with_dim(evaluate(lambda v0, c: -v0 / hyp.root(c), None, self.c, v[..., :1]).squeeze(-1), keepdim, dim)

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

    def dist(self, x: Vectors, y: Vectors, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Geodesic distance."""
        return _with_dim(lf.dist(*_last(dim, x, y), c=self.c), keepdim, dim)

    def dist2(self, x: Vectors, y: Vectors, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Squared geodesic distance, smooth at x = y."""
        x, y = _last(dim, x, y)
        return _with_dim(evaluate(_dist2, None, self.c, *point_spaces(self.c, x=x, y=y)), keepdim, dim)

    def cdist(self, x: Float[Tensor, "*#b q n"], y: Float[Tensor, "*#b k n"]) -> Float[Tensor, "*#b q k"]:
        """Geodesic distance of every x to every y: `lorentz.pairwise_dist`, fast but inaccurate for close pairs."""
        return lf.pairwise_dist(x, y, self.c)

    @__scaling__(ScalingInfo(1))
    def dist0(self, x: Vectors, *, dim: int = -1, keepdim: bool = False) -> Float[Tensor, "..."]:
        """Distance from the origin."""
        return _with_dim(lf.dist0(*_last(dim, x), c=self.c), keepdim, dim)

    def expmap(self, x: Vectors, u: Vectors, *, norm_tan: bool = False, project: bool = True, dim: int = -1) -> Vectors:
        """Exponential map at x.

        The space part of u is read: right for a tangent vector. `norm_tan=True` (geoopt's default) first projects u
        orthogonally, which is for vectors that are not tangent, and costs digits far out.
        """
        x, u = _last(dim, x, u)
        return _back(dim, lf.expmap(x, lf.project_tangent(x, u, self.c) if norm_tan else u, self.c))

    retr = expmap  # exact and cheap here, so it serves as retraction

    @__scaling__(ScalingInfo(u=-1))
    def expmap0(self, u: Vectors, *, project: bool = True, dim: int = -1) -> Vectors:
        """Exponential map at the origin of an ambient tangent vector: (*b, d+1), its time part 0 and not read.

        `lorentz.expmap0` takes the d space coordinates alone.
        """
        c, (u,) = self.c, _last(dim, u)
        (space,) = spaces(u=u)
        check_time_zero(u=u)
        return _back(dim, lf.expmap0(space, c))

    def logmap(self, x: Vectors, y: Vectors, *, dim: int = -1) -> Vectors:
        """Logarithmic map at x."""
        return _back(dim, lf.logmap(*_last(dim, x, y), c=self.c))

    @__scaling__(ScalingInfo(1))
    def logmap0(self, y: Vectors, *, dim: int = -1) -> Vectors:
        """Logarithmic map at the origin, ambient: (*b, d+1) with time part 0. `lorentz.logmap0` gives d numbers."""
        v = lf.logmap0(*_last(dim, y), c=self.c)
        return _back(dim, torch.cat([torch.zeros_like(v[..., :1]), v], dim=-1))

    @__scaling__(ScalingInfo(1))
    def logmap0back(self, x: Vectors, *, dim: int = -1) -> Vectors:
        """Logarithmic map of the origin at x: the tangent vector at x that leads to the origin."""
        (x,) = _last(dim, x)
        return _back(dim, lf.logmap(x, self._origin_like(x), self.c))

    def transp(self, x: Vectors, y: Vectors, v: Vectors, *, dim: int = -1) -> Vectors:
        """Parallel transport of v from x to y."""
        return _back(dim, lf.parallel_transport(*_last(dim, x, y, v), c=self.c))

    def geodesic(self, t: Scalar, x: Vectors, y: Vectors, *, dim: int = -1) -> Vectors:
        """Point at share t of the way from x to y; t is a number or has an axis `dim` of length 1."""
        return _back(dim, lf.geodesic(*_last(dim, x, y), t=_share(dim, t), c=self.c))

    def _origin_like(self, x: Tensor) -> Tensor:
        return lf.project(torch.zeros_like(spaces(x=x)[0]), self.c)

    def _from_origin(self, v: Tensor) -> Tensor:
        return lf.expmap0(v, self.c)

    def _space_size(self, *size: int | tuple[int, ...]) -> tuple[int, ...]:
        shape = tuple(size2shape(*size))  # pyright: ignore[reportArgumentType]
        self._assert_check_shape(shape, "size")  # pyright: ignore[reportArgumentType]
        return (*shape[:-1], shape[-1] - 1)

    def _check_shape(self, shape: tuple[int, ...], name: str) -> tuple[bool, str | None]:
        if len(shape) >= 1 and shape[-1] >= 2:
            return True, None
        return False, f"{name}: got shape {tuple(shape)}, expected a last axis of d + 1 >= 2, time first"

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        (x,) = _last(dim, x)
        time = self.projx(x)[..., 0]
        if torch.allclose(x[..., 0].to(time.dtype), time, atol=atol, rtol=rtol):
            return True, None
        return False, "time part is not sqrt(1/c + |x|^2)"

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, ok_point: bool = True, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        x, u = _last(dim, x, u)
        point = self.projx(x)
        time = (point[..., 1:] * u[..., 1:]).sum(-1) / point[..., 0]
        if torch.allclose(u[..., 0].to(time.dtype), time, atol=atol, rtol=rtol):
            return True, None
        return False, "time part is not x.u / x0"


class PoincareBall(_Hyperbolic):
    """Poincare ball for `geoopt.ManifoldParameter` and geoopt's optimisers, by the operations of `lorentz.models`.

    Points and tangent vectors have d coordinates, as in `geoopt.PoincareBall`. Nothing is moved from the rim but by
    `projx` and `retr`, which optimisers use: what rounds to the rim comes to the last number inside it.

    Args:
        c: curvature -c < 0: a number, a tensor of one number, or a `lorentz.nn.Curvature`, which is followed with its
            gradient and may be shared with layers.
        learnable: learn log c, so that c stays positive; a `Curvature` decides this itself.

    Raises:
        ValueError: `c` <= 0, a tensor of more than one number, or learnable with a `Curvature`.
        TypeError: `c` is neither a number nor a floating-point tensor.

    Examples:
        >>> import geoopt
        >>> ball = PoincareBall()
        >>> p = geoopt.ManifoldParameter(ball.random_normal(3, 2), manifold=ball)
        >>> optimiser = geoopt.optim.RiemannianAdam([p], lr=0.1)
        >>> ball.dist0(p).sum().backward()
        >>> optimiser.step()
    """

    name = "PoincareBall"
    __scaling__ = _Hyperbolic.__scaling__.copy()

    def __init__(self, c: Scalar | Curvature = 1.0, learnable: bool = False) -> None:
        super().__init__(_curvature("c", c, learnable))

    def projx(self, x: Ball, *, dim: int = -1) -> Ball:
        """The point, on the last number inside the ball if it is on the rim or beyond it."""
        (x,) = _last(dim, x)
        most = (1.0 - torch.finfo(x.dtype).eps) / as_float(self.c) ** 0.5
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return _back(dim, torch.where(length > most, x * (most / length), x))

    def proju(self, x: Ball, u: Ball, *, dim: int = -1) -> Ball:
        """The vector itself: all are tangent."""
        return u.expand(torch.broadcast_shapes(x.shape, u.shape))

    def lambda_x(self, x: Ball, *, dim: int = -1, keepdim: bool = False) -> Float[Tensor, "..."]:
        """Conformal factor 2/(1 - c|x|^2)."""
        return _with_dim(models.conformal_factor(*_last(dim, x), c=self.c), keepdim, dim)

    def egrad2rgrad(self, x: Ball, u: Ball, *, dim: int = -1) -> Ball:
        """Riemannian gradient from the Euclidean one: divided by the conformal factor twice."""
        return u / self.lambda_x(x, dim=dim, keepdim=True).square()

    def inner(
        self, x: Ball, u: Ball, v: Ball | None = None, *, keepdim: bool = False, dim: int = -1
    ) -> Float[Tensor, "..."]:
        """Inner product of tangent vectors at x."""
        value = (u * (u if v is None else v)).sum(dim, keepdim=keepdim)
        return self.lambda_x(x, dim=dim, keepdim=keepdim).square() * value

    def dist(self, x: Ball, y: Ball, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Geodesic distance."""
        return _with_dim(models.poincare_dist(*_last(dim, x, y), c=self.c), keepdim, dim)

    @__scaling__(ScalingInfo(2))
    def dist2(self, x: Ball, y: Ball, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Squared geodesic distance."""
        return self.dist(x, y, keepdim=keepdim, dim=dim).square()

    @__scaling__(ScalingInfo(1))
    def dist0(self, x: Ball, *, dim: int = -1, keepdim: bool = False) -> Float[Tensor, "..."]:
        """Distance from the centre."""
        return self.dist(torch.zeros_like(x), x, keepdim=keepdim, dim=dim)

    def expmap(self, x: Ball, u: Ball, *, project: bool = True, dim: int = -1) -> Ball:
        """Exponential map at x; `project` is accepted and changes nothing."""
        return _back(dim, models.poincare_expmap(*_last(dim, x, u), c=self.c))

    @__scaling__(ScalingInfo(u=-1))
    def expmap0(self, u: Ball, *, project: bool = True, dim: int = -1) -> Ball:
        """Exponential map at the centre."""
        return _back(dim, models.poincare_expmap0(*_last(dim, u), c=self.c))

    def retr(self, x: Ball, u: Ball, *, dim: int = -1) -> Ball:
        """The exponential map, inside the ball."""
        return self.projx(self.expmap(x, u, dim=dim), dim=dim)

    def logmap(self, x: Ball, y: Ball, *, dim: int = -1) -> Ball:
        """Logarithmic map at x."""
        return _back(dim, models.poincare_logmap(*_last(dim, x, y), c=self.c))

    @__scaling__(ScalingInfo(1))
    def logmap0(self, x: Ball, *, dim: int = -1) -> Ball:
        """Logarithmic map at the centre."""
        return _back(dim, models.poincare_logmap0(*_last(dim, x), c=self.c))

    def transp(self, x: Ball, y: Ball, v: Ball, *, dim: int = -1) -> Ball:
        """Parallel transport of v from x to y."""
        return _back(dim, models.poincare_transport(*_last(dim, x, y, v), c=self.c))

    def geodesic(self, t: Scalar, x: Ball, y: Ball, *, dim: int = -1) -> Ball:
        """Point at share t of the way from x to y; t is a number or has an axis `dim` of length 1."""
        return self.expmap(x, t * self.logmap(x, y, dim=dim), dim=dim)

    def mobius_add(self, x: Ball, y: Ball, *, dim: int = -1, project: bool = True) -> Ball:
        """Moebius addition x (+) y."""
        return _back(dim, models.mobius_add(*_last(dim, x, y), c=self.c))

    def mobius_sub(self, x: Ball, y: Ball, *, dim: int = -1, project: bool = True) -> Ball:
        """x (+) (-y)."""
        return self.mobius_add(x, -y, dim=dim)

    def mobius_coadd(self, x: Ball, y: Ball, *, dim: int = -1, project: bool = True) -> Ball:
        """Coaddition x (+) gyr[x, -y] y, which is commutative (Ungar 2008)."""
        return self.mobius_add(x, self.gyration(x, -y, y, dim=dim), dim=dim)

    def mobius_cosub(self, x: Ball, y: Ball, *, dim: int = -1, project: bool = True) -> Ball:
        """The coaddition of -y."""
        return self.mobius_coadd(x, -y, dim=dim)

    def gyration(self, x: Ball, y: Ball, z: Ball, *, dim: int = -1) -> Ball:
        """The rotation gyr[x, y] z."""
        return _back(dim, models.gyration(*_last(dim, x, y, z), c=self.c))

    def mobius_scalar_mul(self, r: Scalar, x: Ball, *, dim: int = -1, project: bool = True) -> Ball:
        """Moebius scaling: the point r times as far from the centre."""
        return _back(dim, models.mobius_scale(_share(dim, r), *_last(dim, x), c=self.c))

    def mobius_matvec(self, m: Tensor, x: Ball, *, dim: int = -1, project: bool = True) -> Tensor:
        """exp_0(m log_0 x)."""
        return _back(dim, models.mobius_matvec(m, *_last(dim, x), c=self.c))

    def mobius_pointwise_mul(self, w: Tensor, x: Ball, *, dim: int = -1, project: bool = True) -> Ball:
        """exp_0(w log_0 x), coordinate by coordinate."""
        return self.mobius_fn_apply(lambda v: w * v, x, dim=dim)

    @__scaling__(ScalingInfo.NotCompatible)  # pyright: ignore[reportArgumentType]
    def mobius_fn_apply(
        self, fn: Callable[..., Tensor], x: Ball, *args: Any, dim: int = -1, project: bool = True, **kwargs: Any
    ) -> Tensor:
        """exp_0(fn(log_0 x))."""
        return self.expmap0(fn(self.logmap0(x, dim=dim), *args, **kwargs), dim=dim)

    @__scaling__(ScalingInfo.NotCompatible)  # pyright: ignore[reportArgumentType]
    def mobius_fn_apply_chain(
        self, x: Ball, *fns: Callable[[Tensor], Tensor], project: bool = True, dim: int = -1
    ) -> Tensor:
        """`mobius_fn_apply` of one function after the other."""
        return self.mobius_fn_apply(lambda v: reduce(lambda value, fn: fn(value), fns, v), x, dim=dim)

    def weighted_midpoint(
        self,
        xs: Ball,
        weights: Tensor | None = None,
        *,
        reducedim: list[int] | None = None,
        dim: int = -1,
        keepdim: bool = False,
        lincomb: bool = False,
        posweight: bool = False,
        project: bool = True,
    ) -> Tensor:
        """The gyromidpoint over the axes `reducedim`, by default all but `dim`: `lorentz.models.poincare_midpoint`.

        Args:
            xs: points.
            weights: as `xs` without the axis `dim`, or broadcastable to it; none below 0, but with `posweight`.
            reducedim: the axes.
            dim: the axis of the coordinates.
            keepdim: keep them with length 1.
            lincomb: scale the result by the total of the weights.
            posweight: a weight below 0 becomes that of the point opposite.
            project: accepted.
        """
        axes, axis = xs.ndim, dim % xs.ndim
        gone = sorted({one % axes for one in (range(axes) if reducedim is None else reducedim)} - {axis})
        kept = [one for one in range(axes) if one not in gone and one != axis]
        of = xs.new_ones(()) if weights is None else weights.unsqueeze(dim)
        if posweight:
            xs, of = torch.where(of < 0, -xs, xs), of.abs()
        of = of.expand(*(1 if one == axis else length for one, length in enumerate(xs.shape)))
        xs, of = (one.permute(*kept, *gone, axis).flatten(len(kept), -2) for one in (xs, of))
        middle = models.poincare_midpoint(xs, of.mT, self.c).squeeze(-2)
        if lincomb:
            middle = models.mobius_scale(of.sum(-2), middle, self.c)
        middle = middle.movedim(-1, sum(one < axis for one in kept))
        for one in gone if keepdim else ():
            middle = middle.unsqueeze(one)
        return middle

    @__scaling__(ScalingInfo(1))
    def dist2plane(
        self,
        x: Ball,
        p: Ball,
        a: Ball,
        *,
        dim: int = -1,
        keepdim: bool = False,
        signed: bool = False,
        scaled: bool = False,
    ) -> Tensor:
        """Distance of x from the hyperplane through p with normal a; `scaled` multiplies it by |a|."""
        value = models.poincare_plane_dist(*_last(dim, x, p, a), c=self.c)
        value = value if signed else value.abs()
        return _with_dim(value * torch.linalg.vector_norm(a, dim=dim) if scaled else value, keepdim, dim)

    def antipode(self, x: Ball, *, dim: int = -1) -> Ball:
        """The point opposite, as far from the centre: -x."""
        return -x

    def sproj(self, x: Vectors, *, dim: int = -1) -> Tensor:
        """Point of the ball from one of the hyperboloid, time last as geoopt has it."""
        return _back(dim, models.to_poincare(_last(dim, x)[0].roll(1, -1), self.c))

    def inv_sproj(self, x: Ball, *, dim: int = -1) -> Tensor:
        """Point of the hyperboloid, time last, from one of the ball."""
        return _back(dim, models.from_poincare(*_last(dim, x), c=self.c).roll(-1, -1))

    @__scaling__(ScalingInfo(std=-1), "random")
    def wrapped_normal(
        self,
        *size: int | tuple[int, ...],
        mean: Tensor,
        std: float | Tensor = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> geoopt.ManifoldTensor:
        """Wrapped normal around `mean`, `std` a length; `size` is that of the points. See `lorentz.distributions`."""
        v = std * torch.randn(tuple(size2shape(*size)), **self._kind(dtype, device))  # pyright: ignore[reportArgumentType]
        point = self.expmap(mean, v / self.lambda_x(mean, keepdim=True))
        return geoopt.ManifoldTensor(point.detach(), manifold=self)  # pyright: ignore[reportCallIssue]

    @property
    def k(self) -> Tensor:
        """geoopt's k = -c, the curvature itself, a tensor as there."""
        return -torch.as_tensor(self.c, dtype=self.dtype, device=self.device)

    @property
    def radius(self) -> Tensor:
        """1/sqrt(c)."""
        return (-self.k).rsqrt()

    def norm(self, x: Ball, u: Ball, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Length of a tangent vector at x; zero subgradient at 0."""
        return safe_sqrt(self.inner(x, u, keepdim=keepdim, dim=dim))

    def _origin_like(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def _from_origin(self, v: Tensor) -> Tensor:
        return models.poincare_expmap0(0.5 * v, self.c)

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        inside = torch.linalg.vector_norm(x, dim=dim) < as_float(self.c) ** -0.5
        return (True, None) if bool(inside.all()) else (False, "it is not inside the ball of radius 1/sqrt(c)")

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, ok_point: bool = True, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        return True, None
