"""Layers that hold a whole stack of equal parts, and the small parts every branch begins and ends with.

A stack of K blocks keeps its weights in one tensor `(*stack, out, in)`, so that K small blocks run as one batched
computation. `stacked_dims` tells the optimiser how many leading axes count separate weights.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.errors import InputError
from prvr.models.dropout import Dropout

__all__ = ["AttentionPooling", "InputProjection", "Positions", "StackedLayerNorm", "StackedLinear", "masked_mean"]


class StackedLinear(nn.Module):
    """`prod(stack)` linear maps in one: y = x W^T + b, weight `(*stack, out, in)`, bias `(*stack, out)`.

    Example:
        >>> linear = StackedLinear((8, 3), 16, 16)
        >>> linear.shared(torch.ones(2, 5, 16)).shape, linear.stacked_dims
        (torch.Size([8, 3, 2, 5, 16]), 2)
    """

    def __init__(self, stack: tuple[int, ...], in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.stacked_dims = len(stack)
        self.weight = nn.Parameter(torch.empty(*stack, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(*stack, out_features)) if bias else None
        nn.init.normal_(self.weight, std=0.02)

    def shared(self, x: Float[Tensor, "v l i"], parts: slice = slice(None)) -> Float[Tensor, "*stack v l o"]:
        """Every map of the stack (or `parts` of its last axis) applied to the same input, as one matrix product."""
        weight = self.weight if parts == slice(None) else self.weight[..., parts, :, :]
        bias = self.bias if self.bias is None or parts == slice(None) else self.bias[..., parts, :]
        y = F.linear(x, weight.flatten(0, -2), None if bias is None else bias.flatten()).unflatten(
            -1, weight.shape[:-1]
        )
        stack = list(range(2, y.ndim - 1))
        return y.permute(*stack, 0, 1, y.ndim - 1)

    def rows(self, x: Float[Tensor, "k m i"]) -> Float[Tensor, "k m o"]:
        """Map k applied to the rows k (a stack with one axis)."""
        if self.bias is None:
            return torch.bmm(x, self.weight.mT)
        return torch.baddbmm(self.bias[:, None], x, self.weight.mT)

    def forward(self, x: Float[Tensor, "k v l i"]) -> Float[Tensor, "k v l o"]:
        """Map k applied to input k (a stack with one axis)."""
        return self.rows(x.flatten(1, 2)).unflatten(1, x.shape[1:3])


class StackedLayerNorm(nn.Module):
    """Layer norm with its own scale and shift for each of K parts; input `(k, v, l, d)`."""

    def __init__(self, num: int, dim: int) -> None:
        super().__init__()
        self.stacked_dims = 1
        self.weight = nn.Parameter(torch.ones(num, dim))
        self.bias = nn.Parameter(torch.zeros(num, dim))

    def forward(self, x: Float[Tensor, "k v l d"]) -> Float[Tensor, "k v l d"]:
        normed = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.bias[:, None, None], normed, self.weight[:, None, None])


class InputProjection(nn.Module):
    """ReLU(Linear(dropout(LayerNorm(x)))): how features, and registers, enter a branch."""

    def __init__(self, in_features: int, out_features: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(in_features)
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(in_features, out_features)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        return F.relu(self.linear(self.dropout(self.norm(x))))


class Positions(nn.Module):
    """Adds a learned position embedding, then layer norm and dropout.

    Raises:
        ValueError: the input is longer than the table.
    """

    def __init__(self, length: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, dim))
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.table, std=0.02)

    def forward(
        self, x: Float[Tensor, "b m d"], length: int | None = None, at: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "b m d"]:
        """Sequences of `length` (default: all of x), or, given the position `at` of each row, rows out of them."""
        length = x.shape[1] if length is None else length
        if length > len(self.table):
            raise InputError(
                f"a sequence of {length} exceeds the {len(self.table)} positions of this model: "
                "pool or cut it before (prvr.data does)"
            )
        return self.dropout(self.norm(x + (self.table[:length] if at is None else self.table[at])))


class AttentionPooling(nn.Module):
    """Sum of rows weighted by softmax(w . x) (HLFormer eq. 7); masked rows get weight 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, dim))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b d"]:
        logits = x @ self.weight[0]
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        return torch.einsum("bl,bld->bd", logits.softmax(-1), x)


def masked_mean(x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None) -> Float[Tensor, "b d"]:
    """Mean over the valid rows."""
    if mask is None:
        return x.mean(1)
    kept = mask.to(x.dtype)
    return torch.einsum("bl,bld->bd", kept, x) / kept.sum(1, keepdim=True)
