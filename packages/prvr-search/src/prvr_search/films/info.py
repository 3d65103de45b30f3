"""What is known of a film and of the places where it was seen, and what is wrong where it cannot be read."""

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prvr.encoders.entries import FeatureSpec, VideoEntry
from prvr.errors import DISK_FULL, DataError, InputError

MEND = "Convert it with another program, or remove it."
MATROSKA = "matroska,webm"
"""What FFmpeg calls this format."""
TICK = Fraction(1, 1_000_000)
"""Seconds: the unit of FFmpeg's times of a whole file."""
_RATES = (1e-6, 1000.0)  # frames per second that make sense
_MOST_PIXELS = 2**31 - 1  # FFmpeg counts no further


FIELDS_VERSION = 3
"""Raise it with every field of `Film` that is kept: known videos are then described again, none is encoded again."""


@dataclass(frozen=True)
class Limits:
    """Limits that a file must keep; checked before anything of it is decoded, and again during decoding.

    Args:
        pixels: the most pixels of one frame. The default allows 8K (7680 x 4320).
        seconds: the longest duration of a video. The default is a day.
        samples: number of frames sampled from the video.
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


class VideoPath(NamedTuple):
    """A video file below a folder.

    Args:
        id: its path below the folder, with `/`.
        file: its absolute path.
        size: in bytes.
        mtime_ns: when its content was last changed, in ns since 1970.
        volume: identifies the file system that holds it.
        inode, changed_ns: its number there, and when anything of it was last changed; 0 where that is not known.
        sha256: of its content, where that is known.
    """

    id: str
    file: str
    size: int
    mtime_ns: int
    volume: str = ""
    inode: int = 0
    changed_ns: int = 0
    sha256: str = ""

    @property
    def state(self) -> tuple[str, int, int]:
        """What tells that the file is the one that was seen: path, size and time of change."""
        return self.file, self.size, self.mtime_ns

    @property
    def path(self) -> Path:
        """Its absolute path."""
        return Path(self.file)

    @property
    def unchanged(self) -> bool:
        """Whether the file still has this size and time of change."""
        with suppress(OSError):
            now = self.path.stat()
            return (now.st_size, now.st_mtime_ns) == (self.size, self.mtime_ns)
        return False


@dataclass(frozen=True)
class Film:
    """What is known of the content of a video, wherever it lies: what an open file states, and what a library keeps.

    Args:
        sha256: of the file; empty while that is not known.
        frames: the number of rows of features.
        duration: when the last frame ends, in seconds from where a player starts; 0 where the file does not say.
        width, height: as stored, before rotation.
        codec: for example `h264`.
        start_time: the time stamp of the start, in seconds; at least 0, from which most browsers count.
        version: of these fields, see `FIELDS_VERSION`; 0 where it is to be described again.
        lines: the number of lines of its own text tracks, or of those that a recogniser gave.
        reason, remedy: why it cannot be encoded and what to do; empty if it can.
        filmed: the date that the file states, as of `container_date`.
        warnings: what was wrong with the file.
        frame_rate: the average, per second; None where the file does not state it. This and what follows is not kept.
        base_rate: the rate, per second, of which all time stamps are multiples, where the file lets FFmpeg guess it.
        comment: what whoever made the file has written into it.
        timecode: of the first frame, as of SMPTE; empty where the file states none.
        digest: the hash of the file of its features.
        stamp: of that file, see `prvr_search.store.proof.stamp_of`.
        spec: its features; None: it was only described.
    """

    sha256: str = ""
    frames: int = 0
    duration: float = 0.0
    width: int = 0
    height: int = 0
    codec: str = ""
    start_time: float = 0.0
    version: int = 0
    lines: int = 0
    reason: str = ""
    remedy: str = ""
    filmed: str = ""
    warnings: tuple[str, ...] = ()
    frame_rate: float | None = None
    base_rate: float | None = None
    comment: str = ""
    timecode: str = ""
    digest: str = ""
    stamp: tuple[int, int, int, int] = (0, 0, 0, 0)
    spec: FeatureSpec | None = None

    def at(self, video: VideoPath) -> VideoEntry:
        """The record of the video at a place, as results and exports have it."""
        guess = self.frames / self.spec.rate if self.spec is not None else 0.0
        return VideoEntry(
            *video[:4], self.sha256, self.duration or guess, self.frames, self.width, self.height, self.codec,
            self.warnings, self.start_time, self.digest,
            *film_date(self.filmed, video.id, video.mtime_ns),
        )  # fmt: skip


@dataclass(eq=False)
class VideoError(DataError):
    """A file from which no picture can be read.

    Args:
        path: the file.
        reason: what is wrong with it.
        remedy: what to do, a sentence.
        passing: what the operating system has refused: another time it may not.

    Examples:
        >>> print(VideoError(Path("a.mp4"), "it is empty (0 bytes)", "Copy it again."))
        a.mp4: it is empty (0 bytes). Copy it again.
    """

    path: Path
    reason: str
    remedy: str
    passing: OSError | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}. {self.remedy}"


def check_rate(rate: float) -> None:
    """Refuses a frame rate that is not between 1e-6 and 1000 frames per second.

    Raises:
        ValueError: it is not.
    """
    low, high = _RATES
    if not low <= rate <= high:
        raise InputError(f"rate={rate}: expected a positive number of frames per second, {low:g} to {high:g}")


@contextmanager
def explained(path: Path, what: str, remedy: str = MEND) -> Iterator[None]:
    """Raises a `VideoError` in the place of what PyAV raises because of a file; but that the disk is full, as it is."""
    try:
        yield
    except VideoError:
        raise
    except read_faults() as error:
        if (code := getattr(error, "errno", None)) in DISK_FULL:
            raise OSError(code, os.strerror(code)) from error
        raise VideoError(path, f"{what} (FFmpeg: {short(error)})", remedy) from error


def read_faults() -> tuple[type[Exception], ...]:
    """The exceptions that PyAV raises because of a file; MemoryError where the file asks for more than there is."""
    import av

    return (av.FFmpegError, OSError, ValueError, OverflowError, MemoryError)


def video_stream(path: Path, container: Any) -> Any:
    """The first stream of moving pictures that can be decoded; cover art is none."""
    streams = [
        stream for stream in container.streams.video if stream.disposition.attached_pic not in stream.disposition
    ]
    for stream in streams:
        if stream.codec_context is not None:
            return stream
    if streams:
        raise VideoError(path, "FFmpeg has no decoder for its video", MEND)
    if container.streams.audio:
        raise VideoError(path, "has no video stream, only sound", "Remove it, or exclude it with --exclude.")
    raise VideoError(path, "no frame found: truncated, or not a video", "Copy it again, or remove it.")


def info_of(container: Any, stream: Any, start: Fraction) -> Film:
    """What an open container states of a stream.

    Args:
        container, stream: of PyAV.
        start: the time stamp of the start, in seconds.
    """
    seconds, begins = Fraction(0), stream.start_time
    if begins is None and container.start_time is None:
        pass  # a stream without time stamps: FFmpeg guesses from the bit rate, and is wrong by any factor
    elif stream.duration is not None and stream.time_base:
        # The picture may begin later than the sound, with which a player starts.
        late = (begins or 0) * stream.time_base - start
        seconds = stream.duration * stream.time_base + max(late, 0)
    elif container.duration is not None:
        seconds = container.duration * TICK
        if container.format.name == MATROSKA and seconds > start:  # states when it ends
            seconds -= start
    pace = stream.average_rate
    codec = stream.codec_context
    parts = container, stream, *container.streams  # that of the timecode among them
    tags = [{key.lower(): value for key, value in part.metadata.items()} for part in parts]
    return Film(
        width=codec.width,
        height=codec.height,
        codec=codec.name,
        duration=float(max(seconds, 0)),
        frame_rate=float(pace) if pace and pace > 0 else None,
        base_rate=float(base) if (base := stream.base_rate) else None,
        comment=tags[0].get("comment", ""),
        start_time=float(max(Fraction(0), start)),
        timecode=next((part["timecode"] for part in [tags[1], *tags] if "timecode" in part), ""),
        filmed=container_date(tags[:2]),
    )


def check_size(path: Path, width: int, height: int, seconds: float, limits: Limits) -> None:
    """Refuses a picture or a duration beyond the limits.

    Raises:
        VideoError: it is.
    """
    if width * height > limits.pixels:
        reason = f"frames of {width} x {height} pixels; the limit is {limits.pixels:,} pixels"
        raise VideoError(path, reason, "Scale it down, or raise the limit.")
    if seconds > limits.seconds:
        reason = f"{seconds:,.0f} s long; the limit is {limits.seconds:,.0f} s"
        raise VideoError(path, reason, "Cut it, or raise the limit.")


def short(error: Exception) -> str:
    """FFmpeg's message, without the number and the name of the file."""
    message = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return message[:160]


DateSource = Literal["container", "name", "file"]
_KEYS = ("com.apple.quicktime.creationdate", "creation_time", "date")  # the first one has the zone of the camera
_DATE = re.compile(
    r"(?<!\d)((?:19|20)\d\d)([-._]?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])"
    r"(?:(?: at )?[-_ T.]?([01]\d|2[0-3])[-._:h]?([0-5]\d)[-._:m]?([0-5]\d)(?:[-._]?\d{3})?)?(?!\d)"
)
_UNSET = (1904, 1970)  # years in which clocks begin to count that were not set
_DAY = 24 * 3600  # seconds: the future begins later than any zone


def container_date(metadata: Iterable[Mapping[str, str]]) -> str:
    """The date that a container states, ISO 8601, with a zone if it states one; empty if it states none.

    Args:
        metadata: tags of the container, then of its streams, with keys in lower case.

    Examples:
        >>> container_date([{"creation_time": "1904-01-01T00:00:00Z"}, {"date": "2019-07-12T16:30:00+0200"}])
        '2019-07-12T16:30:00+02:00'
    """
    stated = [*metadata]
    dates = (_plausible(tags.get(key, "").strip()) for key in _KEYS for tags in stated)
    return next((date.isoformat() for date in dates if date), "")


def film_date(stated: str, name: str, mtime_ns: int) -> tuple[str, DateSource]:
    """When a film was filmed; a date without a zone is local.

    Dates in years of clocks that were not set (1904, 1970), before 1900 or in the future do not count.

    Args:
        stated: the date of its container, as of `container_date`.
        name: its path; the file name counts.
        mtime_ns: when the file was last changed, in ns since 1970.

    Returns:
        ISO 8601 with the zone, that of the container where it says one but UTC, else that of this computer; and
            what says so.

    Examples:
        >>> date, source = film_date("", "day 1/VID-20190712-WA0003.mp4", 0)
        >>> date[:19], source
        ('2019-07-12T00:00:00', 'name')
    """
    dates: list[tuple[str, DateSource]] = [(stated, "container")]
    for match in _DATE.finditer(name.rpartition("/")[2]):
        year, _, month, day, *clock = match.groups("00")
        dates.append((f"{year}-{month}-{day} {':'.join(clock)}", "name"))
    for text, source in dates:
        if date := _plausible(text):
            return _local(date).isoformat(), source
    return _local(datetime.fromtimestamp(mtime_ns // 10**9, UTC)).isoformat(), "file"


def _local(date: datetime) -> datetime:
    """A date with its zone, or that of this computer where it has none, or UTC, which most cameras write."""
    return date if date.utcoffset() else date.astimezone()


def _plausible(text: str) -> datetime | None:
    """The date that a text states; None where it is no date, as February 30, or none on which anybody filmed."""
    # OverflowError: years at both ends of the calendar; OSError: Windows has no local time before 1970.
    with suppress(ValueError, OverflowError, OSError):
        date = datetime.fromisoformat(text)
        of_world = _local(date).astimezone(UTC)
        years = {date.year, of_world.year}
        if min(years) >= 1900 and years.isdisjoint(_UNSET) and of_world.timestamp() <= time.time() + _DAY:
            return date
    return None
