"""Rows of vectors as an index stores them: unit rows in half precision."""

import numpy as np
from jaxtyping import Float16, Float32


def unit(rows: Float32[np.ndarray, "n d"]) -> Float32[np.ndarray, "n d"]:
    """Rows divided by their length; a row of zeros stays zero.

    Examples:
        >>> unit(np.array([[3, 4], [0, 0]], np.float32)).round(2).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))


def pack_rows(rows: Float32[np.ndarray, "n d"]) -> Float16[np.ndarray, "n d"]:
    """Rows scaled to unit length, in half precision.

    Examples:
        >>> pack_rows(np.array([[3.0, 4.0]], np.float32)).tolist()
        [[0.60009765625, 0.7998046875]]
    """
    return np.ascontiguousarray(unit(rows), "<f2")
