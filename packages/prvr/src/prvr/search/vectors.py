"""Rows of vectors as an index stores them: unit rows in half precision, with their lengths on demand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32, Int64

from prvr.types import TextEmbedding, Texts


@dataclass(frozen=True)
class PackedRows:
    """Rows as they are stored.

    Args:
        arrays: the arrays by the suffix of their file's name: without a suffix `(n, d)` float16 unit rows; `_lengths`,
            where they were kept: `(n)` float32 lengths that the rows had.
    """

    arrays: Mapping[str, np.ndarray]

    @property
    def values(self) -> np.ndarray:
        """`(n, d)`."""
        return self.arrays[""]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | np.ndarray) -> "PackedRows":
        return PackedRows({suffix: array[rows] for suffix, array in self.arrays.items()})


@dataclass(frozen=True)
class WindowRows:
    """One set of rows of consecutive windows, one window after the other.

    Args:
        packed: `(n)` rows.
        counts: `(w)` number of rows of each window.
    """

    packed: PackedRows
    counts: Int64[np.ndarray, " w"]

    @cached_property
    def offsets(self) -> Int64[np.ndarray, " _"]:
        """`(w + 1)`: the rows of window i are `offsets[i]` to `offsets[i + 1] - 1`."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def windows(self, first: int, stop: int) -> "WindowRows":
        """The rows of the windows `first` to `stop - 1`."""
        return WindowRows(
            self.packed[int(self.offsets[first]) : int(self.offsets[stop])],
            self.counts[first:stop],
        )

    def take(self, windows: Int64[np.ndarray, " n"]) -> PackedRows:
        """The rows of some windows, ascending; nothing is copied where there are no gaps between them."""
        first, stop = int(windows[0]), int(windows[-1]) + 1
        if stop - first == len(windows):
            return self.windows(first, stop).packed
        counts = self.counts[windows]
        jumps = self.offsets[windows] - np.concatenate([[0], np.cumsum(counts)[:-1]])
        return self.packed[np.arange(counts.sum()) + np.repeat(jumps, counts)]


def unit(rows: Float32[np.ndarray, "n d"]) -> Float32[np.ndarray, "n d"]:
    """Rows divided by their length; a row of zeros stays zero.

    Examples:
        >>> unit(np.array([[3, 4], [0, 0]], np.float32)).round(2).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))


def query_rows(texts: Texts) -> Float32[np.ndarray, "q e"]:
    """A row for each query: its unit vector, or where frames are compared with another one, both, that of clips first.

    Args:
        texts: `(q, d)`, or a `prvr.TextEmbedding` with one word, which stands for all.

    Examples:
        >>> query_rows(torch.tensor([[3.0, 4.0]])).round(1).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    parts = [texts.sentence, texts.words[:, 0]] if isinstance(texts, TextEmbedding) else [texts]
    return np.concatenate([unit(part.float().cpu().numpy()) for part in parts], axis=1)


def pack_rows(rows: Float32[np.ndarray, "n d"], lengths: bool = False) -> PackedRows:
    """Rows scaled to unit length, in half precision.

    Args:
        rows: `(n, d)`.
        lengths: keep the lengths of the rows, so that `unpack_rows` can give them back as they were.

    Examples:
        >>> packed = pack_rows(np.array([[3.0, 4.0]], np.float32), lengths=True)
        >>> unpack_rows(packed).round(2).tolist(), unpack_rows(packed, raw=True).round(1).tolist()
        ([[0.6000000238418579, 0.800000011920929]], [[3.0, 4.0]])
    """
    arrays = {"_lengths": np.linalg.norm(rows, axis=1).astype("<f4")} if lengths else {}
    return PackedRows({"": np.ascontiguousarray(unit(rows), "<f2"), **arrays})


def unpack_rows(packed: PackedRows, *, raw: bool = False) -> Float32[np.ndarray, "n d"]:
    """Rows as float32.

    Args:
        packed: the rows.
        raw: give the rows the lengths that they had before they were packed, which must have been kept.
    """
    rows = torch.from_numpy(packed.values).float()  # ten times as fast as numpy
    if raw:
        if "_lengths" not in packed.arrays:
            raise ValueError("the lengths of these rows are not stored; only unit rows are available")
        rows = rows * torch.from_numpy(packed.arrays["_lengths"])[:, None]
    return rows.numpy()


def concatenate_rows(parts: Sequence[PackedRows]) -> PackedRows:
    """Rows one after the other.

    Args:
        parts: the rows to join, at least one part, all with the same arrays.
    """
    return PackedRows({suffix: np.concatenate([part.arrays[suffix] for part in parts]) for suffix in parts[0].arrays})
