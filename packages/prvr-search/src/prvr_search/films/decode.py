"""The frames of any video file at a fixed rate, one at a time: a video of hours needs the memory of a few frames."""

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from fractions import Fraction
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from prvr_search.films.info import (
    MATROSKA,
    MEND,
    TICK,
    Limits,
    VideoError,
    check_rate,
    check_size,
    explained,
    info_of,
    read_faults,
    short,
    video_stream,
)
from prvr_search.films.picture import Picture, display_matrix, to_rgb
from prvr_search.films.timestamps import JUMP, interpolate_stamps, resample, with_need

_INTERLEAVED = 10  # seconds: sound lies no further behind its picture in a file
_DATED = ("mov,mp4,m4a,3gp,3g2,mj2", MATROSKA)
_SPARSE = 4  # frames for each that is sampled, from which on it pays to ask which of them are needed
_BACK = 10.0  # seconds: key frames of files without an index are rarely further apart
_LEAST_BACK = 2.0  # seconds: how much further back decoding begins where frames after a jump need others before it
_REFERENCES = 32  # frames, more than any needs before it
_RECOVERING = ("h264", "hevc")  # may go without key frames, if a part of each picture is decoded alone
_REFRESHED = 512  # frames, in which all parts were
_INTRA = (0, 1)  # types of pictures: unknown, and decoded alone
_BUFFER = 1 << 18
_STREAMS = 256  # more than any television recording has; each costs memory before the first is read
_THREADS = 16  # as many as FFmpeg would choose
_IN_THREADS = 2**25  # pixels: a frame of 8K is decoded in one thread, because every thread holds frames of its own
_ALONE = {"protocol_whitelist": "none"}  # with `_refuse`: no playlist or list of parts opens another file


class Frame(NamedTuple):
    """A sampled frame: the middle of the period that it stands for, in seconds, and its picture.

    Consecutive frames that show the same picture share one array.
    """

    time: float
    pixels: Picture


class VideoFile:
    """An open video. Each method reads the file anew, and ends what another one still reads.

    Attributes:
        info: what the file states.
        warnings: what is wrong with the file; complete once all frames are read.
        origin: the time stamp of the start, in seconds.
        duration: in seconds; as the file states, or 0, until all frames are read, then the end of the last one.
    """

    def __init__(self, path: Path, file: "_Source", limits: Limits) -> None:
        self.path, self._file, self._limits = path, file, limits
        self._container: Any = None
        self._open()
        self.info = info_of(self._container, self._stream, self.origin)
        self.duration = self.info.duration
        check_size(path, self.info.width, self.info.height, self.duration, limits)

    def close(self) -> None:
        """Closes the container; what still reads it raises RuntimeError."""
        container, self._container, self._unread = self._container, None, False
        if container is not None:
            container.close()

    def again(self) -> "VideoFile":
        """The same file, so that two can read it at once; it is to be closed too."""
        return VideoFile(self.path, _Source(self._file.file), self._limits)

    @property
    def read_error(self) -> OSError | None:
        """What the operating system has refused while the file was read; None if nothing."""
        return self._file.error

    def sample(self, rate: float) -> Iterator[Frame]:
        """The frame on the screen in the middle of each of `duration * rate` periods, upright; at least one.

        Frames are chosen by their time stamps, so a variable frame rate does not matter (see `resample`). Time 0 is
        where a player starts. Damaged frames are left out, with a warning. Pictures larger than 4K are scaled down.

        Args:
            rate: frames per second.

        Raises:
            VideoError: no frame can be decoded, or a limit is exceeded.
            ValueError: the rate is not between 1e-6 and 1000.
        """
        check_rate(rate)
        self._seek(0.0)
        stated, most = math.floor(self.info.duration * rate), self._limits.samples
        shown = picture = None
        for number, (middle, frame) in enumerate(resample(self._timed(rate), Fraction(rate)), 1):
            if picture is None or frame is not shown:
                shown, picture = frame, self._picture(frame)
            if max(stated, number) > most:
                reason = f"more than {most:,} frames at {rate:g} per second"
                raise VideoError(self.path, reason, "Choose a lower rate, or cut it.")
            yield Frame(float(middle), picture)

    def excerpt(
        self, start: float, end: float, *, most: int, rate: float = 30.0, patience: float = 10.0
    ) -> Iterator[Frame]:
        """The frames shown from `start` until before `end`, at least one, without decoding what comes before.

        Decoding begins at the key frame before `start`, further back where frames from there on need others before it,
        or at the beginning where a file is not seekable.

        Args:
            start, end: in seconds; beyond the end of the video, the last frame is given.
            most: pixels of the longer side; a larger picture is scaled down.
            rate: the highest number of frames per second; frames in between are left out.
            patience: seconds to look for `start`; after that, the last frame that was decoded stands for it.

        Raises:
            VideoError: no frame can be decoded or converted to colours, or a limit is exceeded.

        Examples:
            >>> with open_video("beach.mp4") as video:  # doctest: +SKIP
            ...     pictures = [frame.pixels for frame in video.excerpt(60.0, 65.0, most=480)]
        """
        last = -math.inf
        for begins, frame in self._shown_from(start, time.monotonic() + patience):
            if begins >= end and last >= start:
                return
            if begins - last >= 1 / rate - 1e-3:
                last = max(start, float(begins))
                yield Frame(last, self._picture(frame, most))

    @property
    def streams(self) -> tuple[Any, ...]:
        """The streams of PyAV that a copy of the file has: the picture and, if there is one, the first sound."""
        sound = [stream for stream in self._container.streams.audio if stream.codec_context is not None]
        return (self._stream, *sound[:1])

    @property
    def texts(self) -> tuple[Any, ...]:
        """The text tracks of PyAV that can be decoded."""
        tracks = self._container.streams.subtitles
        return tuple(track for track in tracks if track.codec_context and track.codec_context.codec.text_sub)

    def text_packets(self) -> Iterator[Any]:
        """The packets of PyAV of all text tracks, in their order in the file, which is read to its end for them."""
        if self.texts:
            self._seek(0.0)
            yield from self._packets(*self.texts)

    def key_frame(self, start: float) -> Fraction | None:
        """When the last key frame until `start` is shown, in seconds, or else the first one; nothing is decoded.

        Args:
            start: in seconds.

        Returns:
            None if no packet says that it begins a key frame, or when it is shown, or if the file has no time stamps.

        Raises:
            VideoError: the file cannot be read.
        """
        latest: Fraction | None = None
        self._seek(start)
        if self._container.start_time is None:  # FFmpeg makes some up, which are not in the order of frames
            return None
        with explained(self.path, "cannot be read"):
            for packet, shown, decoded in self._stored(self._stream):
                if latest is not None and decoded is not None and decoded > start:
                    break  # nothing is shown before it is decoded
                if packet.is_keyframe and shown is not None:
                    if latest is not None and shown > start:
                        break
                    latest = shown
        return latest

    def stands_alone(self, first: Fraction) -> bool:
        """Whether the pictures from a key frame on, a result of `key_frame`, can be decoded without those before it."""
        stored = (packet for _, packet in self.packets(first, math.inf) if packet.stream.index == self._stream.index)
        with suppress(StopIteration, *read_faults()):
            packets = chain([next(stored)], stored)  # reading the first one may open the file anew, with new streams
            frames = islice(self._decoded(self._stream, packets=packets), _REFERENCES)
            begins = next(frames)
            return _is_whole(begins, False) and begins.pts == 0 and not any(frame.is_corrupt for frame in frames)
        return False

    def packets(self, first: Fraction, end: float) -> Iterator[tuple[Fraction, Any]]:
        """Packets of `streams` as they are stored, from a key frame on, their time stamps so that it is shown at 0.

        Frames that are stored after the key frame and shown before it are left out.

        Args:
            first: a result of `key_frame`.
            end: in seconds; packets that are decoded from this time on are left out.

        Yields:
            (time in the file at which it is shown, in seconds; packet of PyAV).

        Raises:
            ValueError: a packet has no time stamp, or one that is wrong, or the key frame cannot be found again.
        """
        self._seek(float(first))
        latest, undated, left = None, False, {stream.index for stream in self.streams}
        for packet, shown, decoded in self._stored(*self.streams):
            if shown is None or decoded is None:
                raise ValueError("a packet has no time stamp")
            index = packet.stream.index
            picture = index == self._stream.index
            if picture and latest is None and packet.is_keyframe and shown == first:
                latest, undated = decoded, packet.dts is None
            if picture and latest is not None:
                if abs(decoded - latest) > _INTERLEAVED:
                    raise ValueError("a time stamp jumps")
                latest = decoded
            if decoded >= end:
                left.discard(index)
            if not left or decoded >= end + _INTERLEAVED:
                break
            if index in left and shown >= first and (latest is not None or not picture):
                shift = round((self.origin + first) / packet.time_base)
                packet.pts -= shift
                # Some formats state only later packets' times of decoding; FFmpeg finds all of them, or none.
                packet.dts = None if packet.dts is None or (picture and undated) else packet.dts - shift
                yield shown, packet
        if latest is None:
            raise ValueError("the key frame cannot be found again")

    def sound(self, start: float, end: float, patience: float = math.inf) -> Iterator[tuple[float, Any]]:
        """The decoded frames of the first sound that begin from `start` until before `end`, each with its time.

        Args:
            start, end: in seconds.
            patience: seconds to look for `start`; after that, there is no sound.

        Yields:
            (time in seconds, frame of PyAV); nothing, if there is no sound.
        """
        until = time.monotonic() + patience
        self._seek(start)
        for stream in self.streams[1:]:
            for frame in self._decoded(stream):
                stamp = self._time(frame.pts, stream.time_base)
                begins = -1.0 if stamp is None else float(stamp)
                if begins >= end or (begins < start and time.monotonic() > until):
                    return
                if begins >= start:
                    yield begins, frame

    def _open(self) -> None:
        """Opens the container at the beginning of the file."""
        import av

        options = {"max_pixels": str(self._limits.pixels)}
        self._file.seek(0)
        broken = "not a video, or one that is truncated or broken"
        with explained(self.path, broken, "Copy it again, or remove it."):
            self._container = av.open(
                self._file,
                options=options,  # also while FFmpeg probes the file
                container_options=_ALONE | {"max_streams": str(_STREAMS)},
                io_open=_refuse,
                buffer_size=_BUFFER,
                metadata_errors="replace",
            )
        self.origin = (self._container.start_time or 0) * TICK
        self._stream = video_stream(self.path, self._container)
        codec = self._stream.codec_context
        codec.options = options
        self._stream.thread_type = "AUTO"
        threads = _IN_THREADS // max(1, codec.width * codec.height)
        codec.thread_count = min((os.cpu_count() or 1) + 1, _THREADS, max(1, threads))
        self._rotation: int | None = None  # of the previous frame, to which `_matrix` belongs
        self._unread = True
        self.warnings: list[str] = []

    def _seek(self, start: float) -> None:
        """Goes to a key frame before a time; what is not seekable is read from its beginning."""
        if not self._unread:
            self.close()
            self._open()
        self._unread = False
        if start <= 0 or self._container.start_time is None:  # without time stamps FFmpeg goes anywhere
            return
        unit = self._stream.time_base or TICK
        # FFmpeg goes to a packet, not to a key frame, in files without an index, and to one that is decoded before the
        # time, but shown after it, where times are those of decoding.
        for back in (0.0, _BACK, 3 * _BACK, math.inf):
            # Rounded down: FFmpeg takes the nearest frame, which may be the next one.
            ticks = math.floor((Fraction(max(0.0, start - back)) + self.origin) / unit)
            place = round(ticks * unit / TICK)
            try:
                self._container.seek(place)
                if back == math.inf or self._begins_by(start):
                    self._container.seek(place)
                    return
            except read_faults():  # a file that is not seekable, or a time beyond FFmpeg's numbers
                return

    def _begins_by(self, start: float) -> bool:
        """Whether a key frame comes that is shown until a time."""
        for packet, shown, decoded in self._stored(self._stream):
            if decoded is None or decoded > start:
                break
            if packet.is_keyframe and shown is not None:
                return shown <= start
        return False

    def _shown_from(self, start: float, until: float) -> Iterator[tuple[Fraction, Any]]:
        """The frame that is shown at a time and those after it, each with its start in seconds.

        Not all that are called key frames can be decoded alone. Where something is missing, decoding begins anew, each
        time twice as far back, until the beginning of the file, or until it is too late.
        """
        back, last = 0.0, Fraction(-1)
        while True:
            is_final, before = back >= start, last
            self._seek(max(0.0, start - back))
            try:
                for begins, frame, is_whole in self._decoded_from(start, until):
                    if not is_whole and not is_final and time.monotonic() < until:
                        break
                    if begins > before:
                        yield begins, frame
                        last = begins
                else:
                    return
            except VideoError:
                if is_final or time.monotonic() > until:
                    raise
            back = 2 * back or _LEAST_BACK

    def _decoded_from(self, start: float, until: float) -> Iterator[tuple[Fraction, Any, bool]]:
        """As `_shown_from`, from where the file is, each with whether nothing is missing that it needs."""
        pending, is_first, count, is_whole, is_settled = [], True, 0, False, False
        for number, (begins, _, frame) in enumerate(self._timed()):
            is_refreshed = number > _REFRESHED and (frame.is_corrupt or self.info.codec in _RECOVERING)
            is_whole = _is_whole(frame, is_whole or is_refreshed)
            count = count + 1 if is_whole else 0
            # What is broken after that is broken in the file, wherever decoding begins.
            is_settled = is_settled or count > _REFERENCES or is_refreshed
            if begins <= start and is_first:
                pending = [(begins, frame, is_whole or is_settled)]
                if time.monotonic() < until:
                    continue
            if is_first:
                yield from pending
            if begins > start:
                yield begins, frame, (is_whole or is_settled) and bool(pending)
            is_first = False
        if is_first:
            yield from pending

    def _picture(self, frame: Any, most: int | None = None) -> Picture:
        if frame.rotation != self._rotation:
            self._rotation, self._matrix = frame.rotation, display_matrix(frame)
        with explained(self.path, f"its frames ({frame.format.name}) cannot be converted to colours"):
            return to_rgb(frame, self._stream.sample_aspect_ratio, self._matrix, most)

    def _timed(self, rate: float = math.inf) -> Iterator[tuple[Fraction, Fraction, Any]]:
        """Every frame, or those that this rate needs, with start and length in seconds; starts never go back."""
        # The time base of the stream: frames that a decoder gives at the end, or after a read error, have none.
        unit = self._stream.time_base
        pace = self._stream.average_rate or self._stream.guessed_rate
        interval = 1 / pace if pace and pace > 0 else Fraction(0)
        start = length = shift = Fraction(0)
        count = wrong = parts = 0
        stamped = ((self._time(frame.pts, unit), frame) for frame in self._decoded(self._stream, rate))
        mended = interpolate_stamps(stamped, start if rate < math.inf else None)
        for count, (stamp, frame, is_wrong) in enumerate(mended, 1):
            wrong += is_wrong
            begins = start + length if stamp is None else stamp + shift
            if count > 1 and begins < start - JUMP:
                after = start + (length or interval)
                shift, begins, parts = shift + after - begins, after, parts + 1
            start = max(begins, start)  # also from below 0, where a file begins before it is to be shown
            length = frame.duration * unit if unit and frame.duration and frame.duration > 0 else interval
            check_size(self.path, frame.width, frame.height, float(start), self._limits)
            if start + length > self._limits.seconds:
                length = interval
            yield start, length, frame
        if not count:
            if self.info.width:
                raise VideoError(self.path, f"no frame of it can be decoded ({self.info.codec})", MEND)
            # FFmpeg reports no size for a picture that it was told not to decode.
            reason = f"its frames have no size that can be read, or more than {self._limits.pixels:,} pixels"
            raise VideoError(self.path, reason, "Scale it down, or raise the limit.")
        if wrong:
            self.warnings.append(f"{wrong} wrong time stamps were interpolated")
        if parts:
            self.warnings.append(f"time stamps jump back ({parts}): the parts were concatenated")
        stated, end = self.info.duration, float(start + length)
        if end < 0.98 * stated - 1:
            seconds = f"frames end at {end:.1f} s of {stated:.1f} s"
            self.warnings.append(f"{seconds}: truncated or damaged, or only audio continues")
        self.duration = end or stated

    def _decoded(self, stream: Any, rate: float = math.inf, packets: Iterable[Any] | None = None) -> Iterator[Any]:
        """Frames of a stream in display order; those that cannot be decoded are counted and left out.

        Args:
            stream: of the picture or the sound.
            rate: leave out frames that no other needs to be decoded, and that sampling at this rate does not meet.
            packets: those of the stream that are decoded; None: all.
        """
        packets, damaged = self._packets(stream) if packets is None else packets, 0
        # Packets of these formats say when they are shown. HEVC marks frames that no other needs too, but with layers
        # of different rates those of another layer may need them.
        is_marked = self._container.format.name in _DATED and self.info.codec == "h264"
        if is_marked and (self.info.frame_rate or 0) >= _SPARSE * rate:
            unit, origin = float(stream.time_base), float(self.origin)
            marked = with_need(packets, lambda stamp: math.ceil((stamp * unit - origin) * rate - 0.5), JUMP / unit)
        else:
            marked = zip(packets, repeat(True))
        for packet, is_needed in chain(marked, [(None, True)]):
            stream.codec_context.skip_frame = "DEFAULT" if is_needed else "NONREF"
            try:
                # Without a packet, the decoder gives the frames that it still holds.
                frames = stream.decode(None) if packet is None else packet.decode()
            except EOFError:
                continue  # they were given already
            except read_faults():
                damaged += 1
                continue
            yield from frames
        if damaged:
            self.warnings.append(f"{damaged} damaged pieces were skipped")

    def _stored(self, *streams: Any) -> Iterator[tuple[Any, Fraction | None, Fraction | None]]:
        """The packets of streams, with the seconds at which they are shown and decoded, where they say so."""
        for packet in self._demux(*streams):
            if packet.size:  # the last one of a stream is empty
                shown = self._time(packet.pts, packet.time_base)
                yield packet, shown, shown if packet.dts is None else self._time(packet.dts, packet.time_base)

    def _time(self, stamp: int | None, unit: Fraction | None) -> Fraction | None:
        """Seconds from the start; None where nothing is said."""
        return None if stamp is None or not unit else stamp * unit - self.origin

    def _packets(self, *streams: Any) -> Iterator[Any]:
        """What is stored of streams, as far as it can be read."""
        try:
            yield from self._demux(*streams)
        except read_faults() as error:
            self.warnings.append(f"reading stopped before the end ({short(error)})")

    def _demux(self, *streams: Any) -> Iterator[Any]:
        """What is stored of streams, as long as nothing else reads the file: PyAV would read freed memory."""
        container = self._container
        with suppress(IndexError):  # PyAV raises it after the last packet where streams appeared within the file
            for packet in container.demux(streams):
                yield packet
                if container is not self._container:
                    raise RuntimeError(f"{self.path}: was closed or read from the start while frames were being read")


class _Source:
    """An open file, read from a place of its own; it remembers why it could not be: FFmpeg takes that for its end."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self._place = file, 0
        self.error: OSError | None = None

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a place, as `seek` of a file does; FFmpeg never asks for one relative to the current place."""
        self._place = self.file.seek(offset, whence)
        return self._place

    def read(self, size: int = -1) -> bytes:
        try:
            self.file.seek(self._place)
            content = self.file.read(size)
        except OSError as error:
            self.error = error
            raise
        self._place += len(content)
        return content


@contextmanager
def open_video(source: Path | str | BinaryIO, limits: Limits | None = None) -> Iterator[VideoFile]:
    """Opens a file of any format that FFmpeg knows, to read the frames of its first video stream.

    FFmpeg is given an open file: its name is never read as a pattern or an address, and a playlist cannot make it open
    another file.

    Args:
        source: the file, or one that is open; that one stays open, and may be read by several at once in one thread.
        limits: default: [Limits][prvr_search.films.info.Limits]().

    Raises:
        VideoError: missing, empty, no video, without a picture, or beyond the limits.

    Examples:
        >>> with open_video("beach.mp4") as video:  # doctest: +SKIP
        ...     for frame in video.sample(rate=2.0):
        ...         print(frame.time, frame.pixels.shape)
    """
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            if not path.is_file():
                reason = "not a regular file" if path.exists() else "no such file"
                raise VideoError(path, reason, "Name a video file, or a folder of them.")
            if not path.stat().st_size:
                raise VideoError(path, "it is empty (0 bytes)", "Copy it again, or remove it.")
            opened = path.open("rb", buffering=0)
        except OSError as error:
            reason = f"cannot be read ({error.strerror or error})"
            raise VideoError(path, reason, "Check the path and permissions.", error) from error
        with opened, open_video(opened, limits) as video:
            yield video
        return
    file = _Source(source)
    try:
        with closing(VideoFile(Path(source.name), file, limits or Limits())) as video:
            yield video
    except VideoError as error:
        error.passing = error.passing or file.error
        raise


def _is_whole(frame: Any, before: bool) -> bool:
    """Whether nothing that a frame needs is missing.

    Args:
        frame: of PyAV.
        before: whether that is so of the frame before it.
    """
    return not frame.is_corrupt and (before or frame.key_frame or frame.pict_type in _INTRA)


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    raise PermissionError(f"it refers to another file, {url[:80]!r}, which is not opened")
