"""The wrapped normal distribution on the hyperboloid."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from . import _hyperboloid as hyp
from . import functional as lf
from ._precision import Scalar, check_curvature, evaluate
from ._series import safe_sqrt, sinhc


def _log_sinhc(q: Tensor) -> Tensor:
    """log(sinh(s)/s) at s = sqrt(q), without overflow for large s."""
    small = q < 1.0
    s = safe_sqrt(torch.where(small, 1.0, q))
    large = s + torch.log1p(-torch.exp(-2.0 * s)) - torch.log(2.0 * s)
    return torch.where(small, torch.log(sinhc(torch.where(small, q, 0.0))), large)


class WrappedNormal(Distribution):
    """Normal at the origin's tangent space, carried to `loc` and mapped onto the hyperboloid (Nagano et al. 2019).

    z = exp_loc(PT_{o -> loc}(0, v)), v ~ N(0, diag(scale^2));
    log p(z) = log N(v; 0, scale) - (d - 1) log(sinh(r)/r), r = sqrt(c)|v|.

    Args:
        loc: ambient point (*b, d+1); only its space part is read.
        scale: standard deviations > 0, broadcastable to (*b, d).
        c: curvature -c < 0, a number or a scalar tensor.
        validate_args: as in torch.distributions.

    Raises:
        ValueError: `c` is a number <= 0, or `scale` is not positive (with validate_args).

    Example:
        >>> normal = WrappedNormal(lf.project(torch.zeros(4, 2)), torch.full((2,), 0.1))
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
        space, self.scale = torch.broadcast_tensors(loc[..., 1:], scale)
        self.loc, self.c = lf.project(space, c), c
        super().__init__(space.shape[:-1], self.loc.shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Float[Tensor, "... n"]:
        """Draw ambient points, differentiable in loc, scale and c."""
        shape = torch.Size(sample_shape) + self.scale.shape
        v = self.scale * torch.randn(shape, dtype=self.scale.dtype, device=self.scale.device)
        ambient = torch.cat([torch.zeros_like(v[..., :1]), v], dim=-1)
        origin = lf.project(torch.zeros_like(v), self.c)
        return lf.expmap(self.loc, lf.parallel_transport(origin, self.loc, ambient, self.c), self.c)

    def log_prob(self, value: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
        """Log density with respect to the Riemannian volume."""
        origin = lf.project(torch.zeros_like(self.loc[..., 1:]), self.c)
        v = lf.parallel_transport(self.loc, origin, lf.logmap(self.loc, value, self.c), self.c)[..., 1:]
        normal = -0.5 * (v / self.scale).square() - torch.log(self.scale) - 0.5 * math.log(2.0 * math.pi)
        volume = evaluate(lambda v, c: _log_sinhc(c * hyp.dot(v, v)).squeeze(-1), "auto", self.c, v)
        return normal.sum(-1) - (v.shape[-1] - 1) * volume
