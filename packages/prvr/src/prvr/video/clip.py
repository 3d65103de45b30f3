"""Clips: a part of a video file as a file of its own."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import UInt8

from prvr.data.files import write_file
from prvr.errors import DISK_FULL, DataError, InputError, require
from prvr.video.decode import Limits, VideoError, VideoFile, open_video, read_faults

CONTAINERS = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
    ".webm": "webm",
}
"""Endings of file names that a clip can have, and what FFmpeg calls these formats."""

_MILLISECOND = Fraction(1, 1000)
_H264 = ("libx264", {"preset": "veryfast", "crf": "20"}, "aac")
_ENCODERS = {"webm": ("libvpx", {"deadline": "realtime", "cpu-used": "8", "b": "4M"}, "libopus")}
_SOUND_RATE = 48_000  # samples per second, which all of these encoders take
_LONGEST_SIDE = 7680  # pixels of a picture that is encoded


@dataclass(frozen=True)
class VideoClip:
    """A clip that was written.

    Args:
        path: the file.
        start, end: the part of the film that it holds, in seconds from the start of the film.
        sound: whether it has sound.
    """

    path: Path
    start: float
    end: float
    sound: bool


def write_clip(
    film: Path | str,
    start: float,
    end: float,
    target: Path | str,
    *,
    force: bool = False,
    limits: Limits | None = None,
) -> VideoClip:
    """Writes a part of a video file as a file of its own, which appears whole or not at all.

    The pictures are encoded anew (H.264; VP8 in WebM), upright and at most 4K, from the one that is shown at `start`
    on; the first sound is encoded as AAC or Opus.

    Args:
        film: the video file.
        start, end: in seconds from its start; the clip ends with the film at the latest.
        target: the file to write. Its ending chooses the format, one of `CONTAINERS`; folders are made.
        force: replace a file that stands there.
        limits: what the film may ask for; default: [Limits][prvr.video.Limits]().

    Raises:
        ValueError: `start` and `end` are no part of a film, or the ending of `target` is none of `CONTAINERS`.
        DataError: a file stands there and `force` is False, it is the film itself, or it cannot be written.
        VideoError: the film is missing, no video, beyond the limits, shorter than `start`, or cannot be decoded.
        prvr.MissingExtraError: PyAV is not installed.

    Examples:
        >>> write_clip("beach.mp4", 12.0, 17.5, "wave.mp4").sound  # doctest: +SKIP
        True
    """
    film, target = Path(film), Path(target).expanduser()
    if not 0 <= start < end < float("inf"):
        raise InputError(f"a clip from {start} to {end} s: expected a start from 0 and an end after it")
    if target.suffix.lower() not in CONTAINERS:
        raise InputError(f"{target}: expected a name that ends in {', '.join(CONTAINERS)}")

    def expect_free() -> None:
        if not force and target.exists():
            raise DataError(f"{target}: exists already. Name another file, or replace it with --force.")

    with open_video(film, limits) as video, open_video(film, limits) as heard:
        length = video.info.duration
        if length is not None and start >= length:
            reason = f"it lasts {length:.2f} s, the clip starts at {start:.2f} s"
            raise VideoError(film, reason, "Name an earlier time.")
        if target.exists() and target.samefile(film):
            raise DataError(f"{target}: is the film itself. Name another file.")
        made: list[VideoClip] = []

        def write(file: BinaryIO) -> None:
            made.append(_encode(video, heard, VideoClip(target, start, end, False), file))
            expect_free()  # another process may have been faster

        expect_free()
        write_file(target, write)
    return made[0]


def clip_name(film: Path | str, start: float, end: float) -> str:
    """A file name for a clip: that of the film and the moment, in the format of the film where a clip can have it.

    Examples:
        >>> clip_name("films/beach.mp4", 12.0, 17.25), clip_name("old.avi", 3600.0, 3725.5)
        ('beach 0m12s-0m17.25s.mp4', 'old 1h00m00s-1h02m05.5s.mkv')
    """
    film = Path(film)
    stem = film.stem
    while len(os.fsencode(stem)) > 180:  # file systems take 255 bytes
        stem = stem[:-1]
    ending = film.suffix if film.suffix.lower() in CONTAINERS else ".mkv"
    return f"{stem} {_stamp(start)}-{_stamp(end)}{ending}"


def _stamp(seconds: float) -> str:
    whole, rest = divmod(round(seconds * 100), 100)
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    part = f".{rest:02}".rstrip("0") if rest else ""
    return (f"{hours}h{minutes:02}m" if hours else f"{minutes}m") + f"{left:02}{part}s"


class PictureEncoder:
    """Encodes pictures into a new stream of a container, as it is opened for writing by PyAV.

    Args:
        container: to write to. Streams of other kinds are added before the first picture is put.
        codec: the name of an encoder of FFmpeg.
        options: of the encoder.
        shape: of the first picture; others are scaled to it. Odd sides lose a row or column.
        threads: of the encoder; 0 lets it choose.

    Raises:
        ValueError: the picture is one pixel wide or high.
    """

    def __init__(
        self, container: Any, codec: str, options: dict[str, str], shape: tuple[int, ...], threads: int = 0
    ) -> None:
        height, width = shape[0] & ~1, shape[1] & ~1
        if not height or not width:
            raise InputError("the picture is one pixel wide")
        self._container, self._last = container, -1
        self._stream = container.add_stream(codec, rate=30, options=options)
        self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
        self._stream.time_base = self._stream.codec_context.time_base = _MILLISECOND
        self._stream.codec_context.thread_count = threads

    def put(self, pixels: UInt8[np.ndarray, "h w 3"], seconds: float) -> None:
        """Encodes a picture, shown from this time of the clip on; times do not go back.

        Args:
            pixels: red green blue.
            seconds: from the start of the clip.
        """
        even = np.ascontiguousarray(pixels[: pixels.shape[0] & ~1, : pixels.shape[1] & ~1])
        picture = (
            _av()
            .VideoFrame.from_ndarray(even, format="rgb24")
            .reformat(width=self._stream.width, height=self._stream.height, format="yuv420p")
        )
        self._last = max(self._last + 1, round(1000 * seconds))
        picture.pts, picture.time_base = self._last, _MILLISECOND
        self._container.mux(self._stream.encode(picture))

    def finish(self) -> None:
        """Writes what the encoder still holds."""
        self._container.mux(self._stream.encode(None))


def _encode(video: VideoFile, heard: VideoFile, clip: VideoClip, file: BinaryIO) -> VideoClip:
    """Writes a clip from the pictures of one open file and the sound of another; returns what it came to hold."""
    kind = CONTAINERS[clip.path.suffix.lower()]
    codec, options, sound_codec = _ENCODERS.get(kind, _H264)
    last = clip.start
    try:
        frames = video.excerpt(clip.start, clip.end, most=_LONGEST_SIDE, rate=1000.0, patience=float("inf"))
        first = next(frames)
        with _av().open(file, "w", format=kind) as container:
            pictures = PictureEncoder(container, codec, options, first.pixels.shape)
            sound = _encoded_sound(container, sound_codec, heard.sound(clip.start, clip.end), clip.start)
            heard_until = next(sound, None)  # adds the stream, before the first picture is written
            with_sound = heard_until is not None
            for frame in chain([first], frames):
                pictures.put(frame.pixels, frame.time - clip.start)
                last = frame.time
                while heard_until is not None and heard_until <= last:
                    heard_until = next(sound, None)
            pictures.finish()
            for _ in sound:
                pass
    except read_faults() as error:
        if isinstance(error, DataError | InputError):
            raise
        if (code := getattr(error, "errno", None)) in DISK_FULL:  # the error of the file system behind that of FFmpeg
            raise OSError(code, os.strerror(code)) from error
        said = getattr(error, "strerror", None) or str(error)
        raise VideoError(video.path, f"no clip can be made of it (FFmpeg: {said})", "Choose another format.") from error
    length = video.info.duration
    end = clip.end if length is None else min(clip.end, max(length, last))
    return replace(clip, end=end, sound=with_sound)


def _encoded_sound(container: Any, codec: str, heard: Iterator[tuple[float, Any]], start: float) -> Iterator[float]:
    """Encodes sound into a new stream, a frame at a time; yields the time of each before it is encoded."""
    stream: Any = None
    for time, frame in heard:
        if stream is None:
            stream = container.add_stream(codec, rate=_SOUND_RATE)
            stream.layout = "mono" if frame.layout.nb_channels == 1 else "stereo"
        yield time
        frame.pts, frame.time_base = round((time - start) * frame.sample_rate), Fraction(1, frame.sample_rate)
        container.mux(stream.encode(frame))
    if stream is not None:
        container.mux(stream.encode(None))


def _av() -> ModuleType:
    return require("av", "video", "Cutting clips")
