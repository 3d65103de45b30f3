"""Lorentz attention for a stack of blocks: into hyperbolic space, attention there, and back (HLFormer eq. 11-16)."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lorentz.functional import (
    centroid,
    expmap0,
    initial_temperature,
    join_heads,
    logmap0,
    lorentz_attention,
    pairwise_inner,
    project,
)
from lorentz.nn import Curvature
from prvr.config import COMPAT, ModelConfig
from prvr.models.blocks import RegisterTokens, Window, key_mask, pad_window, windowed
from prvr.models.layers import START_STD, Dropout, StackedLayerNorm, StackedLinear
from prvr.models.rows import Sequences, Tokens


def join_registers(x: Tokens, registers: RegisterTokens) -> tuple[Float[Tensor, "b s d"], int]:
    """Tokens with the registers after them: each sequence's own, or, of packed rows, those of all at the end.

    Also gives the number of registers of a sequence.
    """
    if registers is None:
        return x, 0
    rows = registers if len(x) == len(registers) else registers.flatten(0, 1)[None]
    return torch.cat([x, rows], 1), registers.shape[1]


class StackedProjection(nn.Module):
    """K input projections ReLU(Linear(dropout(LayerNorm(x)))), of one shared input or of one input each."""

    def __init__(self, num: int, in_features: int, out_features: int, dropout: float) -> None:
        super().__init__()
        self.norm = StackedLayerNorm(num, in_features)
        self.dropout = Dropout(dropout)
        self.linear = StackedLinear((num,), in_features, out_features)

    def forward(self, x: Float[Tensor, "k v l i"]) -> Float[Tensor, "k v l o"]:
        """Map k applied to input k."""
        return self.linear(self.dropout(self.norm(x))).relu()


class LearnedMagnitude(nn.Module):
    r"""Space parts along W h(x) + b of a length of their own, $\lambda (p \cdot x + b')$ (HLFormer eq. 14).

    As printed the length is free and turns the point to the other side of the origin where it is negative. The length
    is that of all heads together, as in `lorentz.nn.LorentzLinear`.

    Args:
        num: blocks K.
        ambient: coordinates of a point, n + 1.
        bounded: the length is lambda sigmoid(p.x + b').
    """

    def __init__(self, num: int, ambient: int, bounded: bool) -> None:
        super().__init__()
        self.gate = StackedLinear((num, 3), ambient, 1)
        self.log_length = nn.Parameter(torch.full((num, 3, 1), math.log(2.0)))  # lambda = 2, as LorentzLinear starts
        self.bound = nn.Sigmoid() if bounded else nn.Identity()
        self.stacked_dims = 2

    @torch.no_grad()
    def balance(self, variance: float, features: int, c: float, distance: float) -> float:
        """Gives p the variance; returns that of weights of a free map whose points have the same length.

        Args:
            variance: of the weights p.
            features: coordinates of all heads.
            c: with which points at distance 1, times `distance`, are those that come in.
            distance: see `c`.
        """
        self.gate.weight.mul_(math.sqrt(variance) / START_STD)
        length = self.log_length.exp().square().mean().item()
        if not isinstance(self.bound, nn.Sigmoid):
            return length * variance / features
        return 0.25 * length * c / (math.cosh(2.0 * math.sqrt(c)) * distance**2 * features)

    def forward(
        self, space: Float[Tensor, "p k b m o"], points: Float[Tensor, "k b m n"]
    ) -> Float[Tensor, "p k b m o"]:
        """The directions of `space` with the lengths that `points` ask for; the origin where there is no direction."""
        length = self.log_length.exp().transpose(0, 1)[..., None, None, :] * self.bound(_mapped(self.gate, points))
        square = space.square().sum(-1, keepdim=True)
        return space * (length * square.masked_fill(square == 0, torch.inf).rsqrt())


def _mapped(linear: StackedLinear, points: Float[Tensor, "k b m n"]) -> Float[Tensor, "p k b m o"]:
    """The p maps of each block applied to its points."""
    mapped = torch.einsum("kvln,kpon->pkvlo", points, linear.weight)
    return mapped if linear.bias is None else mapped + linear.bias.transpose(0, 1)[:, :, None, None]


class LorentzMixer(nn.Module):
    """K multi-head Lorentz attentions (HLFormer eq. 11-16).

    x -> s P_in(x) -> expmap0 -> linear maps to space parts -> attention by squared Lorentzian distance, values
    aggregated by their Lorentz centroid -> heads joined on the manifold -> logmap0 -> P_out(.) / s.
    The scale s lies in (0, 1) by construction, so expmap0 cannot overflow.

    Args:
        model: Euclidean width d; heads h, each in an ambient space of (lorentz_dim + 1) / h coordinates; dimension n
            of the hyperbolic space; dropout on attention weights and in the projections; magnitude
            and activation of the linear maps; the curvature, fixed or learned. window="add" adds the window's
            logarithm to the logits; "multiply" scales them, as the papers write, although these logits are never
            positive, so that far positions gain.
        num: blocks K.
    """

    def __init__(self, model: ModelConfig, num: int) -> None:
        super().__init__()
        self.heads, self.window, self.dropout = model.heads, model.window, Dropout(model.dropout)
        dim, lorentz_dim, c = model.hidden, model.lorentz_dim, model.lorentz_curvature
        features = lorentz_dim + 1 - self.heads  # space coordinates of all heads, each of which has a time
        self.enter = StackedProjection(num, dim, lorentz_dim, model.dropout)
        self.qkv = StackedLinear((num, 3), lorentz_dim + 1, features)
        self.leave = StackedProjection(num, features, dim, model.dropout)
        # Logits of the scale s, started at s = n^(-1/2); of the temperature, at sqrt(n + 1) of HLFormer eq. 15.
        self.scale = nn.Parameter(torch.full((num,), -math.log(math.sqrt(lorentz_dim) - 1)))
        self.log_temperature = nn.Parameter(torch.full((num,), 0.5 * math.log(lorentz_dim + 1)))
        self.stacked_dims = 1
        self.activation = nn.ReLU() if model.lorentz_activation == "relu" else nn.Identity()
        self.magnitude = None  # space parts as the linear maps give them
        if model.lorentz_magnitude != "free":
            self.magnitude = LearnedMagnitude(num, lorentz_dim + 1, model.lorentz_magnitude == "bounded")
        self.curvature = partial(float, c)
        if model.lorentz_curvature_learned:
            self.curvature = Curvature(c, bounds=(c / 10, c * 10))
        if model.compat.lorentz_start == "balanced":
            self._balance(dim, lorentz_dim, features, c)

    @torch.no_grad()
    def _balance(self, dim: int, lorentz_dim: int, features: int, c: float) -> None:
        """Puts tokens at distance 1 from the origin, and the temperature where logits have a deviation of about 1.

        ReLU halves the square of W h, so weights of variance 2/d give |P_in(x)| = sqrt(n), which s = n^(-1/2) makes 1.
        With c > 1 the distance is 1/sqrt(c): further out, small differences of it become large ones of the points.
        """
        variance = 1.0 / (3 * (lorentz_dim + 1))  # as in lorentz.nn.LorentzLinear
        distance = min(1.0, c**-0.5)
        near = c * distance**2  # points at `distance` are those at distance 1 with this curvature, times `distance`
        self.enter.linear.weight.mul_(distance * math.sqrt(2.0 / dim) / START_STD)
        self.qkv.weight.mul_(math.sqrt(variance) / START_STD)
        if self.magnitude is not None:
            variance = self.magnitude.balance(variance, features, near, distance)
        temperature = distance**2 * initial_temperature(features // self.heads, variance, c=near)
        self.log_temperature.fill_(math.log(temperature))

    @property
    def _scales(self) -> Float[Tensor, "k 1 1 1"]:
        return torch.sigmoid(self.scale)[:, None, None, None]

    def _heads(
        self, x: Tokens, sequences: Sequences, registers: RegisterTokens
    ) -> Sequence[Float[Tensor, "k v h l e"]]:
        """Queries, keys and values in each head: space parts (HLFormer eq. 13-14), time recomputed."""
        (tokens, extra), c = join_registers(x, registers), self.curvature()
        points = expmap0(self.enter(tokens.expand(len(self.scale), *tokens.shape)) * self._scales, c)
        space = _mapped(self.qkv, self.activation(points))
        if self.magnitude is not None:
            space = self.magnitude(space, points)
        heads = sequences.pad(space, extra).unflatten(-1, (self.heads, -1)).transpose(3, 4)
        q, k, v = project(heads, c).unbind(0)
        return q[..., : sequences.length, :], k, v

    def forward(
        self, x: Tokens, sequences: Sequences, window: Window, registers: RegisterTokens
    ) -> Float[Tensor, "k b m d"]:
        """The attention of every block, see `prvr.models.blocks.Mixer`.

        Registers are keys and values and never queries (DreamPRVR supplement eq. 29-30).
        """
        extra = 0 if registers is None else registers.shape[1]
        c, keep = self.curvature(), key_mask(sequences.mask, extra)
        q, k, v = self._heads(x, sequences, registers)
        if self.window == "add" or window is None:
            temperature = self.log_temperature.exp()[:, None, None, None, None]
            bias = None if window is None else pad_window(window, extra, 0.0)
            p = self.dropout.p * self.training
            mixed = lorentz_attention(q, k, v, c, temperature=temperature, attn_bias=bias, mask=keep, dropout_p=p)
        else:
            weights = self.dropout(windowed(self._logits(q, k), window, keep, extra).softmax(-1))
            mixed = centroid(v, weights, c, precision="native")
        return self.leave(logmap0(sequences.pack(join_heads(mixed, c)), c)) / self._scales

    def content_logits(self, x: Tokens, sequences: Sequences, registers: RegisterTokens) -> Float[Tensor, "k v h l s"]:
        """The logits before the window, see `prvr.models.blocks.Mixer`."""
        q, k, _ = self._heads(x, sequences, registers)
        return self._logits(q, k)

    def _logits(self, q: Tensor, k: Tensor) -> Float[Tensor, "k v h l s"]:
        """Minus the squared Lorentz distance over the temperature (HLFormer eq. 15)."""
        # Native, as lorentz_attention is: the stable forms cost a vector for every pair of positions.
        c = self.curvature()
        return (2 / c + 2 * pairwise_inner(q, k, c, precision="native")) / self.log_temperature.exp()[
            :, None, None, None, None
        ]


def lorentz_mixer(model: ModelConfig, num: int) -> nn.Module:
    """The mixer of Lorentz blocks, as `compat.lorentz` names it."""
    return COMPAT["lorentz"][model.compat.lorentz].part(model, num)
