"""What the manifolds have in common: geoopt's methods, whatever the coordinates."""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ._manifold_curvature import ManifoldCurvature, as_float, one_number
from ._precision import Scalar
from ._series import safe_divide
from .nn.curvature import Curvature

with warnings.catch_warnings():  # geoopt compiles its own functions by torch.jit.script, which torch deprecates
    warnings.filterwarnings("ignore", message=r".*torch\.jit")  # a DeprecationWarning, and a FutureWarning since 2.15
    try:
        from geoopt import ManifoldTensor
        from geoopt.manifolds.base import Manifold, ScalingInfo
        from geoopt.utils import size2shape
    except Exception as error:  # of any kind, where torch no longer has what geoopt asks for
        raise ImportError(
            f"lorentz.manifold needs geoopt, which cannot be imported ({error!r}). geoopt 0.5.1 was tested with torch "
            "2.10 to 2.15: pip install 'geoopt>=0.5.1,<0.6' 'torch>=2.10,<2.16'. The rest of lorentz works without it."
        ) from error

Vectors = Float[Tensor, "*#b n"]
"""Points or tangent vectors of the manifold: of the hyperboloid n = d + 1 numbers, time first, of the ball d."""


def last(dim: int, *values: Any) -> tuple[Any, ...]:
    """Tensors with the axis of their coordinates at the end, where the functions expect it; numbers as they are."""
    return values if dim == -1 else tuple(x.movedim(dim, -1) if isinstance(x, Tensor) and x.ndim else x for x in values)


def back(dim: int, value: Tensor) -> Tensor:
    """Vectors with the axis of their coordinates where it was."""
    return value if dim == -1 else value.movedim(-1, dim)


class Hyperbolic(Manifold):
    """A space of curvature -c, whose functions, of `lorentz` or `lorentz.models`, have the axis of coordinates last."""

    ndim = 1
    reversible = True
    __scaling__ = Manifold.__scaling__.copy()
    _dist: Callable[..., Tensor]
    _logmap: Callable[..., Tensor]
    _transport: Callable[..., Tensor]

    def __init__(self, name: str, c: Scalar | Curvature | ManifoldCurvature, learnable: bool) -> None:
        super().__init__()
        if not isinstance(c, (Curvature, ManifoldCurvature)):
            c = ManifoldCurvature(one_number(name, c), learnable, c if isinstance(c, Tensor) else None)
        elif learnable and isinstance(c, Curvature):
            raise ValueError("learnable: got True and a Curvature; write Curvature(..., learnable=True) instead")
        self.curvature = c

    @property
    def c(self) -> Scalar:
        """Curvature -c: a number, or a scalar tensor with gradient if it is learned."""
        return self.curvature()

    def _vectors(self, function: Callable[..., Tensor], dim: int, *values: Any) -> Tensor:
        return back(dim, function(*last(dim, *values), c=self.c))

    def _numbers(self, function: Callable[..., Tensor], keepdim: bool, dim: int, *values: Tensor) -> Tensor:
        value = function(*last(dim, *values), c=self.c)
        return value.unsqueeze(dim) if keepdim else value

    def dist(self, x: Vectors, y: Vectors, *, keepdim: bool = False, dim: int = -1) -> Float[Tensor, "..."]:
        """Geodesic distance."""
        return self._numbers(self._dist, keepdim, dim, x, y)

    def logmap(self, x: Vectors, y: Vectors, *, dim: int = -1) -> Vectors:
        """Logarithmic map at x."""
        return self._vectors(self._logmap, dim, x, y)

    def transp(self, x: Vectors, y: Vectors, v: Vectors, *, dim: int = -1) -> Vectors:
        """Parallel transport of v from x to y."""
        return self._vectors(self._transport, dim, x, y, v)

    @__scaling__(ScalingInfo(std=-1), "random")
    def random_normal(
        self,
        *size: int | tuple[int, ...],
        mean: float | Tensor = 0.0,
        std: float | Tensor = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> ManifoldTensor:
        """Wrapped normal at the origin: the points that tangent vectors mean + std * standard normal lead to.

        `size` is that of the points; dtype and device are those of the manifold unless given. In the ball, as on the
        hyperboloid, `std` is a length. geoopt scales every tangent vector to length 1 in place of using `std`.
        """
        v = torch.randn(self._space_size(*size), **self._kind(dtype, device), generator=generator)
        return self._points(self._from_origin(mean + std * v))

    random = random_normal

    def origin(
        self,
        *size: int | tuple[int, ...],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        seed: int | None = 42,
    ) -> ManifoldTensor:
        """The origin, repeated; `size` is that of the points, `seed` is there for geoopt and not read."""
        return self._points(self._from_origin(torch.zeros(self._space_size(*size), **self._kind(dtype, device))))

    def transp0(self, y: Vectors, u: Vectors, *, dim: int = -1) -> Vectors:
        """Parallel transport of u from the origin to y."""
        return self.transp(self._origin_like(y, dim), y, u, dim=dim)

    def transp0back(self, x: Vectors, u: Vectors, *, dim: int = -1) -> Vectors:
        """Parallel transport of u from x to the origin."""
        return self.transp(x, self._origin_like(x, dim), u, dim=dim)

    def expmap_transp(
        self, x: Vectors, u: Vectors, v: Vectors, *, dim: int = -1, project: bool = True
    ) -> tuple[Tensor, Tensor]:
        """expmap(x, u), and v parallel transported there."""
        y = self.expmap(x, u, dim=dim)  # pyright: ignore[reportCallIssue]
        return y, self.transp(x, y, v, dim=dim)

    def retr_transp(
        self, x: Vectors, u: Vectors, v: Vectors, *, dim: int = -1, project: bool = True
    ) -> tuple[Tensor, Tensor]:
        """retr(x, u), and v parallel transported there."""
        y = self.retr(x, u, dim=dim)  # pyright: ignore[reportCallIssue]
        return y, self.transp(x, y, v, dim=dim)

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
        return self.expmap(x, t * safe_divide(u, self.norm(x, u, keepdim=True, dim=dim)), dim=dim)  # pyright: ignore[reportCallIssue]

    @abstractmethod
    def _origin_like(self, x: Tensor, dim: int) -> Tensor:
        """The origin, once for each of the points."""

    def _space_size(self, *size: int | tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size2shape(*size))  # pyright: ignore[reportArgumentType]

    @abstractmethod
    def _from_origin(self, v: Tensor) -> Tensor:
        """The points that tangent vectors at the origin lead to; v has their lengths."""

    def _points(self, x: Tensor) -> ManifoldTensor:
        return ManifoldTensor(x.detach(), manifold=self)  # pyright: ignore[reportCallIssue]

    def _kind(self, dtype: torch.dtype | None, device: torch.device | str | None) -> dict[str, Any]:
        return {"dtype": self.dtype if dtype is None else dtype, "device": self.device if device is None else device}

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"c={as_float(self.c):g}, learnable={self.curvature.learnable}"
