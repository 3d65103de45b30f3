"""A run of frames from the middle of a video, without decoding what comes before: to show a moment."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from prvr.data.synthetic.mp4 import import_av
from prvr.video.decode import Frame, VideoFile
from prvr.video.picture import display_matrix

__all__ = ["excerpt"]


def excerpt(
    video: VideoFile, start: float, end: float, *, most: int, rate: float = 30.0, patience: float = 10.0
) -> Iterator[Frame]:
    """The frames that are shown from `start` until before `end`, at least one; time 0 is where a player starts.

    Decoding begins at the key frame before `start`, or at the beginning where a file cannot be searched.

    Args:
        video: open, of which nothing was read.
        start, end: in seconds; beyond the end of the video it is the last frame.
        most: pixels of the longer side; a larger picture is made smaller.
        rate: the most frames per second; others are left out.
        patience: seconds to look for `start`; then what was found by then stands for it.

    Raises:
        VideoError: no frame can be decoded or converted to colours, or the limits turn out to be exceeded.

    Example:
        >>> with open_video("film.mp4") as video:  # doctest: +SKIP
        ...     pictures = [frame.pixels for frame in excerpt(video, 60.0, 65.0, most=480)]
    """
    until = time.monotonic() + patience
    _seek(video, start)
    held: Any = None
    matrix: Any = None
    count, shown = 0, -1.0
    for begins, _, frame in video._timed():
        matrix, count = matrix if count else display_matrix(frame), count + 1
        if begins <= start:
            held = frame
            if time.monotonic() < until:
                continue
        if held is not None:
            yield Frame(start, video.picture(held, matrix, most))
            held, shown = None, start
        if begins >= end and shown >= 0:
            return
        if begins > start and begins - shown >= 1 / rate - 1e-3:
            shown = float(begins)
            yield Frame(shown, video.picture(frame, matrix, most))
    if held is not None:
        yield Frame(start, video.picture(held, matrix, most))


def _seek(video: VideoFile, start: float) -> None:
    """To the key frame before a time, where the file can be searched; elsewhere it is read from the beginning."""
    if start <= 0:
        return
    av = import_av()
    with suppress(av.FFmpegError, OSError, ValueError, OverflowError):  # the last: a time beyond all numbers of FFmpeg
        video._container.seek(round(start * av.time_base) + (video._container.start_time or 0))
