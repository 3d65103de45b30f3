"""Sequences of unequal length: padded to one length, or packed without their padding, one after the other.

Linear maps, layer norms and feed-forward layers work row by row and may skip rows past a sequence's end; attention and
pooling need the sequences. A batch decides once how its tensors are laid out (`Sequences`), which every layer receives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Tokens = Float[Tensor, "b m d"]
"""Rows of all sequences, as `Sequences` says how they are packed."""


class _Select(torch.autograd.Function):
    """Rows `index` of the second last axis, zeros where `absent`. Its gradient is the selection with the other two
    indices, which puts the rows back: without the atomic adds of the gradient of indexing.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, index: Tensor, absent: Tensor | None, back_index: Tensor, back_absent: Tensor | None
    ) -> Tensor:
        y = x.index_select(-2, index)
        return y if absent is None else y.masked_fill_(absent, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        index, absent, back_index, back_absent = ctx.saved_tensors
        return _Select.apply(gradients[0], back_index, back_absent, index, absent), None, None, None, None


def _nonzero(mask: Bool[Tensor, " n"], count: int) -> Int[Tensor, " r"]:
    """The same indices as `mask.nonzero()`, whose number is given: a GPU need not be asked for it."""
    place = (mask.cumsum(0) - 1).masked_fill(~mask, count)  # the others share one place too many
    return place.new_empty(count + 1).scatter_(0, place, torch.arange(len(mask), device=mask.device))[:count]


@dataclass(frozen=True, eq=False)
class Rows:
    """The valid rows of `(v, l)` sequences, and the way between sequences and rows.

    Args:
        index: `(r,)` flat indices v * l + position of the valid rows, ascending.
        place: `(v * l,)` for each position of each sequence the row that holds it; 0 where there is none.
        absent: `(v * l, 1)` True at positions that no row holds.
        position: `(r,)` position of each row in its sequence.
        sequences: number of sequences v.
        length: padded length l.

    Examples:
        >>> rows = Rows.of(torch.tensor([[True, True], [True, False]]))
        >>> packed = rows.pack(torch.tensor([[[1.0], [2.0]], [[3.0], [9.0]]]))
        >>> packed.flatten().tolist(), rows.pad(packed).flatten().tolist(), rows.position.tolist()
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 0.0], [0, 1, 0])
    """

    index: Int[Tensor, " r"]
    place: Int[Tensor, " n"]
    absent: Bool[Tensor, "n 1"]
    position: Int[Tensor, " r"]
    sequences: int
    length: int

    @classmethod
    def of(cls, mask: Bool[Tensor, "v l"], count: int | None = None) -> "Rows":
        """The valid rows of a mask.

        Args:
            mask: True = valid.
            count: number of valid entries, if known. Without it, a mask on a GPU makes the host wait for the device,
                because the number decides shapes. It must be right.
        """
        index = mask.flatten().nonzero().flatten() if count is None else _nonzero(mask.flatten(), count)
        sequences, length = mask.shape
        numbers = torch.arange(len(index), device=index.device)
        place = numbers.new_zeros(sequences * length).scatter_(0, index, numbers)
        absent = torch.ones(sequences * length, dtype=torch.bool, device=index.device).index_fill_(0, index, False)
        return cls(index, place, absent[:, None], index % length, sequences, length)

    def pack(self, x: Float[Tensor, "*k v l d"]) -> Float[Tensor, "*k 1 r d"]:
        """The valid rows, as one sequence."""
        rows = _Select.apply(x.flatten(-3, -2), self.index, None, self.place, self.absent)
        return torch.as_tensor(rows).unsqueeze(-3)

    def pad(self, y: Float[Tensor, "*k 1 r d"]) -> Float[Tensor, "*k v l d"]:
        """The padded sequences, with zeros where there is no valid row."""
        padded = _Select.apply(y.flatten(-3, -2), self.place, self.absent, self.index, None)
        return torch.as_tensor(padded).unflatten(-2, (self.sequences, self.length))


@dataclass(frozen=True, eq=False)
class Sequences:
    """Which rows of a batch of sequences are valid, and how its tensors lie: padded `(v, l, d)` or packed `(1, r, d)`.

    Args:
        mask: `(v, l)` True = valid; None = every row is.
        length: padded length l.
        valid: the valid rows, where they are known without waiting for a device.
        is_packed: tensors hold the valid rows only.
        sizes: `(v, l)` how many rows each stands for as a key of attention, which adds log(size) to its logits; None:
            one. Only where every row is valid.

    Examples:
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> x = torch.ones(2, 2, 3)
        >>> Sequences.packed(mask).pack(x).shape, Sequences.padded(mask).pack(x).shape
        (torch.Size([1, 3, 3]), torch.Size([2, 2, 3]))
    """

    mask: Bool[Tensor, "v l"] | None
    length: int
    valid: Rows | None = None
    is_packed: bool = False
    sizes: Float[Tensor, "v l"] | None = None

    @classmethod
    def padded(cls, mask: Bool[Tensor, "v l"]) -> "Sequences":
        """Sequences whose padding is computed like any row, and masked where rows are reduced."""
        return cls(mask, mask.shape[1], Rows.of(mask) if mask.device.type == "cpu" else None)

    @classmethod
    def packed(cls, mask: Bool[Tensor, "v l"], count: int | None = None) -> "Sequences":
        """Sequences whose padding is not computed; `count` is the number of valid rows, see `Rows.of`."""
        return cls(mask, mask.shape[1], Rows.of(mask, count), is_packed=True)

    @property
    def positions(self) -> Int[Tensor, " r"] | slice:
        """Positions of the rows of a tensor in their sequences, as an index of a table of positions."""
        return slice(self.length) if self.valid is None or not self.is_packed else self.valid.position

    def pack(self, x: Float[Tensor, "*k v l d"]) -> Float[Tensor, "*k b m d"]:
        """The rows that are computed, of padded sequences."""
        return x if self.valid is None or not self.is_packed else self.valid.pack(x)

    def pad(self, y: Float[Tensor, "*k b m d"], extra: int = 0) -> Float[Tensor, "*k v s d"]:
        """Padded sequences, of the rows that are computed; the rows of padding that was not computed are 0.

        Args:
            y: packed rows, after which stand `extra` more rows for each sequence; or padded sequences with them.
            extra: number of additional rows of each sequence, such as registers, which are appended to it.
        """
        if self.valid is None or not self.is_packed:
            return y
        if not extra:
            return self.valid.pad(y)
        rows, other = y.split([len(self.valid.index), self.valid.sequences * extra], dim=-2)
        return torch.cat([self.valid.pad(rows), other.flatten(-3, -2).unflatten(-2, (-1, extra))], -2)


def mask_frames(
    frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"], length: int
) -> tuple[Float[Tensor, "v l f"], Bool[Tensor, "v l"], Bool[Tensor, "v l"]]:
    """Zeros in padding, which is masked wherever positions are reduced: no embedding depends on its batch."""
    return frames.masked_fill(~mask[..., None], 0), mask, mask


@dataclass(frozen=True)
class Padding:
    """The treatment of padded rows.

    Args:
        frames: from the frames of a batch, their mask and the most frames of a video to the frames that are encoded,
            their mask, and the mask of those that are scored, or None.
        guide: the guide of `prvr.models.fusion.GuidedFusion`; None = the mean of valid positions.
        words: from the words of all queries of a video, their mask and the most words of a query to the words that
            `prvr.published.ral.proxies.Proxies` reads, and their mask or None; None = these words.
    """

    frames: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor | None]] = mask_frames
    guide: Callable[[Tensor, Tensor | None], Tensor] | None = None
    words: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor | None]] | None = None


MASKED = Padding()
"""Padded rows change nothing."""
