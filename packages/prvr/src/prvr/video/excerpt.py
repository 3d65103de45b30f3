"""Clips: a part of a video file as a file of its own, copied without loss or re-encoded."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import UInt8

from prvr.data.atomic import write_file
from prvr.errors import DISK_FULL, DataError, InputError, require
from prvr.video.decode import Limits, VideoError, open_video, read_faults

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
        start, end: the part of the video that it holds, in seconds from the start of the video. Where it was copied, it
            starts at the key frame before the time that was asked for.
        sound: whether it has sound.
        copied: whether the streams were copied as they are; otherwise they were re-encoded.
    """

    path: Path
    start: float
    end: float
    sound: bool
    copied: bool


class _NotCopied(Exception):
    """The format of the clip does not take the streams of the video as they are."""


def write_clip(
    source: Path | str,
    start: float,
    end: float,
    target: Path | str,
    *,
    exact: bool = False,
    force: bool = False,
    limits: Limits | None = None,
) -> VideoClip:
    """Writes a part of a video file as a file of its own, which appears whole or not at all.

    The packets of the picture and of the first sound are copied from the key frame before `start` on, in no more time
    than reading them takes and without a loss. Where the format of the clip does not take them, or if `exact` is set,
    the pictures are re-encoded (H.264; VP8 in WebM), upright and at most 4K, with the sound as AAC or Opus.

    Args:
        source: the video file.
        start, end: in seconds from its start; the clip ends with the video at the latest.
        target: the file to write. Its ending chooses the format, one of `CONTAINERS`; folders are made.
        exact: start with the frame that is shown at `start`, not at the key frame before.
        force: overwrite an existing file.
        limits: what the video may ask for; default: [Limits][prvr.video.Limits]().

    Raises:
        ValueError: `start` and `end` are no part of a video, or the ending of `target` is none of `CONTAINERS`.
        DataError: the file exists and `force` is False, it is the video itself, or it cannot be written.
        VideoError: the video is missing, no video, beyond the limits, shorter than `start`, or cannot be decoded.
        prvr.MissingExtraError: PyAV is not installed.

    Examples:
        >>> write_clip("beach.mp4", 12.0, 17.5, "wave.mp4").start  # doctest: +SKIP
        10.4
    """
    source, target = Path(source), Path(target).expanduser()
    if not 0 <= start < end < float("inf"):
        raise InputError(f"a clip from {start} to {end} s: expected a start from 0 and an end after it")
    kind = CONTAINERS.get(target.suffix.lower())
    if kind is None:
        raise InputError(f"{target}: expected a name that ends in {', '.join(CONTAINERS)}")
    _av()
    with open_video(source, limits) as video:
        length = video.info.duration
    if length is not None and start >= length:
        raise VideoError(source, f"it lasts {length:.2f} s, the clip starts at {start:.2f} s", "Name an earlier time.")
    if target.exists() and target.samefile(source):
        raise DataError(f"{target}: is the video itself. Choose another name.")
    clips: list[VideoClip] = []

    def expect_free() -> None:
        if not force and target.exists():
            raise DataError(f"{target}: already exists. Choose another name, or overwrite it with --force.")

    def write(file: BinaryIO, copied: bool) -> None:
        clips.append((_copy if copied else _encode)(source, start, end, target, file, limits))
        expect_free()  # another process may have been faster

    expect_free()
    if not exact:
        try:
            write_file(target, lambda file: write(file, True))
            return clips[-1]
        except _NotCopied:
            clips.clear()
    write_file(target, lambda file: write(file, False))
    return clips[-1]


def clip_name(source: Path | str, start: float, end: float) -> str:
    """A file name for a clip: that of the video and the moment, in the format of the video where a clip can have it.

    Examples:
        >>> clip_name("videos/beach.mp4", 12.0, 17.25), clip_name("old.avi", 3600.0, 3725.5)
        ('beach 0m12s-0m17.25s.mp4', 'old 1h00m00s-1h02m05.5s.mkv')
    """
    source = Path(source)
    stem = source.stem
    while len(os.fsencode(stem)) > 180:  # file systems take 255 bytes
        stem = stem[:-1]
    ending = source.suffix if source.suffix.lower() in CONTAINERS else ".mkv"
    return f"{stem} {_stamp(start)}-{_stamp(end)}{ending}"


def _stamp(seconds: float) -> str:
    whole, rest = divmod(round(seconds * 100), 100)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    part = f".{rest:02}".rstrip("0") if rest else ""
    return (f"{hours}h{minutes:02}m" if hours else f"{minutes}m") + f"{seconds:02}{part}s"


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


def _copy(source: Path, start: float, end: float, target: Path, file: BinaryIO, limits: Limits | None) -> VideoClip:
    with open_video(source, limits) as video:
        first = video.key_frame(start)
    if first is None:
        raise _NotCopied
    try:
        with (
            open_video(source, limits) as video,
            _av().open(file, "w", format=CONTAINERS[target.suffix.lower()]) as container,
        ):
            streams = {
                stream.index: container.add_stream_from_template(stream, opaque=True) for stream in video.streams
            }
            container.start_encoding()
            last = float(first)
            for time, packet in video.packets(first, end):
                if packet.stream.type == "video":
                    last = max(last, float(time + (packet.duration or 0) * packet.time_base))
                packet.stream = streams[packet.stream.index]
                container.mux(packet)
    except read_faults() as error:
        _expect_room(error)
        raise _NotCopied from error
    return VideoClip(target, float(first), last, len(streams) > 1, True)


def _encode(source: Path, start: float, end: float, target: Path, file: BinaryIO, limits: Limits | None) -> VideoClip:
    kind = CONTAINERS[target.suffix.lower()]
    codec, options, sound_codec = _ENCODERS.get(kind, _H264)
    last = start
    try:
        with open_video(source, limits) as video, open_video(source, limits) as sound_file:
            frames = video.excerpt(start, end, most=_LONGEST_SIDE, rate=1000.0, patience=float("inf"))
            first = next(frames)
            with _av().open(file, "w", format=kind) as container:
                pictures = PictureEncoder(container, codec, options, first.pixels.shape)
                sound = _encoded_sound(container, sound_codec, sound_file.sound(start, end), start)
                sound_time = next(sound, None)  # adds the stream, before the first picture is written
                with_sound = sound_time is not None
                for frame in chain([first], frames):
                    pictures.put(frame.pixels, frame.time - start)
                    last = frame.time
                    while sound_time is not None and sound_time <= last:
                        sound_time = next(sound, None)
                pictures.finish()
                for _ in sound:
                    pass
    except read_faults() as error:
        if isinstance(error, DataError | InputError):
            raise
        _expect_room(error)
        message = getattr(error, "strerror", None) or str(error)
        raise VideoError(source, f"no clip can be made of it (FFmpeg: {message})", "Choose another format.") from error
    length = video.info.duration
    return VideoClip(target, start, end if length is None else min(end, max(length, last)), with_sound, False)


def _encoded_sound(container: Any, codec: str, frames: Iterator[tuple[float, Any]], start: float) -> Iterator[float]:
    """Encodes sound into a new stream, a frame at a time; yields the time of each before it is encoded."""
    stream: Any = None
    for time, frame in frames:
        if stream is None:
            stream = container.add_stream(codec, rate=_SOUND_RATE)
            stream.layout = "mono" if frame.layout.nb_channels == 1 else "stereo"
        yield time
        frame.pts, frame.time_base = round((time - start) * frame.sample_rate), Fraction(1, frame.sample_rate)
        container.mux(stream.encode(frame))
    if stream is not None:
        container.mux(stream.encode(None))


def _expect_room(error: Exception) -> None:
    """Raises the error of the file system that is behind an error of FFmpeg, if the disk is full."""
    code = getattr(error, "errno", None)
    if code in DISK_FULL:
        raise OSError(code, os.strerror(code)) from error


def _av() -> ModuleType:
    return require("av", "video", "Cutting clips")
