"""Sequences of unequal length without their padding: the valid rows of a batch, one after the other.

Linear maps, layer norms and feed-forward layers see rows only, and may skip those past a sequence's end; attention and
pooling need the sequences back. `pack` and `pad` go from one to the other, each the transpose of the other.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Rows"]


class _Pack(torch.autograd.Function):
    """Chosen rows of the second last axis; the gradient puts them back, without the atomic adds of indexing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: "Rows") -> Tensor:
        ctx.rows = rows
        return x.index_select(-2, rows.index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Pad.apply(grads[0], ctx.rows), None  # pyright: ignore[reportReturnType]


class _Pad(torch.autograd.Function):
    """The transpose: rows at their places, zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, rows: "Rows") -> Tensor:
        ctx.rows = rows
        return y.index_select(-2, rows.place).masked_fill_(rows.absent, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Pack.apply(grads[0], ctx.rows), None  # pyright: ignore[reportReturnType]


def _numbers(mask: Bool[Tensor, " n"], count: int) -> Int[Tensor, " r"]:
    """What `nonzero` gives, without asking how many there are."""
    place = (mask.cumsum(0) - 1).masked_fill(~mask, count)  # the others share one place too many
    return place.new_empty(count + 1).scatter_(0, place, torch.arange(len(mask), device=mask.device))[:count]


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows of `(v, l)` sequences are computed.

    Args:
        index: their numbers v * l + position, ascending.
        place: for each position of each sequence the row that holds it; 0 where it is absent.
        absent: positions that no row holds.
        position: of each row in its sequence.
        sequences: v.
        length: l.

    Example:
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
        """The rows that a mask calls valid.

        Args:
            mask: True = valid.
            count: how many these are, where it is known: it decides shapes, so that counting on a GPU makes the host
                wait for it. It must be right.
        """
        found = mask.flatten().nonzero().flatten() if count is None else _numbers(mask.flatten(), count)
        sequences, length = mask.shape
        numbers = torch.arange(len(found), device=found.device)
        place = numbers.new_zeros(sequences * length).scatter_(0, found, numbers)
        absent = torch.ones(sequences * length, dtype=torch.bool, device=found.device).index_fill_(0, found, False)
        return cls(found, place, absent[:, None], found % length, sequences, length)

    @classmethod
    def counted(cls, mask: Bool[Tensor, "v l"] | None) -> "Rows | None":
        """The same where counting them costs nothing: a mask on the host, outside a compiled graph; else None."""
        if mask is None or mask.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        return cls.of(mask)

    def pack(self, x: Float[Tensor, "*k v l d"]) -> Float[Tensor, "*k 1 r d"]:
        """The rows as one sequence."""
        return torch.as_tensor(_Pack.apply(x.flatten(-3, -2), self)).unsqueeze(-3)

    def pad(self, y: Float[Tensor, "*k 1 r d"]) -> Float[Tensor, "*k v l d"]:
        """The sequences again, zeros where no row was computed."""
        padded = torch.as_tensor(_Pad.apply(y.flatten(-3, -2), self))
        return padded.unflatten(-2, (self.sequences, self.length))

    def pad_with(self, y: Float[Tensor, "*k 1 m d"], extra: int) -> Float[Tensor, "*k v s d"]:
        """The sequences, each followed by its own `extra` rows, which stand after all others in `y`."""
        own, other = y.split([len(self.index), self.sequences * extra], dim=-2)
        return torch.cat([self.pad(own), other.flatten(-3, -2).unflatten(-2, (self.sequences, extra))], -2)
