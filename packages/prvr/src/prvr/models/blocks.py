"""A stack of attention blocks in one batched computation: a mixer over positions inside a post-norm block.

How strongly position i attends to position j before content counts is a Gaussian window over time.

Shapes: `k` blocks, `v` videos (or queries), `l` positions, `n` registers, `d` width, `h` heads.
Registers are extra keys and values; they are never queries, because nothing downstream would see their rows
(DreamPRVR supplement eq. 29-30: register rows see the video only and are discarded).

Tensors are padded `(v, l, d)` or packed `(1, r, d)`, as `Sequences` says; a mixer pads packed rows for the attention
itself and packs its result. The window is that of padded sequences, either way.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.layers import Dropout, StackedLayerNorm, StackedLinear, feed_forward
from prvr.models.layers import dropout as dropped
from prvr.models.rows import Sequences, Tokens

Window = Float[Tensor, "k l l"] | None
"""Weights in time of each of k blocks; None = unlimited."""
RegisterTokens = Float[Tensor, "v n d"] | None
"""Additional keys and values of each sequence; None = none."""


@runtime_checkable
class Mixer(Protocol):
    """Mixes positions: one input `(b, m, d)` for all blocks to `(k, b, m, d)`, padded or packed alike."""

    def __call__(
        self, x: Tokens, sequences: Sequences, window: Window, registers: RegisterTokens
    ) -> Float[Tensor, "k b m d"]:
        """Mix.

        Args:
            x: `(b, m, d)` rows, which all blocks read.
            sequences: how they lie, and which are valid.
            window: `(k, l, l)`, see `Window`.
            registers: `(v, n, d)`, see `RegisterTokens`.
        """
        ...

    def content_logits(self, x: Tokens, sequences: Sequences, registers: RegisterTokens) -> Float[Tensor, "k v h l s"]:
        """The logits of the attention before the window and the mask, over positions and then registers."""
        ...


def pad_window(window: Float[Tensor, "k l l"], registers: int, value: float) -> Float[Tensor, "k 1 1 l s"]:
    """The window with a neutral column per register, ready to broadcast over videos and heads."""
    if registers:
        window = F.pad(window, (0, registers), value=value)
    return window[:, None, None]


def key_mask(mask: Bool[Tensor, "v l"] | None, registers: int) -> Bool[Tensor, "v 1 1 s"] | None:
    """Which keys count, registers always, ready to broadcast over heads and positions."""
    if mask is None:
        return None
    return (F.pad(mask, (0, registers), value=True) if registers else mask)[:, None, None]


def _bias(mask: Shaped[Tensor, "v 1 1 s"], dtype: torch.dtype) -> Float[Tensor, "v 1 1 s"]:
    """What a mask of keys adds to logits: -inf where it is False; numbers are added as they are."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)


def windowed(
    logits: Float[Tensor, "k v h l s"],
    window: Window,
    mask: Shaped[Tensor, "v 1 1 s"] | None,
    registers: int,
    scale: float = 1.0,
) -> Float[Tensor, "k v h l s"]:
    """Logits times window and scale, -inf at masked keys, in one pass: no tensor of the model is larger than these.

    A mask of numbers is added as it is.
    """
    bias = None if mask is None else _bias(mask, logits.dtype)
    if window is None:
        return logits * scale if bias is None else torch.add(bias, logits, alpha=scale)
    gain = pad_window(window, registers, 1.0)
    return logits * (gain * scale) if bias is None else torch.addcmul(bias, logits, gain, value=scale)


def _multiplied(
    q: Tensor, k: Tensor, v: Tensor, window: Tensor | None, mask: Tensor | None, registers: int, dropout: float
) -> Tensor:
    """softmax(q k^T / sqrt(e) * G) v: the window scales the logits (GMMFormer eq. 4, HLFormer eq. 10)."""
    weights = windowed(q @ k.mT, window, mask, registers, q.shape[-1] ** -0.5).softmax(-1)
    return dropped(weights, dropout) @ v


def _added(
    q: Tensor, k: Tensor, v: Tensor, window: Tensor | None, mask: Tensor | None, registers: int, dropout: float
) -> Tensor:
    """softmax(q k^T / sqrt(e) + log G) v: near positions are favoured whatever the sign of the logits."""
    bias = None
    if window is not None:
        bias = pad_window(window, registers, 0.0).to(q.dtype)
        if mask is not None:
            bias = bias + _bias(mask, q.dtype)
        bias = bias.expand(q.shape[0], q.shape[1], 1, *bias.shape[-2:]).flatten(0, 1)
    elif mask is not None:
        bias = (mask if mask.dtype == torch.bool else mask.to(q.dtype)).expand(q.shape[0], *mask.shape).flatten(0, 1)
    flat = (t.flatten(0, 1) for t in (q, k, v))
    return F.scaled_dot_product_attention(*flat, attn_mask=bias, dropout_p=dropout).unflatten(0, q.shape[:2])


class EuclideanMixer(nn.Module):
    """K multi-head attentions with Gaussian windows and no output projection.

    Args:
        model: width d, heads (contiguous chunks of the width), how the window acts ("multiply" scales logits by it,
            "add" adds its logarithm), and dropout on attention weights.
        num: blocks K.
    """

    def __init__(self, model: ModelConfig, num: int) -> None:
        super().__init__()
        self.heads = model.heads
        self.qkv = StackedLinear((num, 3), model.hidden, model.hidden)
        self.attend = {"multiply": _multiplied, "add": _added}[model.window]
        self.dropout = model.dropout

    def forward(
        self, x: Tokens, sequences: Sequences, window: Window, registers: RegisterTokens
    ) -> Float[Tensor, "k b m d"]:
        """The attention of every block, see `Mixer`.

        Positions ask, positions and registers answer; what registers would ask is not computed, because it is
        discarded (DreamPRVR supplement eq. 29-30).
        """
        q, k, v = self._heads(x, sequences, registers)
        extra = 0 if registers is None else registers.shape[1]
        dropout = self.dropout if self.training else 0.0
        keys = key_mask(sequences.mask, extra)
        if sequences.sizes is not None:
            keys = F.pad(sequences.sizes.log(), (0, extra))[:, None, None]
        mixed = self.attend(q, k, v, window, keys, extra, dropout)
        return sequences.pack(mixed.transpose(2, 3).flatten(-2))

    def content_logits(self, x: Tokens, sequences: Sequences, registers: RegisterTokens) -> Float[Tensor, "k v h l s"]:
        """The logits before the window, see `Mixer`."""
        q, k, _ = self._heads(x, sequences, registers)
        return q @ k.mT * q.shape[-1] ** -0.5

    def _heads(
        self, x: Tensor, sequences: Sequences, registers: RegisterTokens
    ) -> Sequence[Float[Tensor, "k v h l e"]]:
        """Queries, keys and values of each head; those of registers after the others."""
        # Split in the memory layout of the products, so that their gradients are joined in one copy.
        if sequences.is_packed or sequences.valid is None:
            q, k, v = self._split(sequences.pad(self.qkv.side_by_side(x)))
        else:  # no keys and values that the mask would hide
            valid = sequences.valid
            k, v = self._split(valid.pad(self.qkv.side_by_side(valid.pack(x), slice(1, 3))))
            (q,) = self._split(self.qkv.side_by_side(x, slice(1)))
        parts = [[q], [k], [v]]
        if registers is not None:
            for part, own in zip(parts[1:], self._split(self.qkv.side_by_side(registers, slice(1, 3))), strict=True):
                part.append(own)
        if x.is_cpu:  # products there round by the layout of their factors
            return [(torch.cat(part, 2) if part[1:] else part[0]).transpose(2, 3) for part in parts]
        return [torch.cat([t.transpose(2, 3) for t in part], 3) for part in parts]

    def _split(self, y: Float[Tensor, "v l s"]) -> Sequence[Float[Tensor, "k v l h e"]]:
        """The parts of each row, by block and head."""
        parts = y.unflatten(-1, (len(self.qkv.weight), -1, self.heads, self.qkv.weight.shape[-1] // self.heads))
        return [part.permute(2, 0, 1, 3, 4) for part in parts.unbind(3)]


class TransformerBlocks(nn.Module):
    """K post-norm blocks: y = LN(x + mixer(x)); out = LN(y + FFN(y)), FFN d -> 4d -> d with ReLU and dropout.

    Args:
        mixer: what mixes positions (Euclidean or Lorentz attention), for all K at once.
        num: blocks K.
        dim: width d.
        dropout: after the mixer, inside the feed-forward and after it.
    """

    def __init__(self, mixer: nn.Module, num: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm1 = StackedLayerNorm(num, dim)
        self.expand = StackedLinear((num,), dim, 4 * dim)
        self.contract = StackedLinear((num,), 4 * dim, dim)
        self.norm2 = StackedLayerNorm(num, dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tokens, sequences: Sequences, window: Window = None, registers: RegisterTokens = None
    ) -> Float[Tensor, "k b m d"]:
        """The output of every block; arguments as in `Mixer`."""
        y = self.norm1(x + self.dropout(self.mixer(x, sequences, window, registers)))
        update, rows = feed_forward(y.flatten(1, 2), self.expand, self.contract, self.dropout.p * self.training)
        return self.norm2((rows + self.dropout(update)).view_as(y))


class AttentionBlocks(nn.Module):
    """K attention blocks without feed-forward (GMMFormer): LN(dropout(W mixer(x)) + x)."""

    def __init__(self, mixer: nn.Module, num: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.mixer = mixer
        self.project = StackedLinear((num,), dim, dim)
        self.norm = StackedLayerNorm(num, dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tokens, sequences: Sequences, window: Window = None, registers: RegisterTokens = None
    ) -> Float[Tensor, "k b m d"]:
        """The output of every block; arguments as in `Mixer`."""
        mixed = self.project(self.mixer(x, sequences, window, registers))
        return self.norm(x + self.dropout(mixed))


def gaussian_window(length: int, width: float | None) -> Float[Tensor, "l l"]:
    r"""Window $G_{ij} = \exp(-((j - i)/(n - 1))^2 / 2s^2)$ with $s = \max(w, 0.01)/9$, in float64.

    Exactly 1 on the diagonal and symmetric (GMMFormer eq. 3, HLFormer eq. 10; their form lies in `prvr.published`).

    Args:
        length: number of positions n.
        width: w; None gives a window of ones.

    Examples:
        >>> gaussian_window(3, 9.0).diagonal().tolist()
        [1.0, 1.0, 1.0]
    """
    if width is None:
        return torch.ones(length, length, dtype=torch.float64)
    position = torch.arange(length, dtype=torch.float64) / max(length - 1, 1)
    sigma = max(width, 0.01) / 9
    return torch.exp(-((position[None] - position[:, None]) ** 2) / (2 * sigma**2))


class ExactTable(nn.Module):
    """A constant tensor that is rounded once, from float64, to whatever precision the model has.

    A plain buffer would keep the rounding of float32 after `.to(torch.float64)`.
    """

    table: Tensor

    def __init__(self, exact: Float[Tensor, "*s"]) -> None:
        super().__init__()
        self._exact = exact.cpu()
        self.register_buffer("table", exact.to(torch.get_default_dtype()), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ExactTable":
        super()._apply(fn, recurse)
        if not self.table.is_meta:
            self.table = self._exact.to(self.table.dtype).to(self.table.device)  # in this order: MPS has no float64
        return self

    def forward(self) -> Float[Tensor, "*s"]:
        """The tensor, in the precision and on the device of the model."""
        return self.table


class GaussianWindows(nn.Module):
    """The windows of a stack of blocks, `(k, l, l)`, cut from a table made once; None if all are 1 everywhere.

    Args:
        widths: one per block, None = unlimited.
        length: longest input.
        logarithm: the table holds log G, to be added to attention logits.
        window: what makes one window from length and width.
    """

    def __init__(
        self,
        widths: Sequence[float | None],
        length: int,
        logarithm: bool = False,
        window: Callable[[int, float | None], Tensor] = gaussian_window,
    ) -> None:
        super().__init__()
        self.table = None
        if any(width is not None for width in widths) or window is not gaussian_window:
            table = torch.stack([window(length, width) for width in widths])
            # The log of a far, narrow window is below any float; -1e4 is "never", and keeps 0 * inf out of gradients.
            self.table = ExactTable(table.log().clamp_min(-1e4) if logarithm else table)

    def forward(self, length: int) -> Float[Tensor, "k l l"] | None:
        """The windows `(k, l, l)` of inputs of this length; None if all are 1 everywhere."""
        return None if self.table is None else self.table()[:, :length, :length]


def centred_windows(model: ModelConfig, widths: Sequence[float | None], length: int) -> GaussianWindows:
    """`gaussian_window` of each block."""
    return GaussianWindows(widths, length, model.window == "add")
