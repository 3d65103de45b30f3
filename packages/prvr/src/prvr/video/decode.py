"""The frames of any video file at a fixed rate, one at a time: a film of hours needs the memory of a few frames."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import UInt8

from prvr.data.synthetic.mp4 import import_av
from prvr.errors import InputError
from prvr.video.errors import VideoError
from prvr.video.picture import Matrix, display_matrix, to_rgb
from prvr.video.sampling import hold

_MEND = "Convert it with another program, or take it out."
_JUMP = 1  # seconds: time stamps that go back by more begin a new part; by less, they are jitter
_BUFFER = 1 << 18
_RATES = (1e-6, 1000.0)  # frames per second that make sense
_MOST_PIXELS = 2**31 - 1  # FFmpeg counts no further
_STREAMS = 256  # more than any recording of television has; each costs memory before the first is read
_THREADS = 16  # as many as FFmpeg would choose
_IN_THREADS = 2**25  # pixels: a frame of 8K is decoded in one thread, each more would hold frames of its own
_ALONE = {"protocol_whitelist": "none"}  # with `_refuse`: no play list or list of parts opens anything else


@dataclass(frozen=True)
class Limits:
    """What a file may ask for; checked before anything of it is decoded, and again while it is.

    Args:
        pixels: of one frame. The default lets 8K pass (7680 x 4320).
        seconds: of the whole video. The default is a day.
        samples: that are taken of it, at the rate that is asked for.
    """

    pixels: int = 7680 * 4320
    seconds: float = 24 * 3600.0
    samples: int = 2**20

    def __post_init__(self) -> None:
        if not 1 <= self.pixels <= _MOST_PIXELS or not 0 < self.seconds < math.inf or not self.samples >= 1:
            raise InputError(
                f"Limits: pixels={self.pixels}, seconds={self.seconds}, samples={self.samples}; expected positive "
                f"numbers, and at most {_MOST_PIXELS:,} pixels"
            )


@dataclass(frozen=True)
class VideoInfo:
    """What a file says about its picture before it is decoded.

    Args:
        width, height: of what is stored, before it is turned upright.
        codec: for example `h264`.
        duration: in seconds; None where the file does not say.
        frame_rate: the average one, per second; None where the file does not say.
    """

    width: int
    height: int
    codec: str
    duration: float | None
    frame_rate: float | None


class Frame(NamedTuple):
    """A sampled frame: the middle of the period that it stands for, in seconds, and its picture.

    Frames that show the same picture have the same array, not a copy of it.
    """

    time: float
    pixels: UInt8[np.ndarray, "h w 3"]


class VideoFile:
    """An open video. Its frames can be read once.

    Attributes:
        info: what the file says.
        warnings: what was wrong with it, complete once all frames are read.
        duration: in seconds; what the file says until all frames are read, then where the last one ends.
    """

    def __init__(self, path: Path, container: Any, stream: Any, limits: Limits) -> None:
        self.path, self.info, self.warnings = path, _info(container, stream), list[str]()
        self.duration = self.info.duration
        self._container, self._stream, self._limits = container, stream, limits
        _check(path, self.info.width, self.info.height, self.info.duration, limits)

    def sample(self, rate: float) -> Iterator[Frame]:
        """What is on the screen in the middle of each of `duration * rate` periods, upright; at least one frame.

        By time stamps, so that a variable frame rate is no matter (`prvr.video.sampling.hold`). Time 0 is where a
        player starts. What is damaged is left out, with a warning. Pictures of more than 4K are made smaller.

        Args:
            rate: frames per second.

        Raises:
            VideoError: no frame can be decoded, or the limits turn out to be exceeded.
            ValueError: the rate is not positive, or beyond all sense.
        """
        check_rate(rate)
        self._check_samples(math.floor((self.info.duration or 0) * rate), rate)
        last: Any = None
        picture = np.empty((0, 0, 3), np.uint8)
        matrix: Matrix | None = None
        for number, (time, frame) in enumerate(hold(self._timed(), Fraction(rate))):
            self._check_samples(number + 1, rate)
            if last is None or frame.rotation != last.rotation:
                matrix = display_matrix(frame)
            if frame is not last:
                last, picture = frame, self.picture(frame, matrix)
            yield Frame(float(time), picture)

    def _check_samples(self, count: int, rate: float) -> None:
        if count > self._limits.samples:
            reason = f"more than {self._limits.samples:,} frames would be taken of it at {rate:g} per second"
            raise VideoError(self.path, reason, "Choose a lower rate, or cut it.")

    def picture(self, frame: Any, matrix: Matrix | None, most: int | None = None) -> UInt8[np.ndarray, "h w 3"]:
        """What is to be seen of a decoded frame, as `prvr.video.picture.to_rgb` makes it.

        Raises:
            VideoError: its colours cannot be converted.
        """
        try:
            return to_rgb(frame, self._stream.sample_aspect_ratio, matrix, most)
        except _faults() as error:
            reason = f"its frames ({frame.format.name}) cannot be converted to colours (FFmpeg: {_short(error)})"
            raise VideoError(self.path, reason, _MEND) from error

    def _timed(self) -> Iterator[tuple[Fraction, Fraction, Any]]:
        """Every frame with its start and length in seconds, starts never going back."""
        # Of the stream: frames that a decoder gives out at the end, or after a mistake in reading, have none.
        unit = self._stream.time_base
        origin = Fraction(self._container.start_time or 0, import_av().time_base)
        pace = self._stream.average_rate or self._stream.guessed_rate
        usual = 1 / pace if pace and pace > 0 else Fraction(0)
        start, length = Fraction(0), Fraction(0)
        count, parts = 0, 0
        for frame in self._decoded():
            count += 1
            found = start + length if frame.pts is None or not unit else frame.pts * unit - origin
            if count > 1 and found < start - _JUMP:
                origin += found - (start + (length or usual))
                found, parts = start + (length or usual), parts + 1
            start = max(found, start)  # also from below 0, where a file begins before it is to be shown
            length = frame.duration * unit if unit and frame.duration and frame.duration > 0 else usual
            _check(self.path, frame.width, frame.height, float(start), self._limits)
            if start + length > self._limits.seconds:
                length = usual
            yield start, length, frame
        self._conclude(count, parts, float(start + length))

    def _conclude(self, count: int, parts: int, end: float) -> None:
        """Once all is read: whether that was all that the file promised."""
        if not count:
            if not self.info.width:  # FFmpeg does not tell the size of a picture that it was told not to decode
                reason = f"its frames have no size that can be read, or more than {self._limits.pixels:,} pixels"
                raise VideoError(self.path, reason, "Scale it down, or raise the limit.")
            raise VideoError(self.path, f"no frame of it can be decoded ({self.info.codec})", _MEND)
        promised = self.info.duration
        if parts:
            self.warnings.append(f"time stamps jump back ({parts}): the parts were put one after the other")
        if promised is not None and end < 0.98 * promised - 1:
            seconds = f"frames end at {end:.1f} s of {promised:.1f} s"
            self.warnings.append(f"{seconds}: truncated or damaged, or only sound goes on")
        self.duration = end or promised

    def _decoded(self) -> Iterator[Any]:
        """Frames in order of showing; what cannot be decoded is counted and left out."""
        av, faults = import_av(), _faults()
        packets = self._container.demux(self._stream)
        damaged, ended = 0, False
        while not ended:
            try:
                packet = next(packets, None)
            except faults as error:
                self.warnings.append(f"reading stopped before the end ({_short(error)})")
                packet = None
            ended = packet is None
            try:
                # Without a packet: the frames that the decoder still holds.
                frames = self._stream.decode(None) if packet is None else packet.decode()
            except av.EOFError:
                continue  # they were given out already
            except faults:
                damaged += 1
                continue
            yield from frames
        if damaged:
            self.warnings.append(f"{damaged} damaged pieces were left out")


@contextmanager
def open_video(path: Path | str, limits: Limits | None = None) -> Iterator[VideoFile]:
    """Opens a file of any format that FFmpeg knows, to read the frames of its first picture.

    The file is handed to FFmpeg as an open file: its name is never read as a pattern or an address, and a play list
    cannot make it open anything else.

    Args:
        path: the file.
        limits: default: [Limits][prvr.video.decode.Limits]().

    Raises:
        VideoError: missing, empty, no video, without a picture, or beyond the limits.
        prvr.MissingExtraError: PyAV is not installed.

    Example:
        >>> with open_video("film.mp4") as video:  # doctest: +SKIP
        ...     for frame in video.sample(rate=2.0):
        ...         print(frame.time, frame.pixels.shape)
    """
    av, path, limits = import_av(), Path(path), limits or Limits()
    try:
        if not path.is_file():
            reason = "is no regular file" if path.exists() else "no such file"
            raise VideoError(path, reason, "Name a video file, or a folder of them.")
        if not path.stat().st_size:
            raise VideoError(path, "it is empty (0 bytes)", "Copy it again, or take it out.")
        file = path.open("rb")
    except OSError as error:
        raise VideoError(path, f"cannot be read ({error.strerror or error})", "Check its name and rights.") from error
    with file:
        try:
            container = av.open(
                file,
                options={"max_pixels": str(limits.pixels)},  # also while FFmpeg looks what is in the file
                container_options=_ALONE | {"max_streams": str(_STREAMS)},
                io_open=_refuse,
                buffer_size=_BUFFER,
                metadata_errors="replace",
            )
        except _faults() as error:
            reason = f"not a video, or one that is truncated or broken (FFmpeg: {_short(error)})"
            raise VideoError(path, reason, "Copy it again, or take it out.") from error
        with container:
            stream = _picture(path, container)
            stream.codec_context.options = {"max_pixels": str(limits.pixels)}
            stream.thread_type = "AUTO"
            area = stream.codec_context.width * stream.codec_context.height
            stream.codec_context.thread_count = min(
                (os.cpu_count() or 1) + 1, _THREADS, max(1, _IN_THREADS // max(1, area))
            )
            yield VideoFile(path, container, stream, limits)


def check_rate(rate: float) -> None:
    """Refuses a number that is no rate of frames.

    Raises:
        ValueError: it is not positive, or beyond all sense.
    """
    low, high = _RATES
    if not low <= rate <= high:
        raise InputError(f"rate={rate}: expected a positive number of frames per second, {low:g} to {high:g}")


def _faults() -> tuple[type[Exception], ...]:
    """What PyAV raises because of a file: memory, where that asks for more than there is."""
    return (import_av().FFmpegError, OSError, ValueError, OverflowError, MemoryError)


def _picture(path: Path, container: Any) -> Any:
    """The first stream of moving pictures that can be decoded: not the cover of a record."""
    streams = [one for one in container.streams.video if one.disposition.attached_pic not in one.disposition]
    for stream in streams:
        if stream.codec_context is not None:
            return stream
    if streams:
        raise VideoError(path, "FFmpeg has no decoder for its picture", _MEND)
    kinds = {stream.type for stream in container.streams}
    if "audio" in kinds:
        raise VideoError(path, "has no moving picture, only sound", "Take it out: there is nothing to see in it.")
    raise VideoError(path, "no picture can be found in it: truncated, or no video", "Copy it again, or take it out.")


def _info(container: Any, stream: Any) -> VideoInfo:
    seconds = None
    if stream.duration is not None and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    elif container.duration is not None:
        seconds = container.duration / import_av().time_base
    seconds = seconds if seconds and seconds > 0 else None
    pace = stream.average_rate
    codec = stream.codec_context
    return VideoInfo(codec.width, codec.height, codec.name, seconds, float(pace) if pace and pace > 0 else None)


def _check(path: Path, width: int, height: int, seconds: float | None, limits: Limits) -> None:
    if width * height > limits.pixels:
        raise VideoError(
            path,
            f"frames of {width} x {height} pixels, at most {limits.pixels:,} pixels are decoded",
            "Scale it down, or raise the limit.",
        )
    if seconds is not None and seconds > limits.seconds:
        raise VideoError(
            path, f"{seconds:,.0f} s long, at most {limits.seconds:,.0f} s are decoded", "Cut it, or raise the limit."
        )


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    raise PermissionError(f"it asks for another file, {url[:80]!r}, which is not opened")


def _short(error: Exception) -> str:
    """What FFmpeg said, without the number and the name of the file."""
    said = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return said[:160]
