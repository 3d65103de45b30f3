"""Videos to features: frames are decoded as a stream and encoded in batches, and each video is kept when it is done."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from prvr.data.hashes import hash_file
from prvr.data.on_device import read_ahead
from prvr.encoders import ClipEncoder, ClipWindow, VideoEncoder
from prvr.encoders.entries import FeatureSpec
from prvr.errors import DataError
from prvr_search.films import Film, Frame, Listing, SubtitleLine, VideoError, VideoFile, VideoPath, open_video
from prvr_search.films.clips import CLIP
from prvr_search.films.info import FIELDS_VERSION, check_rate
from prvr_search.films.subtitles import read_tracks
from prvr_search.recognisers import Recogniser
from prvr_search.store.features import NO_ROWS, Features, FeaturesUnreachable, check_line, encoder_key
from prvr_search.store.store import LibraryUnwritable, Store

logger = logging.getLogger(__name__)
Progress = Callable[[float, float, str], None]
"""Called with how much is done, how much there is in all, and the id of the video that is being worked on."""

_AHEAD = 2  # batches that are decoded while one is encoded
_BATCH = 64  # frames that are encoded at once
_AGAIN = "Will retry on the next run."
_OURS = ("a clip that prvr wrote", "It is not searched.")
_REST = 20  # how many times as long as a note of where videos are takes, until the next one


@dataclass(frozen=True)
class Unreadable:
    """A video that cannot be encoded.

    Args:
        id: its path below the folder.
        reason, remedy: why, and what to do.
        is_new: whether it was found out just now.
    """

    id: str
    reason: str
    remedy: str
    is_new: bool = False


@dataclass
class Update:
    """Encodes or recognises the videos of a folder that were not yet, notes where they are, and says what it did.

    Faults of a file's content are kept with the content. What the operating system refuses, such as a file without
    read permission, is tried again at the next update.

    Args:
        store: where features are kept.
        folder: the folder.
        listing: the videos of the folder.
        spec: the features that are wanted, or those without width of a recogniser; None: nothing is encoded, only
            described, and subtitles are read.
        open_encoder: gives the encoder or recogniser, open; called for each video that needs it.
        progress: called now and then if there is anything to do.

    Attributes:
        encoded: the ids of videos whose content is new.
        moved: those of videos that were renamed, moved or copied; nothing was encoded.
        waiting: those of videos that are not encoded yet: another process is doing it, or the library cannot be
            written.
        unreadable: videos that cannot be encoded, in order of ids.
        unlisted: folders that cannot be listed, with the reason.
        searchable: the number of videos that are encoded.
        problem: why the library cannot be written; empty if it can.
    """

    store: Store
    folder: Path
    listing: Listing
    spec: FeatureSpec | None
    open_encoder: Callable[[], Any]
    progress: Progress | None = None

    def __post_init__(self) -> None:
        folders, films = self.store.folders, self.store.films(encoder_key(self.spec))
        known = folders.known(self.folder, self.listing.videos)
        self.videos = {video.id: video for video in known}
        self.films = {**films, **(self.store.known() if self.spec is None else {})}
        self.encoded, self.moved, self.waiting = list[str](), list[str](), list[str]()
        self.problem, self.searchable, self.unlisted = "", 0, dict[Path, str]()
        self._unreadable = dict[str, Unreadable]()
        # Others may have come back.
        seen = {*folders.last_seen(self.folder)}
        self._unnoted = [video for video in known if video.sha256 and video not in seen]
        self._until = 0.0

    @property
    def unreadable(self) -> Sequence[Unreadable]:
        return [self._unreadable[name] for name in sorted(self._unreadable)]

    def run(self) -> "Update":
        """Does it.

        Raises:
            DataError: the encoder cannot be opened.
        """
        for path, reason in self.listing.unlisted.items():
            if path.is_dir():
                self.unlisted[path] = reason
            else:
                self._cannot(path.relative_to(self.folder).as_posix(), reason, _AGAIN)
        pending = [video for video in self.videos.values() if self._known(video) is None]
        try:
            try:
                self._encode(pending)
                if self.spec is None or self.spec.dim:
                    self._describe_again()
            finally:
                self._note_places(now=True)
        except LibraryUnwritable as error:
            self.problem = str(error)
            self.waiting += [video.id for video in pending if video.id not in {*self.encoded, *self._unreadable}]
        films = (self.films[video.sha256] for video in self.videos.values() if video.sha256 in self.films)
        self.searchable = sum(not film.reason for film in films)
        return self

    def _encode(self, pending: Sequence[VideoPath]) -> None:
        total, finished = float(sum(video.size for video in pending)), 0.0
        for video in pending:

            def report(share: float, video: VideoPath = video, finished: float = finished) -> None:
                self._note_places()
                if self.progress is not None:
                    self.progress(finished + share * video.size, total, video.id)

            report(0.0)
            try:
                self._bring_in(video, report)
            except _PassingFault as error:
                self._cannot(video.id, *error.args)
            except FeaturesUnreachable as error:
                self._cannot(video.id, "its features cannot be read or stored now", str(error))
            report(1.0)
            finished += video.size

    def _bring_in(self, video: VideoPath, report: Callable[[float], None]) -> None:
        """Encodes a video, unless its content is known, is faulty, or is being encoded by another process."""
        try:
            sha256 = video.sha256 or hash_file(video.path)
        except OSError as error:
            raise _PassingFault(f"cannot be read ({error.strerror or error})", "Check its permissions.") from error
        _expect_readable(video)
        self.videos[video.id] = video = video._replace(sha256=sha256)
        self._unnoted.append(video)
        if (film := self._known(video)) is not None:
            self.moved += [] if film.reason else [video.id]
        elif self.spec is None:
            self._read_new(video, report)
        else:
            key = encoder_key(self.spec)
            with self.store.claimed(key, sha256) as is_mine:
                if (film := self.store.readable(key, sha256)) is not None:  # by another process, just now
                    self.films[sha256] = film
                elif is_mine:
                    self._read_new(video, report)
                    self.encoded += [] if self.films[sha256].reason else [video.id]
                else:
                    self.waiting.append(video.id)

    def _read_new(self, video: VideoPath, report: Callable[[float], None]) -> None:
        """Encodes or describes a video; a fault of its content is kept, as is that it is a clip of prvr."""
        film, spec = Film(video.sha256, spec=self.spec), self.spec
        rows, lines = NO_ROWS, list[SubtitleLine]()
        try:
            with open_video(video.path) as file:
                if file.info.comment.startswith(CLIP):
                    raise VideoError(video.path, *_OURS)
                is_recogniser = spec is not None and not spec.dim
                if is_recogniser:
                    lines = _recognised(self.open_encoder(), file, report)
                elif spec is not None:
                    rows = encode_video(file, self.open_encoder(), spec.rate, report=report)
                _expect_readable(video, file.read_error)
                if not is_recogniser:
                    self._keep(film, file, rows)
                    return
        except VideoError as error:
            _expect_readable(video, error.passing)
            film = replace(film, reason=error.reason, remedy=error.remedy)
        self.store.add(film, lines=lines)
        self.films[video.sha256] = film
        self._known(video, is_new=True)

    def _keep(self, known: Film, file: VideoFile, rows: Features) -> None:
        """Keeps what the open file of a video states and its features, with the lines of its text tracks."""
        film = replace(
            file.info,
            sha256=known.sha256,
            spec=known.spec,
            duration=known.duration or file.duration,
            warnings=known.warnings or tuple(file.warnings),
            version=FIELDS_VERSION,
        )
        if file.texts and not known.digest:  # whatever its tracks cost, the features are there
            self.store.add(replace(film, version=0), rows)
        try:
            lines = read_tracks(file)
        except Exception as error:  # whatever a reader of damaged tracks stumbles over
            logger.warning("%s: its text tracks cannot be read (%s)", file.path.name, error)
            lines = []
        if file.read_error is None or not file.texts:  # otherwise it is tried again
            self.store.add(film, rows, lines)
        self.films[film.sha256] = film

    def _known(self, video: VideoPath, is_new: bool = False) -> Film | None:
        """What is kept of a video, faults of it too, which are reported."""
        film = self.films.get(video.sha256)
        if film is not None and film.reason:
            self._cannot(video.id, film.reason, film.remedy, is_new)
        return film

    def _cannot(self, name: str, reason: str, remedy: str, is_new: bool = True) -> None:
        if (reason, remedy) != _OURS:
            self._unreadable[name] = Unreadable(name, reason, remedy, is_new)

    def _note_places(self, *, now: bool = False) -> None:
        """Notes where videos are; not too often while they are encoded, for all places lie in one file."""
        if self._unnoted and (now or time.monotonic() > self._until):
            began = time.monotonic()
            self.store.folders.see(self.folder, self._unnoted)
            self._unnoted, self._until = [], (_REST + 1) * time.monotonic() - _REST * began

    def _describe_again(self) -> None:
        """Describes the videos that an older version has described, without encoding them."""
        for video in self.videos.values():
            film = self.films.get(video.sha256)
            if film is None or film.reason or film.version >= FIELDS_VERSION:
                continue
            try:
                with open_video(video.path) as file:
                    self._keep(film, file, self.store.read(encoder_key(film.spec), film.sha256).rows)
            except DataError as error:
                logger.debug("%s: not described again (%s)", video.id, error)


class _PassingFault(Exception):
    """Why a video could not be read this time, and what to do."""


def _expect_readable(video: VideoPath, refused: OSError | None = None) -> None:
    if refused is not None:
        raise _PassingFault(f"cannot be read ({refused})", "Check the disk and run again.")
    if not video.unchanged:
        raise _PassingFault("it changed while being read", "Run again when it is complete.")


def _recognised(recogniser: Recogniser, video: VideoFile, report: Callable[[float], None]) -> list[SubtitleLine]:
    """The lines of a film, in order of time, without empty ones; it is tried again if the recogniser fails."""
    promised, lines = video.info.duration or float("inf"), list[SubtitleLine]()
    try:
        for line in recogniser.recognise(video):
            plain = replace(line, start=float(line.start), end=float(line.end), text=" ".join(line.text.split()))
            check_line(plain)
            lines += [plain] if plain.text else []
            report(min(1.0, plain.end / promised))
    except VideoError:
        raise
    except Exception as error:  # one film never stops the others, whatever somebody's code stumbles over
        logger.debug("%s", video.path.name, exc_info=True)
        reason = f"not recognised ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        raise _PassingFault(reason, _AGAIN) from error
    return sorted(lines, key=lambda line: line.start)


def encode_video(
    video: VideoFile, encoder: VideoEncoder, rate: float, report: Callable[[float], None] = lambda share: None
) -> Features:
    """The features of an open video. What is the same more than once in a row is encoded once.

    Args:
        video: of [open_video][prvr_search.films.decode.open_video].
        encoder: the encoder of frames or clips.
        rate: frames or clips per second.
        report: called with the share that is done, from 0 to 1.

    Raises:
        VideoError: no frame can be decoded, or the encoder gives no numbers for it.
        ValueError: the rate is not positive, or beyond all sense.

    Examples:
        >>> with open_video("beach.mp4") as video:  # doctest: +SKIP
        ...     encode_video(video, open_encoder("toy"), rate=2.0).shape
        (41, 512)
    """
    check_rate(rate)
    promised = video.info.duration or float("inf")
    rows: Any = None
    # Closed before the file is, whatever happens: the other thread reads it.
    parts = _parts(video, encoder, rate)
    batch_size = max(1, _BATCH // encoder.window.frames) if isinstance(encoder, ClipEncoder) else _BATCH
    with closing(read_ahead(parts, _AHEAD * batch_size)) as prepared:
        while batch := list(islice(prepared, batch_size)):
            clips = np.stack([[frame.pixels for frame in part] for part, _ in batch])
            if isinstance(encoder, ClipEncoder):
                times = np.array([[frame.time for frame in part] for part, _ in batch], np.float32)
                encoded = encoder.encode(clips, times)
            else:
                encoded = encoder.encode(clips[:, 0])
            if not np.isfinite(encoded).all():
                reason = "the encoder gives NaN or infinity for it"
                raise VideoError(video.path, reason, "Try another encoder, or the CPU.")
            rows = np.empty((0, *encoded.shape[1:]), encoded.dtype) if rows is None else rows
            place = len(rows)
            # Grows where it is: a picture may stand for a day, and a second copy of the rows take hundreds of MB.
            rows.resize((place + sum(count for _, count in batch), *rows.shape[1:]), refcheck=False)
            for row, (_, count) in zip(encoded, batch, strict=True):
                rows[place : place + count] = row
                place += count
            report(min(1.0, batch[-1][0][-1].time / promised))
    return encoder.finish(rows)


def _parts(video: VideoFile, encoder: VideoEncoder, rate: float) -> Iterator[tuple[Sequence[Frame], int]]:
    """The clips of a video, or its frames, prepared, and how many times in a row each is there."""
    if isinstance(encoder, ClipEncoder):
        frames = _prepared(video, encoder, encoder.window.frames / encoder.window.seconds)
        parts = _clips(frames, encoder.window, rate, lambda: video.duration)
    else:
        parts = ((frame,) for frame in _prepared(video, encoder, rate))
    for _, group in groupby(parts, key=lambda part: [id(frame.pixels) for frame in part]):
        ((count, part),) = deque(enumerate(group, 1), 1)
        yield part, count


def _prepared(video: VideoFile, encoder: VideoEncoder, rate: float) -> Iterator[Frame]:
    """As `VideoFile.sample`, with pictures as the encoder takes them."""
    pixels = prepared = None
    for frame in video.sample(rate):
        if frame.pixels is not pixels:
            pixels, prepared = frame.pixels, encoder.prepare(frame.pixels)
        assert prepared is not None
        yield Frame(frame.time, prepared)


def _clips(
    frames: Iterator[Frame], window: ClipWindow, rate: float, duration: Callable[[], float]
) -> Iterator[Sequence[Frame]]:
    """The clips of a video, one for each row; those at both ends begin and end with it.

    Args:
        frames: `window.frames` in `window.seconds`.
        duration: in seconds, called when all frames are read.
    """
    held, first, row = list[Frame](), 0, 0  # the first of those that are held, and the next row

    def start() -> int:
        return max(0, math.ceil(((row + 0.5) / rate / window.seconds - 0.5) * window.frames - 0.5))

    for frame in frames:
        held.append(frame)
        while start() + window.frames <= first + len(held) and (row + 0.5) / rate <= frame.time:
            yield held[start() - first :][: window.frames]
            row += 1
        passed = max(0, min(start() - first, len(held) - window.frames))  # the last clip takes the last frames
        del held[:passed]
        first += passed
    last = held[-window.frames :]
    while row == 0 or (row + 0.5) / rate < duration():
        yield [last[i * len(last) // window.frames] for i in range(window.frames)]
        row += 1
