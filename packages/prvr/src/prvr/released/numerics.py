"""The numerical guards of the released code, with the gradients they have there, where these are numbers."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

_LIMIT = 1 - 1e-8  # 1 in float32


def guarded_sqrt(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """sqrt(max(x, 1e-9)); below the bound a share of 1e-8 of the gradient still passes."""
    below = x < 1e-9
    return (x.clamp_min(1e-9) + 1e-8 * (x - x.detach()) * below).sqrt()


def guarded_acosh(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """log(z + sqrt(max(z^2 - 1, 1e-9))), z = max(x, 1 + 1e-8)."""
    z = x.clamp_min(1 + 1e-8)
    return (z + guarded_sqrt(z * z - 1)).log()


def guarded_acos(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """acos(clamp(x, -1 + 1e-8, 1 - 1e-8)); at the bounds and past them no gradient, see `guarded_asin`."""
    return _clamped(torch.acos, x)


def guarded_asin(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """asin(clamp(x, -1 + 1e-8, 1 - 1e-8)); at the bounds and past them no gradient, which is what a clamp means.

    In float32 the bounds round to 1, where the slope is infinite: the released gradient is 0 times infinity there.
    """
    return _clamped(torch.asin, x)


def _clamped(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    inside = x.abs() < _LIMIT
    return torch.where(inside, function(x.masked_fill(~inside, 0)), function(x.detach().clamp(-_LIMIT, _LIMIT)))
