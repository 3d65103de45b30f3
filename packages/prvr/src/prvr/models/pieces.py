"""What follows attention in a stack of blocks: residual connections with layer norm, and feed-forward layers.

On a CPU they are computed a few rows at a time, so that what lies between two results stays in the cache; under
autocast, where a compiler looks on, and on other devices by torch's own operators on all rows at once.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from prvr.models.layers import StackedLayerNorm, StackedLinear, draw_keep, draws_cheaply, dropout, kept_share

_ROWS = 512  # for each thread; a hidden layer of width 1,536 then takes 3 MB


def _by_hand(x: Tensor) -> bool:
    return draws_cheaply(x) and not torch.is_autocast_enabled("cpu")


def _pieces(rows: int) -> Iterator[slice]:
    step = _ROWS * torch.get_num_threads()
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def residual_norm(
    x: Float[Tensor, "*k b m d"], update: Float[Tensor, "k b m d"], norm: StackedLayerNorm, p: float
) -> Float[Tensor, "k b m d"]:
    """LN_k(x + dropout(update_k)).

    Args:
        x: `(k, b, m, d)`, or `(b, m, d)` for all parts of the stack.
        update: `(k, b, m, d)` what is added.
        norm: layer norm of each part.
        p: probability of a zero in the update.
    """
    if not _by_hand(update):
        return norm(x + dropout(update, p))
    y = _ResidualNorm.apply(x.flatten(-3, -2), update.flatten(1, 2), norm.weight, norm.bias, p)
    return torch.as_tensor(y).view(update.shape)


def feed_forward(
    x: Float[Tensor, "k b m d"], expand: StackedLinear, contract: StackedLinear, p: float
) -> Float[Tensor, "k b m d"]:
    """W_2 dropout(ReLU(W_1 x + b_1)) + b_2 for each part of the stack.

    Args:
        x: `(k, b, m, d)`.
        expand: W_1 and b_1 of each part.
        contract: W_2 and b_2 of each part.
        p: probability of a zero in the hidden layer.
    """
    rows = x.flatten(1, 2)
    if _by_hand(rows):
        parameters = (expand.weight, expand.bias, contract.weight, contract.bias)
        y = torch.as_tensor(_FeedForward.apply(rows, *parameters, p, torch.is_grad_enabled()))
    else:
        y = contract.rows(dropout(F.relu_(expand.rows(rows)), p))
    return y.view(*x.shape[:-1], -1)


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, p: float) -> Tensor:
        num, rows, dim = update.shape
        total, y, ctx.scale, ctx.shared = torch.empty_like(update), torch.empty_like(update), 1.0, x.ndim == 2
        moments, keep = update.new_empty(2, num, rows, 1), None
        if p:
            keep, ctx.scale = draw_keep(torch.empty(update.shape, dtype=torch.int8), p), 1 / kept_share(p)
        old = x.expand_as(update)
        for k in range(num):
            for at in _pieces(rows):
                if keep is None:
                    torch.add(old[k, at], update[k, at], out=total[k, at])
                else:
                    mask = keep[k, at].to(update.dtype)
                    torch.addcmul(old[k, at], update[k, at], mask, value=ctx.scale, out=total[k, at])
                found = torch.native_layer_norm(total[k, at], (dim,), weight[k], bias[k], 1e-5)
                for to, value in zip((y, *moments), found, strict=True):
                    to[k, at] = value
        ctx.save_for_backward(total, moments, weight, bias, keep)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        total, moments, weight, bias, keep = ctx.saved_tensors
        num, rows, dim = total.shape
        of_update, of_weight, of_bias = torch.empty_like(total), torch.zeros_like(weight), torch.zeros_like(bias)
        of_x = total.new_zeros(rows, dim) if ctx.shared else of_update if keep is None else torch.empty_like(total)
        for k in range(num):
            for at in _pieces(rows):
                found, to_weight, to_bias = torch.ops.aten.native_layer_norm_backward(
                    grads[0][k, at], total[k, at], (dim,), *moments[:, k, at], weight[k], bias[k], (True, True, True)
                )
                of_weight[k] += to_weight
                of_bias[k] += to_bias
                if ctx.shared:
                    of_x[at] += found
                elif of_x is not of_update:
                    of_x[k, at] = found
                if keep is None:
                    of_update[k, at] = found
                else:
                    torch.mul(found, keep[k, at].to(total.dtype), out=of_update[k, at]).mul_(ctx.scale)
        return of_x, of_update, of_weight, of_bias, None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, first: Tensor, shift: Tensor, second: Tensor, bias: Tensor, p: float, kept: bool
    ) -> Tensor:
        num, rows, _ = x.shape
        y = torch.empty_like(x)
        # All that is kept for the gradient: it passes where the hidden layer is positive.
        hidden = x.new_empty(num, rows if kept else 0, first.shape[1])
        ctx.scale = 1 / kept_share(p)
        for k in range(num):
            for at in _pieces(rows):
                z = hidden[k, at] if kept else None
                z = torch.addmm(shift[k], x[k, at], first[k].mT, out=z).relu_()
                if p:
                    z.mul_(draw_keep(torch.empty(z.shape, dtype=torch.int8), p).to(z.dtype))
                torch.addmm(bias[k], z, second[k].mT, alpha=ctx.scale, out=y[k, at])
        ctx.save_for_backward(x, first, second, hidden)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, first, second, hidden = ctx.saved_tensors
        of_x, of_first, of_second = torch.empty_like(x), torch.zeros_like(first), torch.zeros_like(second)
        of_shift, of_bias = x.new_zeros(first.shape[:2]), grads[0].sum(1)
        for k in range(len(x)):
            for at in _pieces(x.shape[1]):
                g, z = grads[0][k, at], hidden[k, at]
                of_second[k].addmm_(g.mT, z, alpha=ctx.scale)
                inner = g @ second[k]
                torch.ops.aten.threshold_backward.grad_input(inner, z, 0, grad_input=inner)
                inner.mul_(ctx.scale)
                of_shift[k] += inner.sum(0)
                of_first[k].addmm_(inner.mT, x[k, at])
                torch.mm(inner, first[k], out=of_x[k, at])
        return of_x, of_first, of_shift, of_second, of_bias, None, None
