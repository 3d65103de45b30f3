"""Small pictures of moments, for pages of results and for plots."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import UInt8

from prvr.errors import InputError
from prvr_search.films import Limits, open_video

_WIDEST = 1920
_QUALITY = 80


def thumbnail(source: Path | str | BinaryIO, seconds: float, width: int = 320, limits: Limits | None = None) -> bytes:
    """What a video shows at a time, as a small JPEG.

    The file is jumped in: the cost is that of the frames since the last key frame that can be decoded alone.
    The picture is upright and fits a square of `width` pixels; it is never made larger than it was. Where nothing can
    be decoded at that time, as beyond the break of a truncated file, the last picture before that time is shown.

    Args:
        source: the video file, or one that is open.
        seconds: the time; beyond the end, the last picture is shown.
        width: longest side of the picture in pixels, 16 to 1920.
        limits: what the file may ask for; default: [Limits][prvr_search.films.Limits]().

    Returns:
        the content of a JPEG file.

    Raises:
        VideoError: the file is missing, no video, beyond the limits, or none of its frames can be decoded.
        ValueError: `seconds` is no time from 0, or `width` is out of range.

    Examples:
        >>> thumbnail("beach.mp4", 12.5)[:3]  # doctest: +SKIP
        b'\\xff\\xd8\\xff'
    """
    if not 0 <= seconds < math.inf or not 16 <= width <= _WIDEST:
        raise InputError(f"thumbnail: seconds={seconds}, width={width}; expected a time from 0 and 16 to {_WIDEST}")
    from PIL import Image  # of matplotlib

    with open_video(source, limits) as video:
        time = min(seconds, video.info.duration or seconds)
        frame = next(video.excerpt(time, time, most=width))
    content = io.BytesIO()
    Image.fromarray(frame.pixels).save(content, "JPEG", quality=_QUALITY, optimize=True)
    return content.getvalue()


def frames_of(films: Path, count: int, width: int) -> Callable[[str, float, float], UInt8[np.ndarray, "k h w 3"]]:
    """Frames of moments of video files that are named by ids.

    Args:
        films: a folder of video files, looked through with all folders in it.
        count: the number of frames of each moment, k.
        width: their longest side in pixels.

    Returns:
        What gives the frames, in order, of a video's id and the start and end of the moment in seconds.

    Raises:
        InputError: there is no such folder, or later no such file.
    """
    if not films.is_dir():
        raise InputError(f"{films}: no such folder. Expected one with a video file for each id, such as ID.mp4")
    paths = {path.stem: path for path in sorted(films.rglob("*")) if path.is_file()}

    def filmed(video_id: str, start: float, end: float) -> np.ndarray:
        if video_id not in paths:
            raise InputError(f"{films}: no file is named {video_id}, the id of a video in the plot")
        with open_video(paths[video_id]) as video:
            times = start + (np.arange(count) + 0.5) / count * (end - start)
            return np.stack([next(video.excerpt(t, t, most=width)).pixels for t in times.tolist()])

    return filmed
