"""From frames to segments: changes of direction, their wavelet levels, and a cut at every outstanding change."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pywt
from jaxtyping import Float, Float64, Int64
from scipy.signal import find_peaks

from prvr.errors import InputError

_WAVELET = "db4"
_STILL = 1e-8  # of two unit frames: a smaller difference is none

Frames = Float[np.ndarray, "t d"]
"""The frames of a video, of any precision."""
Rows = Float64[np.ndarray, "t d"]
"""The frames of a video as unit vectors."""
Signal = Float64[np.ndarray, " s"]
"""A number for each step of time."""
Spans = Int64[np.ndarray, "n 2"]
"""Segments: the first frame of each, and one past the last."""


@dataclass(frozen=True, eq=False)
class AdaptiveSegments:
    """The segments of a video at all levels, finest level first; those of one level tile the video.

    Args:
        spans: `(n, 2)` first frame, and one past the last.
        level_offsets: `(j + 1,)` segments of level j are rows `level_offsets[j]:level_offsets[j + 1]`.

    Examples:
        >>> segments = AdaptiveSegments(np.array([[0, 3], [3, 9], [0, 9]]), np.array([0, 2, 3]))
        >>> [level.tolist() for level in segments.levels()]
        [[[0, 3], [3, 9]], [[0, 9]]]
    """

    spans: Spans
    level_offsets: Int64[np.ndarray, " offsets"]

    def levels(self) -> Iterator[Spans]:
        """The spans of each level, finest first."""
        return iter(np.split(self.spans, self.level_offsets[1:-1]))


def unit_frames(frames: Frames) -> Rows:
    """The frames of a video as unit vectors in float64.

    Args:
        frames: `(t, d)` at least one row, of any precision; whatever NumPy makes an array of is taken.

    Raises:
        InputError: it is no matrix with rows and columns, or a row is not finite or is zero.

    Examples:
        >>> unit_frames(np.array([[3.0, 4.0]]))
        array([[0.6, 0.8]])
    """
    rows = np.array(frames, np.float64, order="C")
    if rows.ndim != 2 or not rows.size:
        raise InputError(f"frames of shape {rows.shape}: expected (t, d), at least one row and one column.")
    if len(wrong := np.flatnonzero(~np.isfinite(rows).all(1))):
        raise InputError(f"frame {wrong[0]} has values that are not finite. Extract the features of the video again.")
    largest = np.abs(rows).max(1, keepdims=True)
    if len(wrong := np.flatnonzero(largest == 0)):
        raise InputError(f"frame {wrong[0]} is zero in every column and has no direction. Leave it out.")
    if not 1e-100 < largest.min() <= largest.max() < 1e100:
        rows /= largest  # whose squares would underflow or overflow
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def direction_changes(rows: Rows) -> Signal:
    r"""How much the path of a video through the joint space turns at each inner frame.

    $v_t = f_{t+1} - f_t$, $u_t = v_t / (\lVert v_t \rVert + 10^{-8})$ and $s_t = 1 - \langle u_t, u_{t+1} \rangle$,
    clipped to [0, 2]. While nothing moves, where neither $v_t$ nor $v_{t+1}$ is longer than $10^{-8}$, it is 0.

    Args:
        rows: `(t, d)` unit vectors.

    Returns:
        `(t - 2,)`; empty for fewer than three frames.

    Examples:
        >>> direction_changes(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])).round(6)
        array([2., 2.])
    """
    steps = np.diff(rows, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    steps /= lengths[:, None] + _STILL
    changes = 1 - np.clip(np.einsum("td,td->t", steps[:-1], steps[1:]), -1, 1)
    still = lengths <= _STILL
    changes[still[:-1] & still[1:]] = 0
    return changes


def level_details(changes: Signal) -> list[Signal]:
    """What each wavelet level alone contributes to a signal, in absolute value, finest level first.

    The wavelet is db4 with half-sample symmetric edges. There are floor(log2(s / 7)) levels, the deepest at which its
    filter of 8 still has support.

    Args:
        changes: `(s,)` the signal.

    Returns:
        A signal of the same length for each level; none for fewer than 14 samples.

    Examples:
        >>> [len(detail) for detail in level_details(np.arange(30.0))]
        [30, 30]
    """
    depth = pywt.dwt_max_level(len(changes), _WAVELET)
    if not depth:
        return []
    _, *details = pywt.mra(changes, _WAVELET, depth, transform="dwt", mode="symmetric")
    return [np.abs(detail) for detail in reversed(details)]


def level_cuts(detail: Signal, floor: float = 0.0) -> Int64[np.ndarray, " cuts"]:
    """The frames before which a level is cut: its peaks above mean + standard deviation.

    A peak is higher than both neighbours, never an end; of a plateau it is the middle, rounded down. A peak at position
    p of the signal is the change at frame p + 1, and frame p + 2 begins the next segment.

    Args:
        detail: `(s,)` a level of `level_details`.
        floor: the height that a peak must exceed in any case.

    Examples:
        >>> level_cuts(np.array([0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
        array([4])
    """
    peaks, _ = find_peaks(detail)
    return peaks[detail[peaks] > max(detail.mean() + detail.std(), floor)] + 2


def adaptive_segments(frames: Frames) -> AdaptiveSegments:
    """The segments of a video at every wavelet level (Kim and Eom, TF-PRVR, NeurIPS 2026).

    A video of fewer than 16 frames is one segment. A video whose frames are all repeated has no cuts: drop repeated
    frames before, where the sampling rate is above that of the video.

    Args:
        frames: `(t, d)` at least one frame, in the joint space of frames and sentences, of any length and precision.

    Raises:
        InputError: a row is zero or not finite, or `frames` is no matrix.

    Examples:
        >>> scenes = np.repeat(np.eye(4), 10, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((40, 4))
        >>> segments = adaptive_segments(scenes)
        >>> segments.level_offsets.tolist(), [len(level) for level in segments.levels()]
        ([0, 4, 10], [4, 6])
    """
    rows = unit_frames(frames)
    changes = direction_changes(rows)
    floor = 64 * np.finfo(np.float64).eps * max(1.0, np.abs(changes).max(initial=0))
    ends = np.array([0, len(rows)])
    edges = [np.union1d(ends, level_cuts(detail, floor)) for detail in level_details(changes)] or [ends]
    spans = [np.stack([row[:-1], row[1:]], 1) for row in edges]
    return AdaptiveSegments(np.concatenate(spans), np.cumsum([0, *map(len, spans)]))
