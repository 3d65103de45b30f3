"""The library of a user on disk: features of videos, and what is known of the folders that were searched.

A video is known by the sha256 of its file. Features, faults and descriptions belong to that content; where it was seen
is kept apart. So a file that is renamed, moved, copied or on a disk that is away costs nothing.
"""

import errno
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pydantic import TypeAdapter

from prvr.data.atomic import PATIENCE, locked, owned, replace_file, user_cache
from prvr.encoders import FeatureSpec, VideoEntry
from prvr.errors import DISK_FULL, DataError
from prvr.reading import printable
from prvr_search.films import Film, SubtitleLine
from prvr_search.store.features import (
    DESCRIBED,
    KEY,
    NO_ROWS,
    RECOGNISED,
    SUFFIX,
    FeatureFile,
    Features,
    FeaturesUnreachable,
    encoder_key,
    feature_file,
    is_sha256,
    read_features,
    write_features,
)
from prvr_search.store.folders import Folders
from prvr_search.store.lines import Lines
from prvr_search.store.proof import (
    FEATURES,
    Stamp,
    library_home,
    moved_to,
    put_aside,
    read_proven,
    stamp_at,
    stamp_of,
    write_cached,
)
from prvr_search.store.upgrade import take_over

logger = logging.getLogger(__name__)

CLAIMS, CHANGED = "claims", "changed"
"""What lies in a library beside what is kept: the locks of processes and videos, and what changes with features."""
_CATALOGUE = TypeAdapter(dict[str, dict[str, Film]])
_MANY = 2000  # files that are read in seconds
_LONG = 24 * 3600.0  # seconds to wait for processes that use the library, before it is moved or pruned


class LibraryUnwritable(DataError):
    """The library cannot be written: the disk is full, or it is read-only."""


class Store:
    """The library of a user on disk, for all folders and encoders.

    Files appear whole or not at all, so a process that is killed leaves the state before or after one video. Several
    processes may read and write at once.

    Args:
        home: the folder; it is made when the first thing is written.

    Attributes:
        folders: what is known of the folders that were searched.
        lines: the lines of subtitles and recognisers.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._named = None if home is None else home.expanduser().absolute()
        self.home = self._place()
        self.folders = Folders(lambda: self.home, self.writable)
        self.lines = Lines(lambda: self._cache / "lines")
        self._films: dict[str, dict[str, Film]] = {}
        self._scanned: object = None

    def _place(self) -> Path:
        """The folder as it is now: another process may have moved the library."""
        if self._named is None:
            return library_home()
        if (place := moved_to(self._named)) is not None:
            raise DataError(f"{self._named}: this library was moved to {printable(str(place))}. Name that folder.")
        return self._named

    @property
    def _cache(self) -> Path:
        """Where what is derived of this library lies."""
        return user_cache() / "library" / hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]

    @property
    def version(self) -> object:
        """Changes when features are written; cheap to read."""
        return self.home, stamp_at(self.home / CHANGED)

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Explains, inside the `with` statement, why the library cannot be written."""
        try:
            yield
        except OSError as error:
            full = error.errno in DISK_FULL
            reason = "the disk is full" if full else f"cannot be written ({error})"
            remedy = "Free space on the disk" if full else "Fix its permissions"
            raise LibraryUnwritable(
                f"{self.home}: {reason}. Finished videos are kept. {remedy}, or choose another folder with --library."
            ) from error

    # Features.

    def films(self, key: str) -> Mapping[str, Film]:
        """What is kept of videos for an encoder, by sha256; of what another process has written, too."""
        return self.by_key().get(key, {})

    def known(self) -> dict[str, Film]:
        """What is kept of all videos that could be read, whatever the encoder, by sha256."""
        films = self.by_key()
        of_keys = sorted((key for key in films if not key.startswith(RECOGNISED)), key=lambda key: key != DESCRIBED)
        return {sha256: film for key in of_keys for sha256, film in films[key].items() if not film.reason}

    def with_lines(self) -> dict[tuple[str, str], Film]:
        """What is kept of videos with lines, by sha256 and key of a recogniser; that of text tracks is empty."""
        of_keys = [(key, films) for key, films in self.by_key().items() if key.startswith(RECOGNISED)]
        of_keys.append(("", self.known()))
        return {(sha256, key): film for key, films in of_keys for sha256, film in films.items() if film.lines}

    def specs(self) -> dict[str, FeatureSpec]:
        """All encoders that there are features of, and recognisers, by key."""
        films = self.by_key().items()
        return {key: film.spec for key, of_key in films for film in of_key.values() if film.spec is not None}

    def read(self, key: str, sha256: str) -> FeatureFile:
        """The features of a video, compared with their hash.

        Raises:
            FeaturesUnreachable: links lead out of the library, or the system refuses to read the file.
            DataError: there are none, or the file is damaged, which is put aside, but for lines.
        """
        path = feature_file(self.home, key, sha256)
        try:
            return read_features(path)
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such file. Run the command that made it again.") from error
        except OSError as error:
            raise FeaturesUnreachable(f"{error} Will retry on the next run.") from error
        except DataError as error:
            self._films.get(key, {}).pop(sha256, None)
            if not key.startswith(RECOGNISED) or not path.is_file():  # no search makes lines again: each says so
                put_aside(path)
                self.touch()
            raise DataError(f"{error} Run the command that made it again.") from error

    def rows_of(self, key: str, video: VideoEntry) -> Features:
        """The features of a video as they were when its record was made; errors as of `read`, or they were replaced."""
        file = self.read(key, video.sha256)
        if file.film.digest != video.features:
            raise DataError(f"{video.id}: its features were replaced just now. Search again.")
        return file.rows

    def lines_of(self, film: Film) -> Sequence[SubtitleLine]:
        """The lines that the file of a film holds; errors as of `read`."""
        return self.read(encoder_key(film.spec), film.sha256).lines

    def readable(self, key: str, sha256: str) -> Film | None:
        """What is kept of a video, if it has features of an encoder, or was recognised, and the file can be read.

        Raises:
            FeaturesUnreachable: as `read`.
        """
        try:
            file = self.read(key, sha256)
        except FeaturesUnreachable:
            raise
        except DataError:
            return None
        return None if file.film.reason else file.film

    def add(self, film: Film, rows: Features = NO_ROWS, lines: Sequence[SubtitleLine] = ()) -> None:
        """Keeps the features of a video, or why it has none; what was kept before is replaced.

        Args:
            film: what is known of the video; the numbers of rows and lines are filled in.
            rows: `(n, f)` features.
            lines: of its own text tracks.

        Raises:
            FeaturesUnreachable: links lead out of the library.
            LibraryUnwritable: it cannot be written.
        """
        key = encoder_key(film.spec)
        path = feature_file(self.home, key, film.sha256)
        with self.writable():
            self._films.setdefault(key, {})[film.sha256] = write_features(path, film, rows, lines)
            self.touch()

    def delete(self, films: Sequence[Film]) -> None:
        """Deletes what is kept of films."""
        for film in films:
            feature_file(self.home, encoder_key(film.spec), film.sha256).unlink(missing_ok=True)
        self.touch()

    def by_key(self) -> Mapping[str, Mapping[str, Film]]:
        """What the files of features hold, by key and sha256; those that have changed are read again."""
        if self._scanned == (version := self.version):
            return self._films
        if not self._films:  # what an earlier process knew is believed as long as the stamps are the same
            with suppress(OSError, ValueError):
                self._films = _CATALOGUE.validate_json(bytes(read_proven(self._cache / "films")[0]))
        films: dict[str, dict[str, Film]] = {}
        unread = 0
        for key, sha256, stamp in feature_files(self.home):
            film = self._films.get(key, {}).get(sha256)
            if film is None or film.stamp != stamp:
                if (unread := unread + 1) == _MANY:
                    logger.info("%s: reading the features of many videos, once", self.home)
                try:
                    film = self.read(key, sha256).film
                except DataError as error:
                    logger.warning("%s", error)
                    continue
            films.setdefault(key, {})[sha256] = film
        is_new, self._films, self._scanned = films != self._films, films, version
        if is_new:
            write_cached(self._cache / "films", [json.dumps(films, default=vars).encode()])
        return films

    def touch(self) -> None:
        """Lets other processes see that features have changed."""
        with suppress(OSError):
            replace_file(self.home / CHANGED, secrets.token_bytes(8), durable=False)

    def take_over(self, home: Path) -> int:
        """Takes over a library of an older version, this one or another, which stays as it is; gives its videos."""
        count = take_over(self.home, self.folders, home)
        if count is not None:
            logger.info("%s: %s videos of an earlier version taken over, without encoding", home, f"{count:,}")
            self.touch()
        return count or 0

    def follow(self, target: Path) -> None:
        """Uses the library in the folder that it was moved to."""
        self._named, self.home = self._named and target, target

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the `with` statement, no other process moves or prunes the library; one that was moved is followed.

        A library of an older version is taken over first. One that cannot be written, or whose file system has no
        locks, is used as it is.

        Raises:
            DataError: another process does not end.
        """
        with ExitStack() as stack:
            with suppress(OSError, LibraryUnwritable):
                self.home = self._place()
                self.home.mkdir(parents=True, exist_ok=True)
                with owned(self.home, wait=PATIENCE):
                    if self._place() == self.home:
                        stack.enter_context(self._claim(f"process-{os.getpid()}-{secrets.token_hex(4)}"))
                        self.take_over(self.home)
            if self._place() != self.home:  # it was moved while this process waited
                stack.enter_context(self.in_use())
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside the `with` statement, no other process uses the library.

        Raises:
            DataError: another process does not end.
        """
        busy = f"{self.home}: another process is using this library. Wait until it has finished, then run again."
        self.home = self._place()
        with ExitStack() as stack:
            try:
                self.home.mkdir(parents=True, exist_ok=True)
                stack.enter_context(owned(self.home, busy, wait=_LONG))
            except OSError as error:
                raise DataError(
                    f"{self.home}: cannot be locked ({error}). Fix its permissions, or copy it to a disk that has "
                    "locks, and name the copy with --library."
                ) from error
            stack.enter_context(self.writable())
            if self._place() != self.home:
                raise DataError(f"{self.home}: was just moved by another process. Run again.")
            self.take_over(self.home)
            for path in (self.home / CLAIMS).glob("*"):
                with self._claim(path.name, _LONG) as is_free:
                    if not is_free:
                        raise DataError(busy)
            yield

    @contextmanager
    def claimed(self, key: str, sha256: str) -> Iterator[bool]:
        """Claims a video inside the `with` statement, so that no other process encodes it; False if another has.

        On a file system without locks it is claimed at once, and two processes may encode the same video.
        """
        is_mine = True
        with ExitStack() as stack:
            with self.writable():
                try:
                    is_mine = stack.enter_context(self._claim(f"{key}-{sha256}"))
                except OSError as error:
                    if error.errno != errno.ENOLCK:
                        raise
            yield is_mine

    @contextmanager
    def _claim(self, name: str, wait: float = 0.0) -> Iterator[bool]:
        """Locks a file as `locked` does, and deletes it at the end; never what a link leads to."""
        path = self.home / CLAIMS / name
        if path.parent.is_symlink():
            raise OSError(errno.ELOOP, "a link, which is not followed", str(path.parent))
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path, wait) as is_mine:
            try:
                yield is_mine
            finally:
                if is_mine:
                    with suppress(OSError):  # somebody who has it open looks again whether there are features now
                        path.unlink()


def feature_files(home: Path) -> Iterator[tuple[str, str, Stamp]]:
    """Of every file of features the key, the sha256 of the video and the stamp; links are not followed."""
    for place, folders, names in os.walk(home / FEATURES):
        folders.sort()
        *_, key, start = Path(place).parts
        if KEY.fullmatch(key) and len(start) == 2:
            for name in (*folders, *names):
                sha256 = name.removesuffix(SUFFIX)
                if name.endswith(SUFFIX) and is_sha256(sha256) and sha256[:2] == start:
                    with suppress(FileNotFoundError):
                        yield key, sha256, stamp_of(os.lstat(f"{place}/{name}"))
            folders.clear()  # nothing lies deeper
