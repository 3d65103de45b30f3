"""What a search finds and where in a video it lies: plain records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.lib.stride_tricks import sliding_window_view

from prvr.encoders import VideoEntry
from prvr.scoring import best_moment, moment_level
from prvr_search.films import SubtitleLine
from prvr_search.vectors.model import Vector

CURVE_PARTS = 64
"""Equal parts of a video that `SearchHit.relevance` has a value for."""
_ROUNDING = 1e-6  # seconds: moments that are no further apart touch
_ABOVE = 0.1  # chosen with `benchmarks/studies/films.md`
NEIGHBOURS = 10
"""So many hits before a hit may be the same video in another encoding, see `fold`."""
ALIKE, OVERLAP = 0.07, 0.8
"""How far scores of re-encodings may differ, as a share of the range of the curve, and how far moments must overlap.

Measured on the toy corpus, 33 videos of which were encoded again as VP9, MPEG-4 and a smaller H.264: 86 % of the pairs
are alike for single frames, 77 % for `toy-world`; of 1,852 pairs of distinct videos of equal durations none, and of
98,000 pairs of clips of 10 s from them 23.
"""


@dataclass(frozen=True)
class Moment:
    """A part of a video.

    Args:
        start, end: where it starts and ends, in seconds from the start of the video.
        score: the highest score of its timeline.
    """

    start: float
    end: float
    score: float


@dataclass(frozen=True)
class SearchHit:
    """A video that was found.

    Args:
        video: what is known of the video.
        score: the score that the retriever gives the best window of the video, or BM25 of its best line if the query
            is about lines alone; higher is better.
        moments: disjoint moments, best first, at least one.
        relevance: the relevance curve, the highest score of the timeline in each of `CURVE_PARTS` equal parts;
            -inf where a model that gives moments of its own gives none.
        copies: other videos of the index whose files have the same content, in order of ids; they are no hits of their
            own.
        alike: other videos that score alike at the same moment, probably the same video in another encoding, see
            `fold`; they are no hits of their own.
        lines: the lines of subtitles, or of what is said or written, that match the query, best first.
    """

    video: VideoEntry
    score: float
    moments: tuple[Moment, ...]
    relevance: tuple[float, ...]
    copies: tuple[VideoEntry, ...] = ()
    alike: tuple[VideoEntry, ...] = ()
    lines: tuple[SubtitleLine, ...] = ()

    @property
    def video_id(self) -> str:
        """The id of the video."""
        return self.video.id

    @property
    def spans(self) -> Sequence[SubtitleLine | Moment]:
        """Where to look: the matching lines or, without lines, the moments, best first."""
        return self.lines or self.moments

    @property
    def start(self) -> float:
        """Start of the first of `spans`, in seconds."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """End of the first of `spans`, in seconds; not after the end of the video."""
        end = self.spans[0].end
        return min(end, self.video.duration or end)


@dataclass(frozen=True)
class SearchResult:
    """What was found for a query.

    Args:
        query: the query, in words.
        hits: best first; of equal scores, the one with the smaller id first.
        videos: how many the index holds.
        backend: the name of the backend that looked for candidates.
    """

    query: str
    hits: tuple[SearchHit, ...]
    videos: int
    backend: str

    @property
    def scale(self) -> tuple[float, float]:
        """The lowest and the highest value of all curves."""
        values = [value for hit in self.hits for value in hit.relevance if isfinite(value)]
        return min(values, default=0.0), max(values, default=0.0)

    @property
    def folded(self) -> int:
        """Number of videos that score like a hit at the same moment and are listed with it, see `fold`."""
        return sum(len(hit.alike) for hit in self.hits)


class WindowTimeline(NamedTuple):
    """A window of a video: its time in seconds, its score, the scores of what shares its time evenly, and its best
    moment in seconds, if that is not to be found in these scores.
    """

    start: float
    end: float
    score: float
    scores: Vector
    moment: tuple[float, float] | None = None


def fold(hits: Sequence[SearchHit]) -> tuple[SearchHit, ...]:
    """Hits of which neighbours that score alike at the same moment are one, as a video and its re-encodings do.

    A hit is folded into one of the `NEIGHBOURS` hits before it if all of these hold:

    - their durations differ by at most 1 % or 0.5 s,
    - their best moments overlap by `OVERLAP` of the time that either covers,
    - the scores of these moments, and on average the relevance curves, differ by less than `ALIKE` of the range of the
      curve, so that a flat curve shows nothing.

    Whether two videos are the same is not certain, so none is lost: `SearchHit.alike` of the better hit holds the other
    and its copies.

    Args:
        hits: the hits of one query, best first.
    """
    folded: list[SearchHit] = []
    for hit in hits:
        for place in range(max(0, len(folded) - NEIGHBOURS), len(folded)):
            better = folded[place]
            if _are_duplicates(better, hit):
                folded[place] = replace(better, alike=(*better.alike, hit.video, *hit.copies, *hit.alike))
                break
        else:
            folded.append(hit)
    return tuple(folded)


def _are_duplicates(hit: SearchHit, other: SearchHit) -> bool:
    longer = max(hit.video.duration, other.video.duration)
    if abs(hit.video.duration - other.video.duration) > max(0.5, 0.01 * longer):
        return False
    moment, second = hit.moments[0], other.moments[0]
    shared = min(moment.end, second.end) - max(moment.start, second.start)
    if shared < OVERLAP * (max(moment.end, second.end) - min(moment.start, second.start)):
        return False
    curve, another = np.array(hit.relevance), np.array(other.relevance)
    differences = np.abs(np.subtract(curve, another, out=np.zeros(len(curve)), where=curve != another))
    finite = curve[np.isfinite(curve)]
    most = ALIKE * float(np.ptp(finite)) if len(finite) else 0.0
    return abs(moment.score - second.score) < most and bool(differences.mean() < most)


def merged_moments(windows: Sequence[WindowTimeline], most: int, usual: float = np.inf) -> tuple[Moment, ...]:
    """The best moment of each window, highest first, those that overlap put together.

    A moment that overlaps or touches a higher one becomes a part of it if it reaches the level that
    [best_moment][prvr.scoring.best_moment] asks of a neighbour there; or else it is left out. So the best moment of
    windows with one score each is that of their scores in one line. What is usual is the median over time, or a tenth
    of the way from what is usual in other videos to the highest score, if that is lower: so a video that fits as a
    whole is one moment.

    Args:
        windows: the windows of one video.
        most: how many moments, at least one.
        usual: the score that is usual in other videos, if it is known.

    Returns:
        disjoint, best first: the first holds the highest score of all timelines.

    Examples:
        >>> flat, peak = np.zeros(4, np.float32), np.array([0, 1, 0, 0], np.float32)
        >>> merged_moments([WindowTimeline(0.0, 40.0, 0.2, flat), WindowTimeline(20.0, 60.0, 0.9, peak)], 3)
        (Moment(start=30.0, end=40.0, score=1.0),)
    """
    scores, edges = timeline(windows)
    half = 0.5 * (1 - 1e-9)  # the lower of two
    median = float(np.quantile(scores.astype(float), half, weights=np.diff(edges)[:, 0], method="inverted_cdf"))
    if usual < median:
        median = min(median, usual + _ABOVE * (float(scores.max()) - usual))
    moments: list[Moment] = []
    peaks = ((float(window.scores.max()), window) for window in windows)
    for peak, window in sorted(peaks, key=lambda pair: (-pair[0], pair[1].start)):
        if len(moments) >= most and peak < moment_level(moments[most - 1].score, median):
            break  # it is too low for a part of any of these
        if window.moment is not None:
            start, end = window.moment
        else:
            start, end = best_moment(torch.from_numpy(window.scores), window.end - window.start, median)
            start, end = window.start + start, min(window.start + end, window.end)
        near = [moment for moment in moments if start <= moment.end + _ROUNDING and moment.start <= end + _ROUNDING]
        if not near:
            moments.append(Moment(start, end, peak))
        elif peak >= moment_level(near[0].score, median):
            starts, ends = zip((start, end), *((moment.start, moment.end) for moment in near), strict=True)
            joined = Moment(min(starts), max(ends), near[0].score)
            moments = [joined if moment is near[0] else moment for moment in moments if moment not in near[1:]]
    return tuple(moments[:most])


def relevance_curve(windows: Sequence[WindowTimeline], duration: float, parts: int = CURVE_PARTS) -> tuple[float, ...]:
    """The highest score in each of equal parts of a video.

    Where windows overlap, the higher one counts; what is longer than a part counts in all parts that it touches.

    Args:
        windows: the windows of one video, which cover it.
        duration: the duration of the video, in seconds.
        parts: the number of parts.

    Examples:
        >>> relevance_curve([WindowTimeline(0.0, 8.0, 0.0, np.array([0.25, 0.5], np.float32))], 8.0, 4)
        (0.25, 0.25, 0.5, 0.5)
    """
    scores, edges = timeline(windows)
    return tuple(highest(scores, edges / duration, parts).tolist())


def highest(scores: Vector, spans: Float[np.ndarray, "n 2"], parts: int) -> Vector:
    """The highest score of what touches each of equal parts of time; -inf where there is nothing.

    Args:
        scores: the scores.
        spans: `(n, 2)` where each begins and ends, as shares of the time.
        parts: the number of parts.

    Examples:
        >>> highest(np.float32([0.5, 0.9]), np.float32([[0, 1], [0.25, 0.5]]), 4).round(1).tolist()
        [0.5, 0.8999999761581421, 0.5, 0.5]
    """
    scaled = spans.astype(np.float64) * parts
    first = np.clip(np.floor(scaled[:, 0] + 1e-6).astype(int), 0, parts - 1)
    last = np.clip(np.ceil(scaled[:, 1] - 1e-6).astype(int) - 1, first, parts - 1)
    touching = ((first <= part) & (part <= last) for part in range(parts))
    return np.array([scores[rows].max(initial=-np.inf) for rows in touching], np.float32)


def timeline(windows: Sequence[WindowTimeline]) -> tuple[Vector, Float[np.ndarray, "n 2"]]:
    """The scores of all windows, one after the other, and when each begins and ends."""
    edges = [np.linspace(window.start, window.end, len(window.scores) + 1) for window in windows]
    spans = [sliding_window_view(times, 2) for times in edges]
    return np.concatenate([window.scores for window in windows]), np.concatenate(spans)


def one_after_the_other(
    first: Sequence[WindowTimeline], then: Sequence[WindowTimeline], within: float
) -> list[WindowTimeline]:
    """The time line of a video for two sentences: at each place the mean of the score of the second there, and of the
    highest score of the first in what ends before it and begins at most `within` seconds earlier.

    Args:
        first, then: the windows of the video for each sentence, which are the same.
        within: in seconds.

    Returns:
        One window with the moment from the best place of the first to the end of that of the second; no window where
        no place is followed by another.

    Examples:
        >>> a, b = (WindowTimeline(0.0, 4.0, 0.0, np.float32(line)) for line in ([1, 0, 0, 2], [1, 0, 2, 0]))
        >>> [window.moment for within in (9.0, 1.0) for window in one_after_the_other([a], [b], within)]
        [(0.0, 3.0), (1.0, 3.0)]
    """
    before, spans = timeline(first)
    after, _ = timeline(then)
    order = np.argsort(spans[:, 1], kind="stable")  # by their ends: what comes before a place is a stretch of these
    before, (starts, ends) = before[order], spans[order].T
    lows = np.searchsorted(starts, spans[:, 0] - within)
    highs = np.searchsorted(ends, spans[:, 0] + 1e-6)
    (places,) = (lows < highs).nonzero()
    if not len(places):
        return []
    stretches = np.stack([lows, highs], 1)[places]
    best = np.maximum.reduceat(np.append(before, -np.inf), stretches.ravel())[::2]
    scores = ((best + after[places]) / 2).astype(np.float32)
    low, high = stretches[scores.argmax()]
    start, end = starts[low + before[low:high].argmax()], spans[places[scores.argmax()], 1]
    curve = highest(scores, spans[places] / ends[-1], CURVE_PARTS).clip(scores.min())
    return [WindowTimeline(0.0, float(ends[-1]), float(scores.max()), curve, (float(start), float(end)))]


def clock(seconds: int | float) -> str:
    """`m:ss`, or `h:mm:ss` from an hour on; what is left of a second is dropped.

    Examples:
        >>> clock(65.9), clock(3723)
        ('1:05', '1:02:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def clock_span(start: int | float, end: int | float) -> str:
    """From the second in which a moment starts to that by which it has ended: never an empty one.

    Examples:
        >>> clock_span(12.5, 17.25)
        '0:12-0:18'
    """
    return f"{clock(start)}-{clock(max(ceil(end - 1e-6), int(start) + 1))}"
