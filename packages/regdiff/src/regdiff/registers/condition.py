"""Conditions of registers: learned queries that read a sequence in one shot, averages of its segments, or none."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regdiff.attention import MultiheadAttention
from regdiff.masks import masked


class ConditionGenerator(nn.Module):
    r"""Learned queries that read a sequence: c = CA(queries, V, V) (DreamPRVR, supplement eq. 28).

    y = LN(queries + attention(queries, V)); c = LN(y + W relu(W y)): post-norm, multi-head, no output projection after
    the attention, and a hidden layer as wide as the model.

    Args:
        dim: Width d.
        num: Number of queries n.
        num_heads: Number of heads; divides dim.
        dropout: Rate on attention weights, on both residual branches and on the hidden layer.

    Raises:
        ValueError: `dim` is not a multiple of `num_heads`.

    Examples:
        >>> import torch
        >>> ConditionGenerator(dim=8, num=4, num_heads=2)(torch.randn(3, 10, 8)).shape
        torch.Size([3, 4, 8])
    """

    def __init__(self, dim: int, num: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.num, self.num_heads = dim, num, num_heads
        self.query_tokens = nn.Parameter(torch.randn(1, num, dim))
        self.attention = MultiheadAttention(dim, num_heads, dropout=dropout, project=False)
        self.attention_norm = nn.LayerNorm(dim)
        self.ffn_in = nn.Linear(dim, dim)
        self.ffn_out = nn.Linear(dim, dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b n d"]:
        """Read the sequence.

        Args:
            x: Keys and values.
            mask: True marks a valid position; None means all are. Every row needs one. Padding changes nothing.
        """
        x = masked(x, mask)  # a weight of 0 does not silence a NaN
        queries = self.query_tokens.expand(x.shape[0], -1, -1)
        y = self.attention_norm(queries + self.dropout(self.attention(queries, x, mask)))
        return self.ffn_norm(y + self.dropout(self.ffn_out(self.dropout(F.relu(self.ffn_in(y))))))


def adaptive_average_pool(
    x: Float[Tensor, "b l d"], num: int, mask: Bool[Tensor, "b l"] | None = None
) -> Float[Tensor, "b n d"]:
    """Average the m valid positions of each row into n segments [floor(i m / n), ceil((i + 1) m / n)).

    Args:
        x: The sequence.
        num: Number of segments n; it may exceed m, segments then overlap.
        mask: True marks a valid position; None means all are. A row without any gives zeros.

    Examples:
        >>> import torch
        >>> adaptive_average_pool(torch.tensor([[[1.0], [3.0], [5.0], [7.0]]]), 2).flatten().tolist()
        [2.0, 6.0]
    """
    valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    rank = valid.cumsum(1).unsqueeze(1) - 1
    count = valid.sum(1)[:, None, None]
    segment = torch.arange(num, device=x.device)[:, None]
    first = segment * count // num
    end = -(-(segment + 1) * count // num)
    inside = ((rank >= first) & (rank < end) & valid.unsqueeze(1)).to(x.dtype)
    return inside @ masked(x, mask) / inside.sum(-1, keepdim=True).clamp(min=1)


class _WithoutParameters(nn.Module):
    def __init__(self, dim: int, num: int) -> None:
        super().__init__()
        self.dim, self.num = dim, num


class SegmentAverages(_WithoutParameters):
    """`adaptive_average_pool` as a part without parameters, in place of a `ConditionGenerator`.

    Args:
        dim: Width d.
        num: Number of segments n.
    """

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b n d"]:
        """Average the valid positions of each row into n segments; `mask` is True at valid positions."""
        return adaptive_average_pool(x, self.num, mask)


class NoCondition(_WithoutParameters):
    """A condition that says nothing, zeros, in place of a `ConditionGenerator`: registers then know the prior alone.

    Args:
        dim: Width d.
        num: Number of registers n.
    """

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b n d"]:
        """Zeros for each row; neither `x` nor `mask` is read."""
        return x.new_zeros(len(x), self.num, self.dim)
