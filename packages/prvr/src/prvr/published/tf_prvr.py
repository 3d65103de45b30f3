"""Segments of all lengths that a video falls into by itself, and their moments: retrieval without training.

TF-PRVR (Kim and Eom, NeurIPS 2026) reads the frames of a video in the joint space of frames and sentences: changes of
direction are cut by wavelets into segments at several levels, a graph over all segments propagates their features, and
moments are what lies between two neighbouring cuts. All of it is computed once, without a query. The score of a
sentence with unit vector q is max_i ⟨q, m_i⟩ over the moments m_i, and the span of the best moment is where it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pywt
from jaxtyping import Float, Float64, Int64
from scipy.linalg import cho_factor, cho_solve
from scipy.signal import find_peaks
from scipy.sparse import csr_array

from prvr.errors import InputError

__all__ = [
    "AdaptiveMoments",
    "AdaptiveSegments",
    "adaptive_moments",
    "adaptive_segments",
    "direction_changes",
    "level_cuts",
    "level_details",
    "moments_between_edges",
    "moments_of",
    "neighbour_weights",
    "own_weights",
    "propagate",
    "propagate_in_parts",
    "segment_features",
    "unit_frames",
]

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
Features = Float64[np.ndarray, "n d"]
"""A vector for each segment."""


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


@dataclass(frozen=True, eq=False)
class AdaptiveMoments:
    """What a video is compared by: a vector for each stretch between two neighbouring cuts of any level.

    Args:
        vectors: `(m, d)` not of unit length. The score of a sentence with unit vector q is the maximum of
            `vectors @ q`.
        spans: `(m, 2)` first frame, and one past the last; they tile the video.
    """

    vectors: Float64[np.ndarray, "m d"]
    spans: Int64[np.ndarray, "m 2"]


def segment_features(rows: Rows, spans: Spans) -> Features:
    """The mean of the unit frames of each segment, scaled to unit length; zero where they cancel.

    Args:
        rows: `(t, d)` unit vectors.
        spans: `(n, 2)` of one level, or of several, one after the other.

    Examples:
        >>> segment_features(np.eye(2)[[0, 0, 1]], np.array([[0, 2], [2, 3], [0, 3]])).round(2)
        array([[1.  , 0.  ],
               [0.  , 1.  ],
               [0.89, 0.45]])
    """
    means = np.stack([rows[first:last].mean(0) for first, last in spans])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return np.divide(means, lengths, out=np.zeros_like(means), where=lengths > np.finfo(np.float64).eps)


def own_weights(features: Features, spans: Spans) -> Float64[np.ndarray, "n n"]:
    r"""The weights between the segments of one level.

    $W_{ab} = \max(\langle n_a, n_b \rangle, 0) + \exp(-\lvert c_a - c_b \rvert / \bar l)$ and $W_{aa} = 1$, c the
    centres and $\bar l$ the mean duration of the segments.

    Examples:
        >>> own_weights(np.eye(2), np.array([[0, 4], [4, 8]])).round(3)
        array([[1.   , 0.368],
               [0.368, 1.   ]])
    """
    scaled = spans.mean(1) / np.diff(spans).mean()
    weights = np.maximum(features @ features.T, 0) + np.exp(-np.abs(np.subtract.outer(scaled, scaled)))
    np.fill_diagonal(weights, 1)
    return weights


def neighbour_weights(
    features: Features,
    spans: Spans,
    coarser_features: Float64[np.ndarray, "m d"],
    coarser_spans: Int64[np.ndarray, "m 2"],
) -> csr_array:
    r"""The weights between the segments of two neighbouring levels: $W_{ab} = \mathrm{IoU}_{ab} \max(\langle n_a, n_b
    \rangle, 0)$, the intersection over union in time.

    Returns:
        `(n, m)` sparse: at most n + m - 1 pairs share a frame.

    Examples:
        >>> spans, coarser = np.array([[0, 2], [2, 8]]), np.array([[0, 4], [4, 8]])
        >>> neighbour_weights(np.ones((2, 1)), spans, np.ones((2, 1)), coarser).toarray().round(3)
        array([[0.5  , 0.   ],
               [0.25 , 0.667]])
    """
    edges = np.union1d(spans, coarser_spans)
    shared = np.diff(edges)
    fine, coarse = (
        np.searchsorted(edges_of[:, 0], edges[:-1], side="right") - 1 for edges_of in (spans, coarser_spans)
    )
    union = np.diff(spans)[fine, 0] + np.diff(coarser_spans)[coarse, 0] - shared
    similarity = np.einsum("pd,pd->p", features[fine], coarser_features[coarse])
    return csr_array((shared / union * np.maximum(similarity, 0), (fine, coarse)), (len(spans), len(coarser_spans)))


def propagate(features: Features, segments: AdaptiveSegments, beta: float = 0.7) -> Features:
    r"""The features of all segments after propagation over their graph.

    $P = (1 - \beta)(I - \beta S)^{-1} N$ with $S = D^{-1/2} W D^{-1/2}$, N the features and D the row sums of W:
    `own_weights` within a level, `neighbour_weights` between neighbouring levels, 0 elsewhere. The eigenvalues of S lie
    in [-1, 1], so those of $I - \beta S$ in $[1 - \beta, 1 + \beta]$, and its condition is at most 5.7 for 0.7.

    The matrix is solved by its Cholesky factor, exact up to rounding, in $n^2 (n / 6 + d)$ multiply-adds and with $n^2$
    numbers in memory.

    Args:
        features: `(n, d)` of unit length, finest level first.
        segments: their spans and levels.
        beta: how far features spread, in [0, 1); 0 leaves them as they are.

    Raises:
        InputError: `beta` is outside [0, 1).

    Examples:
        >>> segments = AdaptiveSegments(np.array([[0, 4], [4, 8]]), np.array([0, 2]))
        >>> propagate(np.eye(2), segments, beta=0.5).round(3)
        array([[0.825, 0.175],
               [0.175, 0.825]])
    """
    if not 0 <= beta < 1:
        raise InputError(f"beta {beta}: expected a number in [0, 1). The published value is 0.7.")
    levels, graph = [slice(*pair) for pair in pairwise(segments.level_offsets)], np.zeros((len(features),) * 2)
    for level in levels:
        graph[level, level] = own_weights(features[level], segments.spans[level])
    for fine, coarse in pairwise(levels):
        link = neighbour_weights(features[fine], segments.spans[fine], features[coarse], segments.spans[coarse])
        graph[fine, coarse] = link.toarray()
        graph[coarse, fine] = graph[fine, coarse].T
    roots = np.sqrt(graph.sum(1))
    graph *= -beta
    graph /= roots[:, None]
    graph /= roots
    graph[np.diag_indices_from(graph)] += 1
    factor = cho_factor(graph.T, lower=True, overwrite_a=True, check_finite=False)  # symmetric
    return cho_solve(factor, (1 - beta) * features, overwrite_b=True, check_finite=False)


def propagate_in_parts(
    features: Features, segments: AdaptiveSegments, beta: float = 0.7, *, part: int = 1 << 15
) -> Features:
    """`propagate` for long videos: in parts that overlap, linear in time and memory.

    A part sees a quarter of its length on both sides, too, and segments are cut there. A segment is taken from the part
    that holds its centre. The difference is that it knows nothing of the video further away.

    Args:
        features: as of `propagate`.
        segments: as of `propagate`.
        beta: as of `propagate`.
        part: frames in a part; a video that is not longer is propagated as a whole.

    Examples:
        >>> segments = AdaptiveSegments(np.array([[0, 4], [4, 8], [8, 12]]), np.array([0, 3]))
        >>> whole = propagate(np.eye(3), segments)
        >>> bool((propagate_in_parts(np.eye(3), segments, part=12) == whole).all())
        True
        >>> float(abs(propagate_in_parts(np.eye(3), segments, part=4) - whole).max().round(2))
        0.14
    """
    spans, length = segments.spans, int(segments.spans[-1, 1])
    if length <= part:
        return propagate(features, segments, beta)
    propagated, centres = np.empty_like(features), spans.mean(1)
    for first in range(0, length, part):
        start, stop = first - part // 4, first + part + part // 4
        near = (spans[:, 0] < stop) & (spans[:, 1] > start)
        own = (centres >= first) & (centres < first + part)
        offsets = np.append(0, np.cumsum(near))[segments.level_offsets]
        around = AdaptiveSegments(spans[near].clip(start, stop), offsets)
        propagated[own] = propagate(features[near], around, beta)[own[near]]
    return propagated


def moments_between_edges(propagated: Features, segments: AdaptiveSegments) -> AdaptiveMoments:
    """A moment between every two neighbouring edges of all levels: the mean over levels of the segments that hold it.

    Examples:
        >>> segments = AdaptiveSegments(np.array([[0, 3], [3, 9], [0, 9]]), np.array([0, 2, 3]))
        >>> moments = moments_between_edges(np.array([[1.0], [3.0], [5.0]]), segments)
        >>> moments.spans.tolist(), moments.vectors.tolist()
        ([[0, 3], [3, 9]], [[3.0], [4.0]])
    """
    edges = np.unique(segments.spans)
    vectors = np.zeros((len(edges) - 1, propagated.shape[1]))
    levels = list(segments.levels())
    for spans, rows in zip(levels, np.split(propagated, segments.level_offsets[1:-1]), strict=True):
        vectors += rows[np.searchsorted(spans[:, 0], edges[:-1], side="right") - 1]
    return AdaptiveMoments(vectors / len(levels), np.stack([edges[:-1], edges[1:]], 1))


def adaptive_moments(frames: Frames, beta: float = 0.7) -> AdaptiveMoments:
    """The moments of a video by TF-PRVR (Kim and Eom, NeurIPS 2026), without training and without a query.

    Videos of more than 32,768 frames are propagated in parts that overlap, see `propagate_in_parts`.

    Args:
        frames: `(t, d)` at least one frame, in the joint space of frames and sentences, of any length and precision.
        beta: how far segments share their features, in [0, 1).

    Raises:
        InputError: a row is zero or not finite, `frames` is no matrix, or `beta` is outside [0, 1).

    Examples:
        >>> scenes = np.repeat(np.eye(4), 10, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((40, 4))
        >>> moments = adaptive_moments(scenes)
        >>> scores = moments.vectors @ np.array([0.0, 0.0, 1.0, 0.0])
        >>> len(scores), moments.spans[scores.argmax()].tolist()
        (8, [23, 27])
    """
    segments = adaptive_segments(frames)
    features = segment_features(unit_frames(frames), segments.spans)
    return moments_between_edges(propagate_in_parts(features, segments, beta), segments)


def moments_of(frames: Frames, beta: float = 0.7) -> AdaptiveMoments:
    """The moments of a video by `adaptive_moments`, of any frames that an encoder gives.

    Frames of zeros have no direction and are left out, as is the second of exactly two equal frames: where the sampling
    rate is above that of the video, every frame comes twice, which hides all cuts. Longer pauses stay, since they begin
    and end at cuts. The spans are those of all frames.

    Args:
        frames: `(t, d)` at least one frame.
        beta: how far segments share their features, in [0, 1).

    Examples:
        >>> scenes = np.repeat(np.eye(4), 10, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((40, 4))
        >>> once, twice = moments_of(scenes), moments_of(np.repeat(scenes, 2, axis=0))
        >>> bool((twice.vectors == once.vectors).all()), bool((twice.spans == 2 * once.spans).all())
        (True, True)
    """
    repeated = np.concatenate([[False], (frames[1:] == frames[:-1]).all(1), [False]])
    second = np.append(False, repeated[1:-1] & ~repeated[:-2] & ~repeated[2:])
    places = np.flatnonzero(frames.any(1) & ~second)
    if not len(places):
        return AdaptiveMoments(np.zeros((1, frames.shape[1])), np.array([[0, len(frames)]]))
    moments = adaptive_moments(frames[places], beta)
    starts = np.append(0, places[moments.spans[1:, 0]])
    return AdaptiveMoments(moments.vectors, np.stack([starts, np.append(starts[1:], len(frames))], 1))
