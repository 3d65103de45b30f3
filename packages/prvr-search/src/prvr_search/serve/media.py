"""What is sent of a video file: a picture, a preview that browsers play."""

import io
import time
from pathlib import Path
from types import ModuleType
from typing import Literal

from starlette.exceptions import HTTPException

from prvr.errors import require
from prvr_search.films import VideoError
from prvr_search.films.clips import ENCODERS, Encoding, encode_part
from prvr_search.films.thumbnails import thumbnail
from prvr_search.serve.settings import ServeLimits

PreviewKind = Literal["mp4", "webm"]
PREVIEW_TYPES: dict[PreviewKind, str] = {"mp4": "video/mp4", "webm": "video/webm"}


def encode_thumbnail(path: Path, at: float, width: int, limits: ServeLimits) -> bytes:
    """A JPEG of the frame that a video shows at a time.

    Args:
        path: the video.
        at: time in seconds.
        width: the width of the picture in pixels.
        limits: limits of what is decoded.

    Raises:
        HTTPException: no frame can be decoded.
    """
    try:
        return thumbnail(path, at, width=width, limits=limits.video)
    except VideoError as error:
        raise HTTPException(415, f"cannot make a picture: {error.reason}") from error


def preview_kinds() -> list[PreviewKind]:
    """The kinds of preview that the installed PyAV can encode."""
    return [kind for kind in PREVIEW_TYPES if ENCODERS[kind][0] in _av().codecs_available]


def encode_preview(path: Path, start: float, end: float, kind: PreviewKind, limits: ServeLimits) -> bytes:
    """A part of a video as a small file that browsers play.

    Args:
        path: the video.
        start, end: where the part starts and ends, in seconds.
        kind: H.264 in MP4, or VP8 in WebM.
        limits: maximum size and encoding time.

    Raises:
        HTTPException: the preview takes too long to encode, or has no picture.
    """
    if kind not in preview_kinds():
        raise HTTPException(501, f"this server cannot make {kind} previews")
    until = time.monotonic() + limits.media_seconds

    def expect_time() -> None:
        if time.monotonic() > until:
            raise HTTPException(503, "making a preview of this video takes too long")

    encoding = Encoding(limits.preview_pixels, 30.0, 1, limits.media_seconds / 2, expect_time)
    target = io.BytesIO()
    try:
        encode_part(path, start, end, target, kind, encoding, limits.video)
    except VideoError as error:
        raise HTTPException(415, f"cannot make a preview: {error.reason}") from error
    return target.getvalue()


def _av() -> ModuleType:
    return require("av", "prvr-search", "Encoding previews")
