"""Dropout whose random numbers are cheap on a CPU, where drawing one float per element costs more than all else."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["Dropout", "dropout", "relu_dropout"]

_LEVELS = 2**16


class Dropout(nn.Module):
    """`torch.nn.Dropout`, with `dropout` below.

    Args:
        p: probability of a zero, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        """Zeros and scales in training; returns x otherwise."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"p={self.p}"


def dropout(x: Float[Tensor, "*s"], p: float) -> Float[Tensor, "*s"]:
    """Each element zero with probability p, the others divided by the probability to stay; always, as in training.

    On a CPU four elements share one 64-bit draw, 16 bits each: p is rounded to 1/65536, the scale is exact for it.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> dropout(torch.ones(6), 0.5).tolist()
        [0.0, 0.0, 2.0, 0.0, 0.0, 0.0]
    """
    if not p:
        return x
    if not _draws_cheaply(x):
        return F.dropout(x, p)
    keep, scale = _keep(x, p)
    return torch.where(keep, x, 0.0).mul_(scale)  # a product with a boolean first copies that to floats


def relu_dropout(x: Float[Tensor, "*s"], p: float) -> Float[Tensor, "*s"]:
    """dropout(relu(x)), which may overwrite x.

    On a CPU the output is all that is kept for the gradient: it is positive just where the gradient passes.
    """
    if not p:
        return F.relu_(x)
    if not _draws_cheaply(x):
        return F.dropout(F.relu_(x), p)
    return torch.as_tensor(_ReluDropout.apply(x, p))


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep, ctx.scale = _keep(x, p)
        torch.where(keep, x.relu_(), x.new_zeros(()), out=x).mul_(ctx.scale)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], y, 0).mul_(ctx.scale), None


def _draws_cheaply(x: Tensor) -> bool:
    """Elsewhere torch has a kernel that draws and multiplies at once, and a compiler makes its own."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _keep(x: Tensor, p: float) -> tuple[Bool[Tensor, "*s"], float]:
    """What stays, and what that is multiplied by."""
    dropped = min(round(p * _LEVELS), _LEVELS - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    return bits >= dropped - _LEVELS // 2, _LEVELS / (_LEVELS - dropped)
