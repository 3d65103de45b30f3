"""Long videos as overlapping windows."""

from typing import NamedTuple

from jaxtyping import Float32
from numpy import ndarray

from prvr.errors import InputError

__all__ = ["Window", "cut"]


class Window(NamedTuple):
    """A run of rows of a video: rows `first` to `stop - 1`, and the time that they stand for, in seconds."""

    first: int
    stop: int
    start: float
    end: float

    def of(self, features: Float32[ndarray, "n f"]) -> Float32[ndarray, "_ f"]:
        """The rows."""
        return features[self.first : self.stop]


def cut(rows: int, duration: float, rate: float, window: float | None, stride: float | None) -> list[Window]:
    """The windows of a video: one, if it is not longer than a window; else the last one ends where the video does.

    Args:
        rows: of features, at least one; row k stands for the time from `k / rate` to `(k + 1) / rate`.
        duration: of the video, in seconds.
        rate: rows per second.
        window: seconds; None: the video is one window.
        stride: seconds from the start of one window to that of the next, at most `window`.

    Example:
        >>> [(w.first, w.stop) for w in cut(300, 300.0, 1.0, 120.0, 60.0)]
        [(0, 120), (60, 180), (120, 240), (180, 300)]
        >>> [(w.start, w.end) for w in cut(250, 250.4, 1.0, 120.0, 60.0)]
        [(0.0, 120.0), (60.0, 180.0), (120.0, 240.0), (130.0, 250.4)]
        >>> cut(120, 119.6, 1.0, 120.0, 60.0)
        [Window(first=0, stop=120, start=0.0, end=119.6)]
    """
    if window is None or stride is None:
        return [Window(0, rows, 0.0, duration)]
    size, step = max(1, round(window * rate)), max(1, round(stride * rate))
    if rows <= size:
        return [Window(0, rows, 0.0, duration)]
    firsts = [*range(0, rows - size, step), rows - size]
    ends = [(first + size) / rate for first in firsts[:-1]] + [duration]
    return [Window(first, first + size, first / rate, end) for first, end in zip(firsts, ends, strict=True)]


def check_windows(window: float | None, stride: float | None) -> None:
    """Refuses lengths that no video can be cut into.

    Raises:
        ValueError: one of them is not positive, or there would be gaps between windows.
    """
    if window is None and stride is None:
        return
    if window is None or stride is None or not 0 < stride <= window < float("inf"):
        raise InputError(
            f"window={window}, stride={stride} seconds: expected 0 < stride <= window, or None for both (whole videos)"
        )
