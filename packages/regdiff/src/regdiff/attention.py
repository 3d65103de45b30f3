"""Multi-head attention over a sequence that may be padded."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.nn.attention import SDPBackend, sdpa_kernel


class MultiheadAttention(nn.Module):
    """softmax(W x (W s)^T / sqrt(d_h)) W s per head (Vaswani et al. 2017), with linear maps of their own.

    Args:
        embed_dim: Width d of the queries, of the sequence that is attended to, and of the result.
        num_heads: Number of heads; divides `embed_dim`.
        dropout: Rate on the attention weights.
        project: Whether a last linear map mixes the heads.

    Raises:
        ValueError: `embed_dim` is not a multiple of `num_heads`.

    Examples:
        >>> import torch
        >>> attention = MultiheadAttention(embed_dim=8, num_heads=2)
        >>> attention(torch.randn(3, 4, 8), torch.randn(3, 10, 8)).shape
        torch.Size([3, 4, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        project: bool = True,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads: got {num_heads} with dim {embed_dim}, expected a divisor of dim")
        self.num_heads, self.dropout = num_heads, dropout
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim) if project else None

    def forward(
        self, x: Float[Tensor, "b n d"], source: Float[Tensor, "b m d"], mask: Bool[Tensor, "b m"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """Read the sequence.

        Args:
            x: What the queries are made of.
            source: The sequence; finite, padding too, as a weight of 0 does not silence a NaN.
            mask: True marks a valid position; None means all are. A row without any reads zeros.
        """
        q, k, v = (
            projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projected in (self.query(x), self.key(source), self.value(source))
        )
        bias = None
        if mask is not None:
            # What a fused kernel makes of a row without any valid key is undefined: let it read all, as zeros.
            valid_rows = mask.any(1)[:, None]
            v = v * valid_rows[..., None, None]
            bias = (mask | ~valid_rows)[:, None, None]
        with _kernels(q, k, v):
            read = F.scaled_dot_product_attention(q, k, v, bias, self.dropout if self.training else 0.0)
        read = read.transpose(1, 2).flatten(2)
        return read if self.out is None else self.out(read)


def _kernels(*tensors: Tensor) -> AbstractContextManager[Any]:
    """The plain formula where a tangent is carried forward (`torch.func.jvp`), which torch's fused kernels refuse."""
    if torch.compiler.is_compiling() or all(unpack_dual(tensor).tangent is None for tensor in tensors):
        return nullcontext()
    return sdpa_kernel(SDPBackend.MATH)
