"""Rows of features: segment means, unit length, padding to the longest."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from prvr.errors import InputError

EPSILON = 1e-5  # the public readers divide by (norm + 1e-5), not by max(norm, eps)

GROWTH = 4
"""Each level of `growing_means` has means of so many times as many rows as the one before."""

Array = TypeVar("Array", np.ndarray, Tensor)


def segment_edges(length: int, bins: int, keep_last: bool = True) -> Int[np.ndarray, " edges"]:
    """Edges of ``bins`` segments over ``length`` rows.

    ``b_i = round_half_even(i n / M)``, i = 0..M. The released readers of GMMFormer, HLFormer and DreamPRVR cap every
    edge at n - 1 (``keep_last=False``), which leaves row n - 1 out of the last mean.

    Args:
        length: n >= 1, rows of the video.
        bins: M >= 1, segments.
        keep_last: keep the last edge at n.

    Returns:
        M + 1 non-decreasing edges.

    Examples:
        >>> segment_edges(6, 4).tolist(), segment_edges(6, 4, keep_last=False).tolist()
        ([0, 2, 3, 4, 6], [0, 2, 3, 4, 5])
    """
    if length < 1 or bins < 1:
        raise InputError(f"segment_edges needs length >= 1 and bins >= 1, got length={length}, bins={bins}")
    edges = np.rint(np.arange(bins + 1) * length / bins).astype(np.int64)
    if not keep_last:
        edges = np.minimum(edges, length - 1)
    return edges


def segment_mean(x: Float[Array, "n f"], bins: int, keep_last: bool = True) -> Float[Array, "bins f"]:
    """Means of ``bins`` consecutive segments of a sequence.

    Segment i is the mean of ``x[b_i:b_{i+1}]``, or the row ``x[b_i]`` alone where that is empty (see
    `prvr.data.sampling.segment_edges`); this makes the 32 clips and the up to 128 frames of Partially
    Relevant Video Retrieval (Dong et al., 2022).

    Args:
        x: (n f) rows in time order, n >= 1; an array or a CPU tensor. Sums run in float64.
        bins: number of segments; may be larger than n.
        keep_last: let the last row count (False: as released).

    Returns:
        (bins f) in the type and precision of ``x``.

    Raises:
        ValueError: no row, or no bin.

    Examples:
        >>> x = np.array([[0.0], [2.0], [4.0], [6.0]])
        >>> segment_mean(x, 2).ravel().tolist(), segment_mean(x, 2, keep_last=False).ravel().tolist()
        ([1.0, 5.0], [1.0, 4.0])
    """
    if isinstance(x, Tensor):
        return torch.from_numpy(segment_mean(x.detach().numpy(), bins, keep_last))
    edges = segment_edges(len(x), bins, keep_last)
    wide = x.astype(np.float64, copy=False)
    # reduceat sums x[s_i:s_{i+1}] and gives x[s_i] where that is empty: exactly the rule. It wants starts < n,
    # and a start can only reach n where segments are shorter than a row, so capping it takes the last row.
    starts = np.minimum(edges[:-1], len(x) - 1)
    sums = np.add.reduceat(wide[: max(edges[-1], starts[-1] + 1)], starts, axis=0)
    return (sums / np.maximum(np.diff(edges), 1)[:, None]).astype(x.dtype, copy=False)


def growing_means(x: Float[np.ndarray, "n f"]) -> Float[np.ndarray, "m f"]:
    """The rows of a video, then the means of each 4, 16, 64, ... of them, the last one that of all.

    Args:
        x: (n f) rows in time order, n >= 1, which count by their direction alone.

    Returns:
        (m f) in the precision of ``x``, of unit length; how many of each level, `level_counts` tells.

    Examples:
        >>> growing_means(np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 1.0]])).round(2).tolist()
        [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.45, 0.89]]
    """
    sums = x.astype(np.float64)
    sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    levels = [sums]
    while len(sums) > 1:  # each level from the sums of the one before
        sums = np.add.reduceat(sums, np.arange(0, len(sums), GROWTH), axis=0)
        levels.append(sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12))
    return np.concatenate(levels).astype(x.dtype, copy=False)


def level_counts(rows: int) -> list[int]:
    """How many rows each level of `growing_means` has.

    Examples:
        >>> level_counts(1), level_counts(240)
        ([1], [240, 60, 15, 4, 1])
    """
    counts = [rows]
    while counts[-1] > 1:
        counts.append(-(-counts[-1] // GROWTH))
    return counts


def normalise_rows(x: Float[np.ndarray, "n f"]) -> Float[np.ndarray, "n f"]:
    """Rows divided by (their norm + 1e-5), as all public readers do; a row of zeros stays zero.

    Examples:
        >>> normalise_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).round(4).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    return x / (np.linalg.norm(x, axis=-1, keepdims=True) + EPSILON)


def sample_video(
    x: Float[np.ndarray, "n f"],
    clips: int = 32,
    frames: int = 128,
    keep_last: bool = True,
    unit: bool = True,
    keep_length: bool = False,
) -> tuple[Float[np.ndarray, "c f"], Float[np.ndarray, "l f"]]:
    """The two views of a video: coarse clips, and frames (all of them, or segment means where there are too many).

    Args:
        x: (n f) frame features as stored, n >= 1.
        clips: number of clips, c.
        frames: most frames kept, so that l = min(n, frames).
        keep_last: see [segment_mean][prvr.data.sampling.segment_mean].
        unit: False for rows that have neither mean nor length, such as pictures: they stay as they are, and the middle
            one of each segment stands for it.
        keep_length: frames are not normalised.

    Returns:
        clips (c f) and frames (l f), rows normalised after sampling; computed in float64, returned in float32.

    Examples:
        >>> clips, frames = sample_video(np.ones((200, 3), np.float32))
        >>> clips.shape, frames.shape
        ((32, 3), (128, 3))
    """
    if not unit:
        edge_lists = [segment_edges(len(x), bins, keep_last) for bins in (clips, min(len(x), frames))]
        coarse, fine = (x[np.minimum((edges[:-1] + edges[1:]) // 2, len(x) - 1)] for edges in edge_lists)
        return coarse.astype(np.float32, copy=False), fine.astype(np.float32, copy=False)
    wide = x.astype(np.float64)
    fine = wide if len(wide) <= frames else segment_mean(wide, frames, keep_last)
    coarse = segment_mean(wide, clips, keep_last)
    fine = fine if keep_length else normalise_rows(fine)
    return normalise_rows(coarse).astype(np.float32), fine.astype(np.float32)


def pad(sequences: Sequence[Float[Tensor, "_ f"]]) -> tuple[Float[Tensor, "b l f"], Bool[Tensor, "b l"]]:
    """Pads sequences with zeros to the longest.

    Args:
        sequences: at least one, (_ f) each.

    Returns:
        (b l f) and its mask, True = valid.

    Examples:
        >>> padded, mask = pad([torch.ones(1, 2), torch.ones(2, 2)])
        >>> padded.shape, mask.tolist()
        (torch.Size([2, 2, 2]), [[True, False], [True, True]])
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return pad_sequence(list(sequences), batch_first=True), mask
