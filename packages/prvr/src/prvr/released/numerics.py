"""The numerical guards of the released code, with the gradients they have there."""

from jaxtyping import Float
from torch import Tensor

__all__ = ["guarded_acosh", "guarded_sqrt"]


def guarded_sqrt(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """sqrt(max(x, 1e-9)); below the bound a share of 1e-8 of the gradient still passes."""
    below = x < 1e-9
    return (x.clamp_min(1e-9) + 1e-8 * (x - x.detach()) * below).sqrt()


def guarded_acosh(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """log(z + sqrt(max(z^2 - 1, 1e-9))), z = max(x, 1 + 1e-8)."""
    z = x.clamp_min(1 + 1e-8)
    return (z + guarded_sqrt(z * z - 1)).log()
