"""Small pictures of moments, for pages of results."""

import io
import math
from pathlib import Path

from prvr.errors import InputError
from prvr.video import Frame, Limits, VideoError, open_video

_WIDEST = 1920
_QUALITY = 80


def thumbnail(path: Path | str, seconds: float, *, width: int = 320, limits: Limits | None = None) -> bytes:
    """What a video shows at a time, as a small JPEG.

    The file is jumped in: the cost is that of the frames since the last key frame that can be decoded alone.
    The picture is upright and fits a square of `width` pixels; it is never made larger than it was. Where nothing can
    be decoded at that time, as beyond the break of a truncated file, it is the first picture of the video.

    Args:
        path: the video file.
        seconds: the time; beyond the end, the last picture is shown.
        width: longest side of the picture in pixels, 16 to 1920.
        limits: what the file may ask for; default: [Limits][prvr.video.Limits]().

    Returns:
        the content of a JPEG file.

    Raises:
        VideoError: the file is missing, no video, beyond the limits, or none of its frames can be decoded.
        ValueError: `seconds` is no time from 0, or `width` is out of range.
        prvr.MissingExtraError: PyAV is not installed.

    Examples:
        >>> thumbnail("beach.mp4", 12.5)[:3]  # doctest: +SKIP
        b'\\xff\\xd8\\xff'
    """
    if not 0 <= seconds < math.inf or not 16 <= width <= _WIDEST:
        raise InputError(f"thumbnail: seconds={seconds}, width={width}; expected a time from 0 and 16 to {_WIDEST}")
    from PIL import Image  # of matplotlib

    try:
        frame = _frame(path, seconds, width, limits)
    except VideoError:
        if not seconds:
            raise
        frame = _frame(path, 0.0, width, limits)
    content = io.BytesIO()
    Image.fromarray(frame.pixels).save(content, "JPEG", quality=_QUALITY, optimize=True)
    return content.getvalue()


def _frame(path: Path | str, seconds: float, width: int, limits: Limits | None) -> Frame:
    with open_video(path, limits) as video:
        time = min(seconds, video.info.duration or seconds)
        return next(video.excerpt(time, time, most=width))
