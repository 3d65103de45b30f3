"""The Poincare ball as a geoopt manifold."""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from . import models
from ._manifold import Hyperbolic, ManifoldTensor, ScalingInfo, Vectors, back, last
from ._manifold_curvature import as_float
from ._precision import Scalar
from ._series import safe_sqrt
from .models import Ball
from .nn.curvature import Curvature


class PoincareBall(Hyperbolic):
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
    __scaling__ = Hyperbolic.__scaling__.copy()
    _dist, _logmap = staticmethod(models.poincare_dist), staticmethod(models.poincare_logmap)
    _transport = staticmethod(models.poincare_transport)

    def __init__(self, c: Scalar | Curvature = 1.0, learnable: bool = False) -> None:
        super().__init__("c", c, learnable)

    def projx(self, x: Ball, *, dim: int = -1) -> Ball:
        """The point, on the last number inside the ball if it is on the rim or beyond it."""
        (x,) = last(dim, x)
        most = (1.0 - torch.finfo(x.dtype).eps) / as_float(self.c) ** 0.5
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return back(dim, torch.where(length > most, x * (most / length), x))

    def proju(self, x: Ball, u: Ball, *, dim: int = -1) -> Ball:
        """The vector itself: all are tangent."""
        return u.expand(torch.broadcast_shapes(x.shape, u.shape))

    def lambda_x(self, x: Ball, *, dim: int = -1, keepdim: bool = False) -> Float[Tensor, "..."]:
        """Conformal factor 2/(1 - c|x|^2)."""
        return self._numbers(models.conformal_factor, keepdim, dim, x)

    def egrad2rgrad(self, x: Ball, u: Ball, *, dim: int = -1) -> Ball:
        """Riemannian gradient from the Euclidean one: divided by the conformal factor twice."""
        return u / self.lambda_x(x, dim=dim, keepdim=True).square()

    def inner(
        self, x: Ball, u: Ball, v: Ball | None = None, *, keepdim: bool = False, dim: int = -1
    ) -> Float[Tensor, "..."]:
        """Inner product of tangent vectors at x."""
        value = (u * (u if v is None else v)).sum(dim, keepdim=keepdim)
        return self.lambda_x(x, dim=dim, keepdim=keepdim).square() * value

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
        return self._vectors(models.poincare_expmap, dim, x, u)

    @__scaling__(ScalingInfo(u=-1))
    def expmap0(self, u: Ball, *, project: bool = True, dim: int = -1) -> Ball:
        """Exponential map at the centre."""
        return self._vectors(models.poincare_expmap0, dim, u)

    def retr(self, x: Ball, u: Ball, *, dim: int = -1) -> Ball:
        """The exponential map, inside the ball."""
        return self.projx(self.expmap(x, u, dim=dim), dim=dim)

    @__scaling__(ScalingInfo(1))
    def logmap0(self, x: Ball, *, dim: int = -1) -> Ball:
        """Logarithmic map at the centre."""
        return self._vectors(models.poincare_logmap0, dim, x)

    def geodesic(self, t: Scalar, x: Ball, y: Ball, *, dim: int = -1) -> Ball:
        """Point at share t of the way from x to y; t is a number or has an axis `dim` of length 1."""
        return self.expmap(x, t * self.logmap(x, y, dim=dim), dim=dim)

    def mobius_add(self, x: Ball, y: Ball, *, dim: int = -1, project: bool = True) -> Ball:
        """Moebius addition x (+) y."""
        return self._vectors(models.mobius_add, dim, x, y)

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
        return self._vectors(models.gyration, dim, x, y, z)

    def mobius_scalar_mul(self, r: Scalar, x: Ball, *, dim: int = -1, project: bool = True) -> Ball:
        """Moebius scaling: the point r times as far from the centre."""
        return self._vectors(models.mobius_scale, dim, r, x)

    def mobius_matvec(self, m: Tensor, x: Ball, *, dim: int = -1, project: bool = True) -> Tensor:
        """exp_0(m log_0 x)."""
        return self._vectors(partial(models.mobius_matvec, m), dim, x)

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
        value = self._numbers(models.poincare_plane_dist, keepdim, dim, x, p, a)
        value = value if signed else value.abs()
        return value * torch.linalg.vector_norm(a, dim=dim, keepdim=keepdim) if scaled else value

    def antipode(self, x: Ball, *, dim: int = -1) -> Ball:
        """The point opposite, as far from the centre: -x."""
        return -x

    def sproj(self, x: Vectors, *, dim: int = -1) -> Tensor:
        """Point of the ball from one of the hyperboloid, time last as geoopt has it."""
        return self._vectors(models.to_poincare, dim, x.roll(1, dim))

    def inv_sproj(self, x: Ball, *, dim: int = -1) -> Tensor:
        """Point of the hyperboloid, time last, from one of the ball."""
        return self._vectors(models.from_poincare, dim, x).roll(-1, dim)

    @__scaling__(ScalingInfo(std=-1), "random")
    def wrapped_normal(
        self,
        *size: int | tuple[int, ...],
        mean: Tensor,
        std: float | Tensor = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> ManifoldTensor:
        """Wrapped normal around `mean`, `std` a length; `size` is that of the points. See `lorentz.distributions`."""
        v = std * torch.randn(self._space_size(*size), **self._kind(dtype, device))
        return self._points(self.expmap(mean, v / self.lambda_x(mean, keepdim=True)))

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

    def _origin_like(self, x: Tensor, dim: int) -> Tensor:
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
