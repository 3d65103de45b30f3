"""Where in a video the answer lies: moments of its windows, and its time line."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32

from prvr.scoring import best_moment
from prvr.search.hits import STRIP, Moment

__all__ = ["WindowCosines", "merged_moments", "strip"]


class WindowCosines(NamedTuple):
    """A window of a video: its time in seconds, its score, and the cosines of what shares its time evenly."""

    start: float
    end: float
    score: float
    cosines: Float32[np.ndarray, " l"]


def merged_moments(windows: Sequence[WindowCosines], most: int) -> tuple[Moment, ...]:
    """The best moment of each window, best window first, those that overlap put together.

    A moment that overlaps a better one becomes a part of it if its highest cosine reaches half way between the median
    and the highest of the better window, which is what [best_moment][prvr.scoring.best_moment] asks of a neighbour; or
    else it is left out.

    Args:
        windows: of one video.
        most: how many moments, at least one.

    Returns:
        disjoint, best first.

    Example:
        >>> flat, peak = np.zeros(4, np.float32), np.array([0, 1, 0, 0], np.float32)
        >>> merged_moments([WindowCosines(0.0, 40.0, 0.2, flat), WindowCosines(20.0, 60.0, 0.9, peak)], 3)
        (Moment(start=30.0, end=40.0, score=0.9),)
    """
    found: list[tuple[Moment, float]] = []  # with the cosine that a part of it must reach
    for one in sorted(windows, key=lambda one: (-one.score, one.start)):
        start, end = best_moment(torch.from_numpy(one.cosines), one.end - one.start)
        start, end, peak = one.start + start, min(one.start + end, one.end), float(one.cosines.max())
        hits = [i for i, (there, _) in enumerate(found) if start < there.end and there.start < end]
        if not hits:
            found.append((Moment(start, end, one.score), (peak + float(np.median(one.cosines))) / 2))
        elif len(hits) == 1 and peak >= found[hits[0]][1]:
            there, level = found[hits[0]]
            found[hits[0]] = (Moment(min(there.start, start), max(there.end, end), there.score), level)
    return tuple(moment for moment, _ in found[:most])


def strip(windows: Sequence[WindowCosines], duration: float, parts: int = STRIP) -> tuple[float, ...]:
    """The highest cosine in each of equal parts of a video.

    Where windows overlap, the higher one counts; what is longer than a part counts in all parts that it touches.

    Args:
        windows: of one video, which cover it.
        duration: of the video, in seconds.
        parts: how many.

    Example:
        >>> strip([WindowCosines(0.0, 8.0, 0.0, np.array([0.25, 0.5], np.float32))], 8.0, 4)
        (0.25, 0.25, 0.5, 0.5)
    """
    line = np.full(parts, -np.inf, np.float32)
    for one in windows:
        edges = one.start + (one.end - one.start) * np.arange(len(one.cosines) + 1) / len(one.cosines)
        scaled = edges * (parts / duration)
        first = np.clip(np.floor(scaled[:-1] + 1e-6).astype(int), 0, parts - 1)
        last = np.clip(np.ceil(scaled[1:] - 1e-6).astype(int) - 1, first, parts - 1)
        counts = last - first + 1
        touched = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        np.maximum.at(line, touched, np.repeat(one.cosines, counts))
    return tuple(line.tolist())
