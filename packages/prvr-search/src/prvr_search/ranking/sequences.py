"""First this, then that: videos in which what one sentence says is shown before what another one says."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int64

from prvr_search.ranking.lines import hit_of
from prvr_search.ranking.results import CURVE_PARTS, SearchHit, WindowTimeline, fold, highest, timeline
from prvr_search.ranking.scores import nearly_best, video_scores, window_timelines
from prvr_search.ranking.snapshot import Snapshot

_CANDIDATES = 200  # videos in which both are looked for one after the other


def sequence_hits(
    snapshot: Snapshot, texts: Float32[np.ndarray, "2 e"], within: float, videos: Int64[np.ndarray, " n"], k: int
) -> tuple[SearchHit, ...]:
    """The hits of two sentences of which one is to follow the other, best first, each with one moment.

    The videos are those whose scores for the two have the highest sum; their order is that of the sum of two places on
    their time lines, one after the other.

    Args:
        snapshot: the state of the index.
        texts: `(2, e)` what comes first, and what follows.
        within: seconds from the start of the one to that of the other, at most.
        videos: the numbers of the videos that are searched.
        k: how many videos are wanted.
    """
    hits = []
    for video in nearly_best(videos, video_scores(snapshot, texts).sum(0), max(k, _CANDIDATES)):
        arrays = snapshot.vectors(video)
        first, then = (window_timelines(snapshot.model, arrays, text) for text in texts)
        window = one_after_the_other(first, then, within)
        if window is not None:
            hits.append(hit_of(snapshot, video, window.score, [window], 1))
    return fold(sorted(hits, key=lambda hit: (-hit.score, hit.video_id)))


def one_after_the_other(
    first: Sequence[WindowTimeline], then: Sequence[WindowTimeline], within: float
) -> WindowTimeline | None:
    """The time line of a video for two sentences: at each place the mean of the score of the second there, and of the
    highest score of the first in what ends before it and begins at most `within` seconds earlier.

    Args:
        first, then: the windows of the video for each sentence, which are the same.
        within: in seconds.

    Returns:
        One window with the moment from the best place of the first to the end of that of the second; None where no
        place is followed by another.

    Examples:
        >>> a, b = (WindowTimeline(0.0, 4.0, 0.0, np.float32(line)) for line in ([1, 0, 0, 2], [1, 0, 2, 0]))
        >>> one_after_the_other([a], [b], 9.0).moment, one_after_the_other([a], [b], 1.0).moment
        ((0.0, 3.0), (1.0, 3.0))
    """
    before, spans = timeline(first)
    after, _ = timeline(then)
    order = np.argsort(spans[:, 1], kind="stable")  # by their ends: what comes before a place is a stretch of these
    before, (starts, ends) = before[order], spans[order].T
    lows = np.searchsorted(starts, spans[:, 0] - within)
    highs = np.searchsorted(ends, spans[:, 0] + 1e-6)
    (places,) = (lows < highs).nonzero()
    if not len(places):
        return None
    stretches = np.stack([lows, highs], 1)[places]
    best = np.maximum.reduceat(np.append(before, -np.inf), stretches.ravel())[::2]
    scores = ((best + after[places]) / 2).astype(np.float32)
    low, high = stretches[scores.argmax()]
    start, end = starts[low + before[low:high].argmax()], spans[places[scores.argmax()], 1]
    curve = highest(scores, spans[places] / ends[-1], CURVE_PARTS).clip(scores.min())
    return WindowTimeline(0.0, float(ends[-1]), float(scores.max()), curve, (float(start), float(end)))
