"""What a video file is made of: its container and codecs, by the names that people and browsers know them by."""

from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from prvr.serve.schema import FormatResponse, FormatsResponse
from prvr.serve.settings import ServeLimits
from prvr.video import VideoError, open_video

_CONTAINERS = {
    "mov,mp4,m4a,3gp,3g2,mj2": ("MP4", "video/mp4"),
    "matroska,webm": ("Matroska", "video/x-matroska"),
    "ogg": ("Ogg", "video/ogg"),
    "avi": ("AVI", None),
    "mpegts": ("MPEG-TS", "video/mp2t"),
    "mpeg": ("MPEG-PS", None),
    "mpegvideo": ("bare MPEG", None),
    "h264": ("bare H.264", None),
    "flv": ("Flash Video", None),
    "asf": ("Windows Media", None),
}
"""By FFmpeg's name: the name, and what `canPlayType` of a browser takes; None: no browser knows it."""
_WEBM = ("WebM", "video/webm")
_CODECS = {
    "h264": ("H.264", 'video/mp4; codecs="avc1.42E01E"'),
    "hevc": ("H.265 (HEVC)", 'video/mp4; codecs="hvc1.1.6.L93.B0"'),
    "av1": ("AV1", 'video/mp4; codecs="av01.0.05M.08"'),
    "vp8": ("VP8", 'video/webm; codecs="vp8"'),
    "vp9": ("VP9", 'video/webm; codecs="vp9"'),
    "theora": ("Theora", 'video/ogg; codecs="theora"'),
    "mpeg4": ("MPEG-4 Part 2 (DivX, Xvid)", 'video/mp4; codecs="mp4v.20.8"'),
    "mpeg1video": ("MPEG-1", None),
    "mpeg2video": ("MPEG-2", None),
    "mjpeg": ("Motion JPEG", None),
    "prores": ("ProRes", None),
    "h263": ("H.263", None),
    "flv1": ("Sorenson Spark", None),
    "msmpeg4v3": ("MS-MPEG-4 (DivX 3)", None),
    "wmv2": ("Windows Media Video", None),
    "wmv3": ("Windows Media Video", None),
    "vc1": ("VC-1", None),
    "aac": ("AAC", 'audio/mp4; codecs="mp4a.40.2"'),
    "mp3": ("MP3", "audio/mpeg"),
    "mp2": ("MP2", None),
    "opus": ("Opus", 'audio/webm; codecs="opus"'),
    "vorbis": ("Vorbis", 'audio/webm; codecs="vorbis"'),
    "flac": ("FLAC", "audio/flac"),
    "ac3": ("AC-3", 'audio/mp4; codecs="ac-3"'),
    "eac3": ("E-AC-3", 'audio/mp4; codecs="ec-3"'),
    "dts": ("DTS", None),
}
"""The same of codecs. Others have FFmpeg's name, and browsers know none of them but plain samples (PCM)."""


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
    webm = name == "matroska,webm" and path.suffix.lower() == ".webm"
    told = _WEBM if webm else _CONTAINERS.get(name, (name, None))
    return FormatsResponse(container=_response(told), picture=picture, sound=sound[0] if sound else None)


def _codec(stream: Any) -> FormatResponse:
    name = stream.codec_context.codec.canonical_name
    return _response(_CODECS.get(name, (name, 'audio/wav; codecs="1"' if name.startswith("pcm_") else None)))


def _response(told: tuple[str, str | None]) -> FormatResponse:
    return FormatResponse(name=told[0], type=told[1])
