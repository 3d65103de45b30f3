"""What is sent of a video file: a picture, a preview that browsers play, what it is made of."""

import io
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from starlette.exceptions import HTTPException

from prvr.errors import require
from prvr_search.serve.schema import FormatResponse, FormatsResponse
from prvr_search.serve.settings import ServeLimits
from prvr_search.thumbnails import thumbnail
from prvr_search.video import VideoError, open_video
from prvr_search.video.excerpt import ENCODERS, Encoding, encode_part

PreviewKind = Literal["mp4", "webm"]
PREVIEW_TYPES: dict[PreviewKind, str] = {"mp4": "video/mp4", "webm": "video/webm"}
_CONTAINERS = {
    "mov,mp4,m4a,3gp,3g2,mj2": ("MP4", "video/mp4"),
    "matroska,webm": ("Matroska", "video/x-matroska"),
    "ogg": ("Ogg", "video/ogg"),
    "mpegts": ("MPEG-TS", "video/mp2t"),
}
"""Those that browsers may know, by FFmpeg's name: the name, and what `canPlayType` of a browser takes."""
_CODECS = {
    "h264": ("H.264", 'video/mp4; codecs="avc1.42E01E"'),
    "hevc": ("H.265 (HEVC)", 'video/mp4; codecs="hvc1.1.6.L93.B0"'),
    "av1": ("AV1", 'video/mp4; codecs="av01.0.05M.08"'),
    "vp8": ("VP8", 'video/webm; codecs="vp8"'),
    "vp9": ("VP9", 'video/webm; codecs="vp9"'),
    "theora": ("Theora", 'video/ogg; codecs="theora"'),
    "mpeg4": ("MPEG-4 Part 2 (DivX, Xvid)", 'video/mp4; codecs="mp4v.20.8"'),
    "aac": ("AAC", 'audio/mp4; codecs="mp4a.40.2"'),
    "mp3": ("MP3", "audio/mpeg"),
    "opus": ("Opus", 'audio/webm; codecs="opus"'),
    "vorbis": ("Vorbis", 'audio/webm; codecs="vorbis"'),
    "flac": ("FLAC", "audio/flac"),
    "ac3": ("AC-3", 'audio/mp4; codecs="ac-3"'),
    "eac3": ("E-AC-3", 'audio/mp4; codecs="ec-3"'),
}
"""The same of codecs. Others have the name that FFmpeg describes them by."""


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


def read_formats(path: Path, limits: ServeLimits) -> FormatsResponse:
    """What a file is made of; nothing is decoded.

    Args:
        path: the video.
        limits: the limits of what is opened.

    Raises:
        HTTPException: it cannot be opened.
    """
    try:
        with open_video(path, limits.video) as video:
            picture, *sound = map(_codec, video.streams)
            name = video.container
    except VideoError as error:
        raise HTTPException(415, f"it cannot be read: {error.reason}") from error
    if name == "matroska,webm" and path.suffix.lower() == ".webm":
        container = ("WebM", "video/webm")
    else:
        container = _CONTAINERS.get(name) or (_av().ContainerFormat(name.partition(",")[0], "r").long_name, None)
    return FormatsResponse(container=_format(*container), picture=picture, sound=sound[0] if sound else None)


def _codec(stream: Any) -> FormatResponse:
    codec = stream.codec_context.codec
    plain_samples = 'audio/wav; codecs="1"' if codec.canonical_name.startswith("pcm_") else None
    return _format(*_CODECS.get(codec.canonical_name, (codec.long_name, plain_samples)))


def _format(name: str, media_type: str | None) -> FormatResponse:
    return FormatResponse(name=name, type=media_type)


def _av() -> ModuleType:
    return require("av", "prvr-search", "Encoding previews")
