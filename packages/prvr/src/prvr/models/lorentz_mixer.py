"""Lorentz attention for a stack of blocks: into hyperbolic space, attention there, and back (HLFormer eq. 11-16)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lorentz.functional import centroid, expmap0, join_heads, logmap0, lorentz_attention, pairwise_inner, project
from prvr.config import ModelConfig
from prvr.models.blocks import key_mask, pad_window, windowed
from prvr.models.layers import Dropout, StackedLayerNorm, StackedLinear
from prvr.models.layers import dropout as dropped
from prvr.models.rows import Sequences


def join_registers(x: Float[Tensor, "b m d"], registers: Float[Tensor, "v n d"] | None) -> Float[Tensor, "b s d"]:
    """Tokens with the registers after them: each sequence's own, or, of packed rows, those of all at the end."""
    if registers is None:
        return x
    return torch.cat([x, registers if len(x) == len(registers) else registers.flatten(0, 1)[None]], 1)


class StackedProjection(nn.Module):
    """K input projections ReLU(Linear(dropout(LayerNorm(x)))), of one shared input or of one input each."""

    def __init__(self, num: int, in_features: int, out_features: int, dropout: float) -> None:
        super().__init__()
        self.norm = StackedLayerNorm(num, in_features)
        self.dropout = Dropout(dropout)
        self.linear = StackedLinear((num,), in_features, out_features)

    def forward(self, x: Float[Tensor, "k v l i"]) -> Float[Tensor, "k v l o"]:
        """Map k applied to input k."""
        return F.relu(self.linear(self.dropout(self.norm(x))))


class LorentzMixer(nn.Module):
    """K multi-head Lorentz attentions, c = 1 (HLFormer eq. 11-16).

    x -> s P_in(x) -> expmap0 -> linear maps of the space part -> attention by squared Lorentzian distance, values
    aggregated by their Lorentz centroid -> heads joined on the manifold -> logmap0 -> P_out(.) / s.
    The scale s lies in (0, 1) by construction, so expmap0 cannot overflow.

    Args:
        model: Euclidean width d; heads h, each in an ambient space of (lorentz_dim + 1) / h coordinates; dimension n
            of the hyperbolic space; dropout on attention weights and in the projections. window="add" adds the window's
            logarithm to the logits; "multiply" scales them, as the papers write, although these logits are never
            positive, so that far positions gain.
        num: blocks K.
    """

    def __init__(self, model: ModelConfig, num: int) -> None:
        super().__init__()
        self.heads, self.window, self.dropout = model.heads, model.window, model.dropout
        dim, lorentz_dim, heads, dropout = model.hidden, model.lorentz_dim, model.heads, model.dropout
        ambient = (lorentz_dim + 1) // heads
        self.enter = StackedProjection(num, dim, lorentz_dim, dropout)
        self.qkv = StackedLinear((num, 3), lorentz_dim + 1, heads * (ambient - 1))
        self.leave = StackedProjection(num, heads * (ambient - 1), dim, dropout)
        # Logits of the scale s, started at s = n^(-1/2); of the temperature, at sqrt(n + 1) of HLFormer eq. 15.
        self.scale = nn.Parameter(torch.full((num,), -math.log(math.sqrt(lorentz_dim) - 1)))
        self.log_temperature = nn.Parameter(torch.full((num,), 0.5 * math.log(lorentz_dim + 1)))
        self.stacked_dims = 1

    def _heads(
        self, points: Float[Tensor, "k b m n"], sequences: Sequences, extra: int
    ) -> Float[Tensor, "p k v h l e"]:
        """Points of query, key and value in each head: linear maps of the space part, time recomputed."""
        mapped = torch.einsum("kvln,kpon->pkvlo", points, self.qkv.weight)
        if self.qkv.bias is not None:
            mapped = mapped + self.qkv.bias.transpose(0, 1)[:, :, None, None]
        return project(sequences.pad(mapped, extra).unflatten(-1, (self.heads, -1)).transpose(3, 4))

    def forward(
        self,
        x: Float[Tensor, "b m d"],
        sequences: Sequences,
        window: Float[Tensor, "k l l"] | None,
        registers: Float[Tensor, "v n d"] | None,
    ) -> Float[Tensor, "k b m d"]:
        """The attention of every block, see `prvr.models.blocks.Mixer`.

        Registers are keys and values and never queries (DreamPRVR supplement eq. 29-30).
        """
        extra = 0 if registers is None else registers.shape[1]
        tokens = join_registers(x, registers)
        scale = torch.sigmoid(self.scale)[:, None, None, None]
        points = expmap0(self.enter(tokens.expand(len(scale), *tokens.shape)) * scale)
        q, k, v = self._heads(points, sequences, extra).unbind(0)
        q = q[..., : sequences.length, :]
        temperature = self.log_temperature.exp()[:, None, None, None, None]
        keep = key_mask(sequences.mask, extra)
        dropout = self.dropout if self.training else 0.0
        if self.window == "add" or window is None:
            bias = None if window is None else pad_window(window, extra, 0.0)
            mixed = lorentz_attention(q, k, v, temperature=temperature, attn_bias=bias, mask=keep, dropout_p=dropout)
        else:
            # Native, as lorentz_attention is: the stable forms cost a vector for every pair of positions.
            inner = pairwise_inner(q, k, precision="native")
            logits = windowed((2 + 2 * inner) / temperature, window, keep, extra)
            weights = dropped(logits.softmax(-1), dropout)
            mixed = centroid(v, weights, precision="native")
        return self.leave(logmap0(sequences.pack(join_heads(mixed)))) / scale
