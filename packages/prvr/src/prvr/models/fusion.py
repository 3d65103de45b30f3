"""Fusion of the outputs of parallel blocks into one sequence: mean, linear map, or guided weights."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from prvr.config import COMPAT, ModelConfig
from prvr.models.layers import Dropout, initialise, masked_mean
from prvr.scoring import at_least_float32, full_precision


class MeanFusion(nn.Module):
    """Plain mean over the blocks (GMMFormer eq. 6); it has no parameters."""

    def __init__(self, model: ModelConfig, length: int) -> None:
        super().__init__()

    def forward(
        self, blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None = None
    ) -> Float[Tensor, "v l d"]:
        """The mean of the blocks `(k, v, l, d)`; the mask is not read."""
        return blocks.mean(0)


class _Read(torch.autograd.Function):
    """a x^T with `transpose`, else a x. The second result is x for its next use: their gradients are added in place."""

    @staticmethod
    def forward(a: Tensor, x: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        return a @ (x.mT if transpose else x), x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.transpose = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, None]:
        a, x = ctx.saved_tensors
        own, factors = (g @ x, (g.mT, a)) if ctx.transpose else (g @ x.mT, (a.mT, g))
        rest = rest.contiguous()
        rest.view(-1, *x.shape[2:]).baddbmm_(*(factor.flatten(0, 1) for factor in factors))
        return own, rest, None


class _Weighted(torch.autograd.Function):
    """The weighted sum of blocks; the gradient has the memory layout of the blocks."""

    @staticmethod
    def forward(weights: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("vkl,kvld->vld", weights, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        weights, x = ctx.saved_tensors
        return torch.einsum("vld,kvld->vkl", g, x), weights.transpose(0, 1).contiguous()[..., None] * g


def _in_full(function: Any, a: Tensor, x: Tensor, *rest: bool) -> Any:
    with full_precision(x.device):
        return function.apply(at_least_float32(a), at_least_float32(x), *rest)


class PooledAttention(nn.Module):
    """A post-norm cross-attention block whose single query reads each block's output: `(v, d)` -> `(v, k, d)`.

    With one query the projections of keys and values fold around it: scores are x . (W_k^T q) and the result is
    W_v (sum of weighted x), so no projected copy of the `(k, v, l, d)` input is ever made (15x less work).
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.expand, self.contract = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)
        initialise(self.query, self.key, self.value, self.expand, self.contract)

    def forward(
        self, query: Float[Tensor, "v d"], x: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None
    ) -> tuple[Float[Tensor, "v k d"], Float[Tensor, "k v l d"]]:
        """The answer of each block, and x for what reads it next, see `_Read`.

        Args:
            query: `(v, d)` one query per video.
            x: `(k, v, l, d)` outputs of the blocks.
            mask: `(v, l)` True = valid; None = every position is.
        """
        q = self.query(query).unflatten(-1, (self.heads, -1))
        key_weight = self.key.weight.unflatten(0, (self.heads, -1))
        value_weight = self.value.weight.unflatten(0, (self.heads, -1))
        folded = torch.einsum("vhe,hed->vhd", q, key_weight)
        # The bias of the keys adds the same number to every position: without effect, kept so that it has a gradient.
        constant = torch.einsum("vhe,he->vh", q, self.key.bias.unflatten(0, (self.heads, -1)))
        if x.is_cpu:
            logits = torch.einsum("kvld,vhd->kvhl", x, folded)
        else:
            logits, x = _in_full(_Read, folded.expand(len(x), *folded.shape), x, True)
        logits = (logits + constant[..., None]) * (q.shape[-1] ** -0.5)
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], -torch.inf)
        weights = self.dropout(logits.softmax(-1))
        pooled, x = (weights @ x, x) if x.is_cpu else _in_full(_Read, weights, x, False)
        answer = torch.einsum("kvhd,hed->vkhe", pooled, value_weight).flatten(-2)
        answer = answer + weights.sum(-1).permute(1, 0, 2)[..., None].mul(
            self.value.bias.unflatten(0, (self.heads, -1))
        ).flatten(-2)
        y = self.norm1(query[:, None] + self.dropout(answer))
        hidden = self.dropout(F.relu(self.expand(y)))
        return self.norm2(y + self.dropout(self.contract(hidden))), x


def mean_guide(blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None) -> Float[Tensor, "v d"]:
    """The mean of each video over blocks and valid positions; `mask` is True at those, None = every position."""
    return masked_mean(blocks.sum(0), mask) / len(blocks)


class GuidedFusion(nn.Module):
    """Adaptive interaction (MAIM, HLFormer eq. 17): one guide per video asks each block for its weights.

    With the guide phi: t_i = CA(phi, x_i); w_i = W2 ReLU(W1 t_i), one weight per position; softmax over blocks of
    w / tau; output = sum of weighted blocks.

    Args:
        model: width d, heads of the cross attention, temperature tau and dropout.
        length: positions the weights are learned for.
        guide: phi of each video, from the outputs of its blocks and their mask.
    """

    def __init__(self, model: ModelConfig, length: int, guide: Callable[..., Tensor] = mean_guide) -> None:
        super().__init__()
        self.guide = guide
        dim, dropout = model.hidden, model.dropout
        self.attention = PooledAttention(dim, model.heads, dropout)
        self.hidden = nn.Linear(dim, dim)
        self.weights = nn.Linear(dim, length)
        self.dropout = Dropout(dropout)
        self.temperature = model.fusion_temperature
        initialise(self.hidden, self.weights)

    def logits(
        self, blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None
    ) -> tuple[Float[Tensor, "v k l"], Float[Tensor, "k v l d"]]:
        """Weights before the softmax over blocks; and the blocks for what reads them next."""
        answers, blocks = self.attention(self.guide(blocks, mask), blocks, mask)
        return self.weights(self.dropout(F.relu(self.hidden(answers))))[..., : blocks.shape[2]], blocks

    def forward(
        self, blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None = None
    ) -> Float[Tensor, "v l d"]:
        """The weighted sum of the blocks `(k, v, l, d)`; `mask` is True at valid positions."""
        logits, blocks = self.logits(blocks, mask)
        weights = (logits / self.temperature).softmax(1)
        if blocks.is_cpu:
            return torch.einsum("vkl,kvld->vld", weights, blocks)
        return _in_full(_Weighted, weights, blocks)


def mean_guided(model: ModelConfig, length: int) -> GuidedFusion:
    """Fusion guided by the mean of the blocks (HLFormer), over the rows that are computed."""
    guide = None if model.drops_padding else COMPAT["padding"][model.compat.padding].part.guide
    return GuidedFusion(model, length, guide or mean_guide)
