"""Clips: a part of a video file as a file of its own, copied without loss or re-encoded."""

import math
import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from prvr.data.atomic import write_file
from prvr.errors import DataError, InputError
from prvr_search.films.decode import VideoFile, open_video
from prvr_search.films.info import VideoError, explained

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
"""Endings of file names that a clip can have, and what FFmpeg calls these formats."""

CLIP = "clip by prvr"
"""The comment in the files of clips, which tells them from other videos."""
ENCODERS = {
    "webm": ("libvpx", {"deadline": "realtime", "cpu-used": "8", "crf": "10", "b": "4M"}, "libopus"),
    "mp4": ("libx264", {"preset": "veryfast", "crf": "20"}, "aac"),
}
"""The encoder of pictures, its options and the encoder of sound of a format; others have those of MP4."""

BT709, LIMITED = 1, 1
"""Numbers of the standard for the colours of H.264 that we write: every player honours them."""
_BT601 = 5  # what VP8 has, which cannot say so
_NEAR = 1.0  # seconds before the start within which a key frame may lie, for the streams to be copied
_MILLISECOND = Fraction(1, 1000)
_SOUND_RATE = 48_000  # samples per second, which all of these encoders take


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


@dataclass(frozen=True)
class Encoding:
    """How a part of a video is encoded.

    Args:
        most: pixels of the longer side; a larger picture is scaled down.
        rate: the highest number of frames per second.
        threads: of the encoder of pictures; 0 lets it choose.
        patience: seconds to look for the start where a file is not seekable.
        before_picture: called before each picture; an error that it raises ends the encoding.
    """

    most: int = 7680
    rate: float = 1000.0
    threads: int = 0
    patience: float = math.inf
    before_picture: Callable[[], object] = lambda: None


def write_clip(
    source: Path | str,
    start: float,
    end: float,
    target: Path | str,
    *,
    exact: bool | None = None,
    force: bool = False,
) -> VideoClip:
    """Writes a part of a video file as a file of its own, which appears whole or not at all.

    Where a key frame that can be decoded alone lies within a second before `start`, the packets of the picture and of
    the first sound are copied from it on, in no more time than reading them takes and without a loss. Otherwise, and
    where the format of the clip does not take them, the pictures are re-encoded (H.264; VP8 in WebM), upright and at
    most 4K, with the sound as AAC or Opus.

    Args:
        source: the video file.
        start, end: in seconds from its start; the clip ends with the video at the latest.
        target: the file to write. Its ending chooses the format, one of `CONTAINERS`; folders are made.
        exact: True: always re-encode, so that the clip starts at `start`. False: copy from the key frame before
            `start`, however far away it is.
        force: overwrite an existing file.

    Raises:
        ValueError: `start` and `end` are no part of a video, or the ending of `target` is none of `CONTAINERS`.
        DataError: the file exists and `force` is False, it is the video itself, or it cannot be written.
        VideoError: the video is missing, no video, beyond the limits, shorter than `start`, or cannot be decoded.

    Examples:
        >>> write_clip("beach.mp4", 12.0, 17.5, "wave.mp4").start  # doctest: +SKIP
        11.6
    """
    source, target = Path(source), Path(target).expanduser()
    if not 0 <= start < end < math.inf:
        raise InputError(f"a clip from {start} to {end} s: expected a start from 0 and an end after it")
    if target.suffix.lower() not in CONTAINERS:
        raise InputError(f"{target}: expected a name that ends in {', '.join(CONTAINERS)}")
    clips: list[VideoClip] = []

    def expect_free() -> None:
        if not force and target.exists():
            raise DataError(f"{target}: already exists. Choose another name, or overwrite it with --force.")

    def write(file: BinaryIO) -> None:
        clips.append(write_part(video, start, end, target, file, exact))
        expect_free()  # another process may have been faster

    with open_video(source) as video:
        if target.exists() and target.samefile(source):
            raise DataError(f"{target}: is the video itself. Choose another name.")
        expect_free()
        write_file(target, write)
    return clips[-1]


def write_part(
    video: VideoFile,
    start: float,
    end: float,
    target: Path,
    file: BinaryIO,
    exact: bool | None = None,
    encoding: Encoding = Encoding(),
) -> VideoClip:
    """Writes a part of an open video into an open file: copied where its format takes that, else re-encoded.

    Args:
        video: of [open_video][prvr_search.films.decode.open_video].
        start, end: in seconds.
        target: the name of the file, whose ending is one of `CONTAINERS`.
        file: to write to.
        exact: as of `write_clip`.
        encoding: if it is re-encoded.

    Raises:
        VideoError: it cannot be read, or is shorter than `start`; or as of `encode_part`.
        OSError: the disk is full.
    """
    first = _start_of_copy(video, start, exact)
    kind = CONTAINERS[target.suffix.lower()]
    if first is not None:
        with suppress(VideoError):  # the format of the clip does not take them
            last, has_sound = _copy(video, first, end, file, kind)
            return VideoClip(target, float(first), last, has_sound, True)
    file.seek(0)
    file.truncate()
    last, has_sound = encode_part(video, start, end, file, kind, encoding)
    return VideoClip(target, start, last, has_sound, False)


def _start_of_copy(video: VideoFile, start: float, exact: bool | None) -> Fraction | None:
    """When the key frame is shown from which on a part is copied, in seconds; None: it is re-encoded."""
    length, first = video.info.duration, None if exact else video.key_frame(start)
    if first is not None and exact is None and start - first > _NEAR:
        first = None
    back = _NEAR
    while first is not None and not video.stands_alone(first):
        before = video.key_frame(max(0.0, float(first) - back)) if exact is False else None
        first, back = before if before is not None and before < first else None, 2 * back
    if length and start >= length:
        reason = f"it lasts {length:.2f} s, the clip starts at {start:.2f} s"
        raise VideoError(video.path, reason, "Name an earlier time.")
    return first


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


def _copy(video: VideoFile, first: Fraction, end: float, file: BinaryIO, kind: str) -> tuple[float, bool]:
    """Copies packets from a key frame on; what it gives and raises is that of `encode_part`."""
    import av

    with explained(video.path, "cannot be copied"), av.open(file, "w", format=kind) as container:
        container.metadata["comment"] = CLIP
        streams = {stream.index: container.add_stream_from_template(stream, opaque=True) for stream in video.streams}
        container.start_encoding()
        last = float(first)
        for time, packet in video.packets(first, end):
            if packet.stream.type == "video":
                last = max(last, float(time + (packet.duration or 0) * packet.time_base))
            packet.stream = streams[packet.stream.index]
            container.mux(packet)
    return last, len(streams) > 1


def encode_part(
    video: VideoFile, start: float, end: float, file: BinaryIO, kind: str, encoding: Encoding
) -> tuple[float, bool]:
    """Encodes a part of an open video with the first sound, upright, into a file.

    Args:
        video: of [open_video][prvr_search.films.decode.open_video].
        start, end: in seconds from its start.
        file: to write to.
        kind: the format, as FFmpeg calls it.
        encoding: size, rate and time.

    Returns:
        when the part ends, in seconds from the start of the video, and whether it has sound.

    Raises:
        VideoError: the video cannot be decoded, or the encoder does not take its pictures.
        OSError: the disk is full.
    """
    import av

    codec, options, sound_codec = ENCODERS.get(kind, ENCODERS["mp4"])
    space = _BT601 if kind == "webm" else BT709
    with closing(video.again()) as sound_file, explained(video.path, "it cannot be encoded", "Choose another format."):
        frames = video.excerpt(start, end, most=encoding.most, rate=encoding.rate, patience=encoding.patience)
        sound = sound_file.sound(start, end, encoding.patience)
        first, first_sound = next(frames), [*islice(sound, 1)]
        last, stamp = start, -1
        with av.open(file, "w", format=kind) as container:
            container.metadata["comment"] = CLIP
            pictures: Any = container.add_stream(codec, rate=30, options=options)
            pictures.height, pictures.width = (side & ~1 for side in first.pixels.shape[:2])  # even
            if not pictures.height or not pictures.width:
                raise ValueError("the picture is one pixel wide")
            pictures.pix_fmt, pictures.time_base = "yuv420p", _MILLISECOND
            pictures.codec_context.time_base, pictures.codec_context.thread_count = _MILLISECOND, encoding.threads
            if space == BT709:
                say_709(pictures)
            voice: Any = None
            for _, samples in first_sound:
                voice = container.add_stream(sound_codec, rate=_SOUND_RATE)
                voice.layout = "mono" if samples.layout.nb_channels == 1 else "stereo"
            for time, part in merge(chain([first], frames), chain(first_sound, sound), key=itemgetter(0)):
                if isinstance(part, np.ndarray):
                    encoding.before_picture()
                    frame = av.VideoFrame.from_ndarray(part, format="rgb24")
                    frame = frame.reformat(pictures.width, pictures.height, "yuv420p", dst_colorspace=space)
                    last, stamp = time, max(stamp + 1, round(1000 * (time - start)))
                    frame.pts, frame.time_base = stamp, _MILLISECOND
                    container.mux(pictures.encode(frame))
                else:
                    part.pts, part.time_base = round((time - start) * part.sample_rate), Fraction(1, part.sample_rate)
                    container.mux(voice.encode(part))
            for stream in filter(None, (pictures, voice)):
                container.mux(stream.encode(None))
    length = video.info.duration
    return min(end, max(length, last)) if length else end, voice is not None


def say_709(stream: Any) -> None:
    """Lets a new stream of PyAV say that its colours are those of BT.709, in limited range."""
    codec = stream.codec_context
    codec.colorspace = codec.color_primaries = codec.color_trc = BT709
    codec.color_range = LIMITED
