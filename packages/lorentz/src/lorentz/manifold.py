"""The hyperboloid as a geoopt manifold."""

import math

import geoopt
import torch
from geoopt.manifolds.base import Manifold
from geoopt.utils import size2shape
from jaxtyping import Float
from torch import Tensor, nn

from . import _hyperboloid as hyp
from . import functional as lf
from ._precision import Scalar, check_curvature, evaluate
from ._series import asinhc, safe_sqrt
from ._validation import spaces, vectors


def _dist2(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    """dist^2 without a root: smooth at x = y."""
    q = hyp.separation(hyp.pair(x, y, c), c)
    return (q * asinhc(0.25 * q).square() / c).squeeze(-1)


def _tangent_inner(x: Tensor, u: Tensor, v: Tensor, c: Scalar) -> Tensor:
    return hyp.tangent_inner(x, u, v, c).squeeze(-1)


class Lorentz(Manifold):
    """Lorentz model for `geoopt.ManifoldParameter` and geoopt's optimisers, accurate in float32.

    geoopt's convention: points and tangent vectors are ambient, time first, in every method, `expmap0` and `logmap0`
    included. The time part of an argument is recomputed from its space part: points do not drift, nothing to stabilise.
    The curvature is -c; `geoopt.Lorentz(k)` is `Lorentz(c=1/k)`.

    Args:
        c: curvature -c < 0, a number or a scalar tensor.
        learnable: learn log c, so that c stays positive.

    Raises:
        ValueError: `c` <= 0, or a tensor that is not a scalar.
        TypeError: `c` is neither a number nor a floating-point tensor.

    Examples:
        >>> manifold = Lorentz(c=0.5)
        >>> x = geoopt.ManifoldParameter(manifold.origin(3, 5), manifold=manifold)
        >>> optimiser = geoopt.optim.RiemannianAdam([x], lr=0.1)
        >>> manifold.dist(x, manifold.random_normal(3, 5)).sum().backward()
        >>> optimiser.step()
    """

    ndim = 1
    reversible = True
    name = "Lorentz"

    def __init__(self, c: Scalar = 1.0, learnable: bool = False) -> None:
        super().__init__()
        check_curvature(c)
        if isinstance(c, Tensor):
            if c.ndim:
                raise ValueError(f"c: got shape {tuple(c.shape)}, expected a scalar: one manifold has one curvature")
            check_curvature(c.item())
            c = c.detach().clone()
        self.log_c = None
        if learnable:
            self.log_c = nn.Parameter(c.log() if isinstance(c, Tensor) else torch.tensor(math.log(c)))
        elif isinstance(c, Tensor):
            self.register_buffer("_c", c)  # follows the module to its device
        else:
            self._c = c

    @property
    def c(self) -> Scalar:
        """Curvature -c: a number, or a scalar tensor with gradient if learnable."""
        return self._c if self.log_c is None else torch.exp(self.log_c)

    @property
    def k(self) -> Scalar:
        """geoopt's k, with <x, x>_L = -k."""
        return 1.0 / self.c

    def projx(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """The point with the space part of x."""
        return lf.project(spaces(x=x)[0], self.c)

    def proju(self, x: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b n"]:
        """Orthogonal projection of an ambient vector onto the tangent space at x."""
        return lf.project_tangent(x, u, self.c)

    def egrad2rgrad(self, x: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b n"]:
        """Riemannian gradient from the ambient one: raise the index with the Minkowski metric, then project."""
        x, u = vectors(least=2, x=x, u=u)
        return lf.project_tangent(x, torch.cat([-u[..., :1], u[..., 1:]], dim=-1), self.c)

    def inner(
        self,
        x: Float[Tensor, "*#b n"],
        u: Float[Tensor, "*#b n"],
        v: Float[Tensor, "*#b n"] | None = None,
        *,
        keepdim: bool = False,
    ) -> Float[Tensor, "..."]:
        """Lorentz inner product of tangent vectors at x; never negative for v = u."""
        v = u if v is None else v
        value = evaluate(_tangent_inner, None, self.c, *spaces(x=x, u=u, v=v))
        return value.unsqueeze(-1) if keepdim else value

    def norm(
        self, x: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"], *, keepdim: bool = False
    ) -> Float[Tensor, "..."]:
        """Lorentz length of a tangent vector at x; zero subgradient at 0."""
        return safe_sqrt(self.inner(x, u, keepdim=keepdim))

    def dist(
        self, x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], *, keepdim: bool = False
    ) -> Float[Tensor, "..."]:
        """Geodesic distance."""
        value = lf.dist(x, y, self.c)
        return value.unsqueeze(-1) if keepdim else value

    def dist2(
        self, x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], *, keepdim: bool = False
    ) -> Float[Tensor, "..."]:
        """Squared geodesic distance, smooth at x = y."""
        value = evaluate(_dist2, None, self.c, *spaces(x=x, y=y))
        return value.unsqueeze(-1) if keepdim else value

    def dist0(self, x: Float[Tensor, "*b n"], *, keepdim: bool = False) -> Float[Tensor, "..."]:
        """Distance from the origin."""
        value = lf.dist0(x, self.c)
        return value.unsqueeze(-1) if keepdim else value

    def expmap(self, x: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b n"]:
        """Exponential map at x."""
        return lf.expmap(x, u, self.c)

    def retr(self, x: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b n"]:
        """The exponential map: exact and cheap here, so it serves as retraction."""
        return lf.expmap(x, u, self.c)

    def logmap(self, x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b n"]:
        """Logarithmic map at x."""
        return lf.logmap(x, y, self.c)

    def expmap0(self, u: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Exponential map at the origin of an ambient tangent vector (time part 0, not read)."""
        return lf.expmap0(spaces(u=u)[0], self.c)

    def logmap0(self, y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Logarithmic map at the origin, ambient (time part 0)."""
        v = lf.logmap0(y, self.c)
        return torch.cat([torch.zeros_like(v[..., :1]), v], dim=-1)

    def transp(
        self, x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], v: Float[Tensor, "*#b n"]
    ) -> Float[Tensor, "*#b n"]:
        """Parallel transport of v from x to y."""
        return lf.parallel_transport(x, y, v, self.c)

    def transp0(self, y: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b n"]:
        """Parallel transport of u from the origin to y."""
        return lf.parallel_transport(self._origin_like(y), y, u, self.c)

    def transp0back(self, x: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]) -> Float[Tensor, "*#b n"]:
        """Parallel transport of u from x to the origin."""
        return lf.parallel_transport(x, self._origin_like(x), u, self.c)

    def geodesic(
        self, t: float | int | Float[Tensor, "..."], x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"]
    ) -> Float[Tensor, "*#b n"]:
        """Point at share t of the way from x to y; t is a number or has a last axis of length 1."""
        return lf.geodesic(x, y, t, self.c)

    def geodesic_unit(
        self, t: float | int | Float[Tensor, "..."], x: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]
    ) -> Float[Tensor, "*#b n"]:
        """Point at distance t from x in the direction of the unit vector u; t is a number or has a last axis of 1."""
        return lf.expmap(x, t * u, self.c)

    def _origin_like(self, x: Tensor) -> Tensor:
        return lf.project(torch.zeros_like(spaces(x=x)[0]), self.c)

    def random_normal(
        self,
        *size: int,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        generator: torch.Generator | None = None,
    ) -> geoopt.ManifoldTensor:
        """Wrapped normal at the origin: expmap0 of mean + std * standard normal; `size` is ambient."""
        shape = size2shape(*size)
        self._assert_check_shape(shape, "x")
        v = torch.randn(*shape[:-1], shape[-1] - 1, dtype=dtype, device=device, generator=generator)
        return geoopt.ManifoldTensor(lf.expmap0(mean + std * v, self.c).detach(), manifold=self)  # pyright: ignore[reportCallIssue]

    random = random_normal

    def origin(
        self,
        *size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        seed: int | None = 42,
    ) -> geoopt.ManifoldTensor:
        """The origin (1/sqrt(c), 0), repeated; `size` is ambient, `seed` is there for geoopt and not read."""
        shape = size2shape(*size)
        self._assert_check_shape(shape, "x")
        space = torch.zeros(*shape[:-1], shape[-1] - 1, dtype=dtype, device=device)
        return geoopt.ManifoldTensor(lf.project(space, self.c).detach(), manifold=self)  # pyright: ignore[reportCallIssue]

    def _check_point_on_manifold(self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5) -> tuple[bool, str | None]:
        time = self.projx(x)[..., 0]
        if torch.allclose(x[..., 0].to(time.dtype), time, atol=atol, rtol=rtol):
            return True, None
        return False, "time part is not sqrt(1/c + |x|^2)"

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, ok_point: bool = True, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        point = self.projx(x)
        time = (point[..., 1:] * u[..., 1:]).sum(-1) / point[..., 0]
        if torch.allclose(u[..., 0].to(time.dtype), time, atol=atol, rtol=rtol):
            return True, None
        return False, "time part is not x.u / x0"

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"c={float(self.c):g}, learnable={self.log_c is not None}"
