"""Sequences of different lengths as one padded tensor and its mask, and runs of rows in a flat matrix."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def pad(sequences: Sequence[Float[Tensor, "_ f"]]) -> tuple[Float[Tensor, "b l f"], Bool[Tensor, "b l"]]:
    """Pads sequences with zeros to the longest.

    Args:
        sequences: at least one, (_ f) each.

    Returns:
        (b l f) and its mask, True = valid.

    Example:
        >>> padded, mask = pad([torch.ones(1, 2), torch.ones(2, 2)])
        >>> padded.shape, mask.tolist()
        (torch.Size([2, 2, 2]), [[True, False], [True, True]])
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return pad_sequence(list(sequences), batch_first=True), mask


def read_runs(
    matrix: Float[np.ndarray, "n f"], offsets: Int[np.ndarray, " m"], which: Int[np.ndarray, " b"]
) -> tuple[Float[Tensor, "_ f"], ...]:
    """Copies runs of rows out of a (mapped) flat matrix, neighbours in one piece.

    Args:
        matrix: (n f), all runs one after another.
        offsets: (m), run i is ``matrix[offsets[i]:offsets[i + 1]]``.
        which: (b), the wanted runs.

    Returns:
        the rows of each run, float32.
    """
    start, stop = offsets[which], offsets[which + 1]
    breaks = np.flatnonzero(stop[:-1] != start[1:]) + 1
    pieces: list[Tensor] = []
    for first, last in zip([0, *breaks], [*breaks, len(which)], strict=True):
        rows = torch.from_numpy(np.array(matrix[start[first] : stop[last - 1]], np.float32))
        pieces += rows.split((stop[first:last] - start[first:last]).tolist())
    return tuple(pieces)
