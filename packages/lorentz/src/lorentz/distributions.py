"""The wrapped normal distribution on the hyperboloid."""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.nn.functional import pad

from . import _hyperboloid as hyp
from . import maps
from ._fused import Fused
from ._precision import Scalar, check_curvature, evaluate
from ._series import log_sinhc
from ._validation import check_alike, check_batch, check_float, check_scalar_like
from .points import point_spaces

Map = Callable[[Tensor, Tensor, Scalar], Tensor]


def _carried(loc: Tensor, v: Tensor, c: Scalar, expmap: Map = maps._expmap) -> Tensor:
    """exp_loc(PT_{o -> loc} v), on space parts."""
    return expmap(loc, v + c * hyp.dot(loc, v) / (1.0 + hyp.root(c) * hyp.time(loc, c)) * loc, c)


def _log_normal(v: Tensor, scale: Tensor, c: Scalar) -> Tensor:
    """Log density of the point that v (*b, d) is carried to."""
    normal = -0.5 * (v / scale).square() - torch.log(scale) - 0.5 * math.log(2.0 * math.pi)
    return normal.sum(-1) - (v.shape[-1] - 1) * log_sinhc(c * hyp.dot(v, v)).squeeze(-1)


def _log_prob(loc: Tensor, x: Tensor, scale: Tensor, c: Scalar, logmap: Map = maps._logmap) -> Tensor:
    v = logmap(loc, x, c)[..., 1:]
    # Back to the origin: the part along loc becomes shorter by loc0, which cancels far out unless it is apart.
    yy, along, a = hyp.dot(loc, loc), hyp.dot(loc, v), hyp.root(c) * hyp.time(loc, c)
    far = c * yy > 1.0
    share = along / torch.where(far, yy, a * (a + 1.0) / c)
    return _log_normal(v - share * loc + torch.where(far, share / a, 0.0) * loc, scale, c)


def _fused(kernel: Callable[..., Tensor], operation: Fused) -> Callable[..., Tensor]:
    """The kernel with a map that has a backward pass of its own, as `evaluate` takes it."""

    def function(wide: torch.dtype, result: torch.dtype, c: Scalar, *tensors: Tensor) -> Tensor:
        def mapped(x: Tensor, v: Tensor, c: Scalar) -> Tensor:
            return operation(wide, wide, c, pad(x, (1, 0)), pad(v, (1, 0)))

        c = c.to(wide) if isinstance(c, Tensor) else c
        return kernel(*(tensor.to(wide) for tensor in tensors), c, mapped).to(result)

    return function


_FUSED_CARRIED = _fused(_carried, maps._FUSED_EXPMAP)
_FUSED_LOG_PROB = _fused(_log_prob, maps._FUSED_LOGMAP)


class WrappedNormal(Distribution):
    """Normal at the origin's tangent space, carried to `loc` and mapped onto the hyperboloid (Nagano et al. 2019).

    z = exp_loc(PT_{o -> loc}(0, v)), v ~ N(0, diag(scale^2));
    log p(z) = log N(v; 0, scale) - (d - 1) log(sinh(r)/r), r = sqrt(c)|v|.

    torch.distributions.kl_divergence of two of them has no closed form: it is log p - log q at one new sample of p for
    every entry, unbiased and differentiable. `p.expand((100, *p.batch_shape))` takes 100.

    Args:
        loc: ambient point (*b, d+1); only its space part is read.
        scale: standard deviations > 0, a number or a tensor broadcastable to (*b, d), of any floating dtype.
        c: see the conventions of `lorentz.functional`.
        validate_args: as in torch.distributions.

    Raises:
        ValueError: `c` is a number <= 0, a shape does not fit, or `scale` is not positive (with validate_args).

    Examples:
        >>> from lorentz.functional import project
        >>> normal = WrappedNormal(project(torch.zeros(4, 2)), torch.full((2,), 0.1))
        >>> normal.log_prob(normal.sample((10,))).shape
        torch.Size([10, 4])
    """

    arg_constraints: ClassVar = {"scale": constraints.positive}  # pyright: ignore[reportAssignmentType]
    has_rsample = True

    def __init__(
        self,
        loc: Float[Tensor, "*b n"],
        scale: Scalar,
        c: Scalar = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        check_curvature(c)
        (space,) = point_spaces(c, loc=loc)
        if isinstance(scale, (int, float)):
            scale = space.new_tensor(scale)
        check_float("scale", scale)
        check_alike(loc=loc, scale=scale.to(loc.dtype))
        check_batch("scale", scale.shape, scale.shape, "the space part of loc", space.shape)
        shape = torch.broadcast_shapes(space.shape, scale.shape)
        if isinstance(c, Tensor) and c.ndim:
            check_scalar_like("c", c, 1, (space,))
            shape = torch.broadcast_shapes(shape, c.shape)
        self.loc, self.c = maps.project(space.expand(shape), c), c
        self.scale = scale.to(self.loc.dtype).expand(shape)
        super().__init__(shape[:-1], self.loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: torch.Size | tuple[int, ...], _instance: None = None) -> "WrappedNormal":
        """The same distribution for a larger batch."""
        loc, scale = (t.expand(*batch_shape, t.shape[-1]) for t in (self.loc, self.scale))
        return WrappedNormal(loc, scale, self.c, validate_args=False)

    @property
    def mean(self) -> Float[Tensor, "*b n"]:
        """loc: the Frechet mean and the Lorentz centroid of the distribution, which is symmetric about it."""
        return self.loc

    @property
    def mode(self) -> Float[Tensor, "*b n"]:
        """loc, where the density is largest."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Not implemented: a variance of coordinates has no meaning on a curved space."""
        raise NotImplementedError(
            "variance: not defined for ambient coordinates; use `scale`, the standard deviation of the tangent vectors"
        )

    def entropy(self) -> Tensor:
        """Not implemented: it has no closed form."""
        raise NotImplementedError(
            "entropy: no closed form is known; estimate it as the mean of -log_prob(z) over z = rsample((n,))"
        )

    def rsample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Float[Tensor, "... n"]:
        """Draw ambient points, differentiable in loc, scale and c."""
        return self._at(self._draw(sample_shape))

    def _draw(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        """v, tangent vectors at the origin."""
        shape = torch.Size(sample_shape) + self.scale.shape
        return self.scale * torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)

    def _at(self, v: Tensor) -> Tensor:
        """The points that tangent vectors at the origin are carried to."""
        return evaluate(_carried, None, self.c, self.loc[..., 1:], v, fused=_FUSED_CARRIED)

    def log_prob(self, value: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
        """Log density with respect to the Riemannian volume.

        Raises:
            ValueError: the shape of `value` does not fit.
            TypeError: `value` is no floating-point tensor, or float32 meets float64.
        """
        loc, x = point_spaces(self.c, loc=self.loc, value=value)
        return evaluate(_log_prob, None, self.c, loc, x, self.scale, fused=_FUSED_LOG_PROB)


@register_kl(WrappedNormal, WrappedNormal)
def _kl_divergence(p: WrappedNormal, q: WrappedNormal) -> Tensor:
    if not isinstance(p.c, Tensor) and not isinstance(q.c, Tensor) and p.c != q.c:
        raise ValueError(f"c: got {p.c} and {q.c}, expected distributions on one hyperboloid")
    v = p._draw()
    return evaluate(_log_normal, None, p.c, v, p.scale) - q.log_prob(p._at(v))
