"""Pictures and previews of indexed videos: made when they are asked for, kept while there is room."""

import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prvr.data.synthetic.mp4 import import_av
from prvr.serve.catalogue import FileRefused
from prvr.serve.limits import ServeLimits
from prvr.video import VideoError, open_video

__all__ = ["PREVIEW_TYPES", "ROUNDED", "ByteCache", "encode_preview", "preview_kinds"]

Kind = Literal["mp4", "webm"]
PREVIEW_TYPES: dict[str, str] = {"mp4": "video/mp4", "webm": "video/webm"}
_ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "mp4": ("libx264", {"preset": "veryfast", "crf": "26", "g": "30"}),
    "webm": ("libvpx", {"deadline": "realtime", "cpu-used": "8", "b": "1M", "g": "30"}),
}
ROUNDED = 0.001
"""Seconds that a preview may be too long: times in addresses are rounded."""
_MILLISECOND = Fraction(1, 1000)


class ByteCache:
    """Files that were made, by what they were made of; those that were not used for longest go first.

    Args:
        size: of all, in bytes; 0: nothing is kept.
    """

    def __init__(self, size: int) -> None:
        self._left, self._known, self._lock = size, OrderedDict[tuple[Any, ...], bytes](), threading.Lock()

    def get(self, key: tuple[Any, ...], make: Callable[[], bytes]) -> bytes:
        """What was made of this, or is made now."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        made = make()
        with self._lock:
            if key not in self._known:
                self._known[key] = made
                self._left -= len(made)
            while self._left < 0:
                self._left += len(self._known.popitem(last=False)[1])
        return made


def preview_kinds() -> tuple[str, ...]:
    """What this PyAV can encode."""
    known = import_av().codecs_available
    return tuple(kind for kind, (name, _) in _ENCODERS.items() if name in known)


def encode_preview(path: Path, start: float, end: float, kind: Kind, limits: ServeLimits) -> bytes:
    """A part of a video as a small file that browsers play, without sound.

    Args:
        path: the video.
        start, end: in seconds.
        kind: H.264 in MP4, or VP8 in WebM.
        limits: of length, of the picture and of time.

    Raises:
        FileRefused: it would be too long, takes too long, or there is no picture in it.
    """
    if not 0 <= start < end or end - start > limits.preview_seconds + ROUNDED:
        raise FileRefused(422, f"expected 0 <= start < end and at most {limits.preview_seconds:g} s")
    if kind not in preview_kinds():
        raise FileRefused(501, f"this server cannot make {kind} previews")
    until = time.monotonic() + limits.media_seconds
    target = io.BytesIO()
    try:
        with open_video(path, limits.video) as video:
            frames = video.excerpt(start, end, most=limits.preview_pixels, patience=limits.media_seconds / 2)
            _write(target, frames, start, kind, until)
    except VideoError as error:
        raise FileRefused(415, f"no preview can be made: {error.reason}") from error
    except import_av().FFmpegError as error:  # of the encoder: a picture that it does not take
        raise FileRefused(415, f"no preview can be made (FFmpeg: {error.strerror})") from error
    return target.getvalue()


def _write(target: io.BytesIO, frames: Any, start: float, kind: Kind, until: float) -> None:
    av = import_av()
    name, options = _ENCODERS[kind]
    with av.open(target, "w", format=kind) as container:
        stream: Any = None
        last = -1
        for frame in frames:
            if time.monotonic() > until:
                raise FileRefused(503, "a preview of this video takes too long")
            pixels = np.ascontiguousarray(frame.pixels[: frame.pixels.shape[0] & ~1, : frame.pixels.shape[1] & ~1])
            if stream is None:
                if not pixels.size:
                    raise FileRefused(415, "no preview can be made: the picture is one pixel wide")
                stream = container.add_stream(name, rate=30, options=options)
                stream.height, stream.width, stream.pix_fmt = *pixels.shape[:2], "yuv420p"
                stream.time_base = stream.codec_context.time_base = _MILLISECOND
                stream.codec_context.thread_count = 1
            if pixels.shape[:2] != (stream.height, stream.width):
                break  # the picture changes its size in the middle
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            picture.pts, picture.time_base = max(last + 1, round(1000 * (frame.time - start))), _MILLISECOND
            last = picture.pts
            container.mux(stream.encode(picture))
        if stream is not None:
            container.mux(stream.encode(None))
