"""The wrapped normal distribution on the hyperboloid."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from . import _hyperboloid as hyp
from . import maps
from ._precision import Scalar, check_curvature, evaluate
from ._series import safe_sqrt, sinhc
from ._validation import check_alike, check_batch, check_float, check_scalar_like
from .points import point_spaces


def _log_sinhc(q: Tensor) -> Tensor:
    """log(sinh(s)/s) at s = sqrt(q), without overflow for large s."""
    small = q < 1.0
    s = safe_sqrt(torch.where(small, 1.0, q))
    large = s + torch.log1p(-torch.exp(-2.0 * s)) - torch.log(2.0 * s)
    return torch.where(small, torch.log(sinhc(torch.where(small, q, 0.0))), large)


def _carried(loc: Tensor, v: Tensor, c: Scalar) -> Tensor:
    """exp_loc(PT_{o -> loc} v), on space parts."""
    return maps._expmap(loc, maps._parallel_transport(torch.zeros_like(loc), loc, v, c)[..., 1:], c)


def _log_prob(loc: Tensor, x: Tensor, scale: Tensor, c: Scalar) -> Tensor:
    v = maps._parallel_transport(loc, torch.zeros_like(loc), maps._logmap(loc, x, c)[..., 1:], c)[..., 1:]
    normal = -0.5 * (v / scale).square() - torch.log(scale) - 0.5 * math.log(2.0 * math.pi)
    volume = _log_sinhc(c * hyp.dot(v, v)).squeeze(-1)
    return normal.sum(-1) - (v.shape[-1] - 1) * volume


class WrappedNormal(Distribution):
    """Normal at the origin's tangent space, carried to `loc` and mapped onto the hyperboloid (Nagano et al. 2019).

    z = exp_loc(PT_{o -> loc}(0, v)), v ~ N(0, diag(scale^2));
    log p(z) = log N(v; 0, scale) - (d - 1) log(sinh(r)/r), r = sqrt(c)|v|.

    Args:
        loc: ambient point (*b, d+1); only its space part is read.
        scale: standard deviations > 0, broadcastable to (*b, d), of any floating dtype.
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
        scale: Float[Tensor, "..."],
        c: Scalar = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        check_curvature(c)
        (space,) = point_spaces(c, loc=loc)
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

    def rsample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Float[Tensor, "... n"]:
        """Draw ambient points, differentiable in loc, scale and c."""
        shape = torch.Size(sample_shape) + self.scale.shape
        v = self.scale * torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return evaluate(_carried, None, self.c, self.loc[..., 1:], v)

    def log_prob(self, value: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
        """Log density with respect to the Riemannian volume.

        Raises:
            ValueError: the shape of `value` does not fit.
            TypeError: `value` is no floating-point tensor, or float32 meets float64.
        """
        loc, x = point_spaces(self.c, loc=self.loc, value=value)
        return evaluate(_log_prob, None, self.c, loc, x, self.scale)
