"""Vectors as they lie on disk: unit rows as float16 or float32, or as int8 with one scale for each."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32

__all__ = ["Dtype", "PackedRows", "concatenate_rows", "pack_rows", "unit", "unpack_rows"]

Dtype = Literal["float16", "float32", "int8"]
"""How vectors lie on disk: int8 with one scale for each vector."""


class PackedRows(NamedTuple):
    """Rows on disk.

    Args:
        values: `(n, d)`.
        scales: `(n)` float32, what the values are multiplied by; None: by nothing.
    """

    values: np.ndarray
    scales: np.ndarray | None

    def __getitem__(self, rows: slice) -> "PackedRows":  # type: ignore[override]
        return PackedRows(self.values[rows], None if self.scales is None else self.scales[rows])


def unit(rows: Float32[np.ndarray, "n d"]) -> Float32[np.ndarray, "n d"]:
    """Rows divided by their length; a row of zeros stays zero.

    Example:
        >>> unit(np.array([[3, 4], [0, 0]], np.float32)).round(2).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))


def pack_rows(rows: Float32[np.ndarray, "n d"], dtype: Dtype) -> PackedRows:
    """Rows scaled to unit length, then rounded.

    int8 spreads each row over -127 to 127; its scale makes the rounded row a unit vector again.

    Example:
        >>> packed = pack_rows(np.array([[3.0, 4.0]], np.float32), "int8")
        >>> packed.values.tolist(), unpack_rows(packed).round(2).tolist()
        ([[95, 127]], [[0.6000000238418579, 0.800000011920929]])
    """
    whole = unit(rows)
    if dtype != "int8":
        return PackedRows(np.ascontiguousarray(whole, np.dtype(dtype).newbyteorder("<")), None)
    highest = np.maximum(np.abs(whole).max(1, keepdims=True, initial=0), np.float32(1e-12))
    values = np.rint(whole * (127 / highest)).astype(np.int8)
    lengths = np.linalg.norm(values.astype(np.float32), axis=1)
    return PackedRows(values, np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0).astype("<f4"))


def unpack_rows(packed: PackedRows) -> Float32[np.ndarray, "n d"]:
    """Rows as float32, to be read only: those of float32 are not copied."""
    rows = torch.from_numpy(packed.values).float()  # of half precision, ten times as fast as numpy
    return (rows if packed.scales is None else rows.mul_(torch.from_numpy(packed.scales)[:, None])).numpy()


def concatenate_rows(parts: Sequence[PackedRows]) -> PackedRows:
    """Rows one after the other.

    Args:
        parts: at least one, all with scales or none.
    """
    scales = [part.scales for part in parts if part.scales is not None]
    return PackedRows(np.concatenate([part.values for part in parts]), np.concatenate(scales) if scales else None)
