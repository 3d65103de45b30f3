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
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, replace
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from prvr.data.atomic import (
    ABANDONED_AFTER,
    LOCK,
    PATIENCE,
    clear_half_written,
    locked,
    owned,
    replace_file,
    user_cache,
    user_data,
)
from prvr.data.hashes import hash_file
from prvr.encoders import FeatureSpec, Identity
from prvr.errors import DISK_FULL, DataError, unknown_name
from prvr.reading import printable
from prvr_search.films.listing import VideoPath, below, volume_of
from prvr_search.films.subtitles import SubtitleLine
from prvr_search.store.features import (
    DESCRIBED,
    FEATURES,
    SUFFIX,
    FeatureFile,
    FeaturesUnreachable,
    Film,
    encoder_key,
    feature_file,
    is_key,
    is_sha256,
    read_features,
    write_features,
)
from prvr_search.store.folders import FOLDERS, Folders, State
from prvr_search.store.home import MOVED, library_home, moved_to
from prvr_search.store.lines import Lines
from prvr_search.store.proof import Stamp, put_aside, read_proven, stamp_at, stamp_of, sync, write_cached
from prvr_search.store.upgrade import is_old, take_over

logger = logging.getLogger(__name__)

_CLAIMS, _CHANGED = "claims", "changed"
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
        lines: the lines of subtitles.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._named = None if home is None else home.expanduser().absolute()
        self.home = self._place()
        self.folders = Folders(lambda: self.home, self.writable)
        self.lines = Lines(lambda: self._cache / "lines")
        self._films: dict[str, dict[str, Film]] = {}
        self._scanned: object = None
        self._damaged = dict[tuple[str, str], str]()

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
        return self.home, stamp_at(self.home / _CHANGED)

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
        return self._scan().get(key, {})

    def known(self) -> dict[str, Film]:
        """What is kept of all videos that could be read, whatever the encoder, by sha256."""
        films = self._scan()
        of_keys = sorted(films, key=lambda key: key != DESCRIBED)
        return {sha256: film for key in of_keys for sha256, film in films[key].items() if not film.reason}

    def specs(self) -> dict[str, FeatureSpec]:
        """All encoders that there are features of, by key."""
        firsts = ((key, film.spec) for key, films in self._scan().items() for film in islice(films.values(), 1))
        return {key: spec for key, spec in firsts if spec is not None}

    def read(self, key: str, sha256: str) -> FeatureFile:
        """The features of a video, compared with their hash.

        Raises:
            FeaturesUnreachable: links lead out of the library, or the system refuses to read the file.
            DataError: there are none, or the file is damaged, which is put aside.
        """
        path = feature_file(self.home, key, sha256)
        try:
            return read_features(path)
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such file. Run the command again to encode the video.") from error
        except OSError as error:
            raise FeaturesUnreachable(f"{error} Will retry on the next run.") from error
        except DataError as error:
            self._damaged[key, sha256] = str(error)
            self._films.get(key, {}).pop(sha256, None)
            put_aside(path)
            self._touch()
            raise DataError(f"{error} Run the command again to encode the video.") from error

    def lines_of(self, film: Film) -> Sequence[SubtitleLine]:
        """The lines of the text tracks of a film; errors as of `read`."""
        return self.read(film.key, film.sha256).lines

    def has(self, key: str, sha256: str) -> bool:
        """Whether a video has features of an encoder, which can be read.

        Raises:
            FeaturesUnreachable: as `read`.
        """
        try:
            file = self.read(key, sha256)
        except FeaturesUnreachable:
            raise
        except DataError:
            return False
        self._note(file.film)
        return file.film.frames > 0

    def add(
        self,
        film: Film,
        rows: Float32[np.ndarray, "n f"] | None = None,
        lines: Sequence[SubtitleLine] = (),
    ) -> None:
        """Keeps the features of a video, or why it has none; what was kept before is replaced.

        Args:
            film: what is known of the video; the numbers of rows and lines are filled in.
            rows: `(n, f)` features; None: none.
            lines: of its own text tracks.

        Raises:
            FeaturesUnreachable: links lead out of the library.
            LibraryUnwritable: it cannot be written.
        """
        path = feature_file(self.home, film.key, film.sha256)
        if rows is None:
            rows = np.empty((0, 0 if film.spec is None else film.spec.dim), np.float32)
        with self.writable():
            self._note(write_features(path, film, rows, lines))
            self._touch()

    def verify(self, key: str | None, shas: Collection[str]) -> tuple[str, ...]:
        """What is wrong with the features of some videos: their files are read and compared with their hashes.

        Args:
            key: of the encoder; None: of all.
            shas: the videos, by sha256.
        """
        for of, sha256, _ in [*_feature_files(self.home)]:
            if key in (None, of) and sha256 in shas:
                try:
                    self.read(of, sha256)
                except DataError as error:
                    self._damaged[of, sha256] = str(error)
        return tuple(why for (of, sha256), why in self._damaged.items() if key in (None, of) and sha256 in shas)

    def _scan(self) -> dict[str, dict[str, Film]]:
        """What the files of features hold; those that have changed since they were last read are read again."""
        if self._scanned is not None and self._scanned == self.version:
            return self._films
        version = self.version
        if not self._films:
            self._read_catalogue()
        films: dict[str, dict[str, Film]] = {}
        is_new = False
        for key, sha256, stamp in _feature_files(self.home):
            film = self._films.get(key, {}).get(sha256)
            if film is None or film.stamp != stamp:
                is_new = True
                try:
                    file = self.read(key, sha256)
                except DataError as error:
                    logger.warning("%s", error)
                    continue
                film = file.film
            films.setdefault(key, {})[sha256] = film
        is_new |= sum(map(len, films.values())) != sum(map(len, self._films.values()))
        self._films, self._scanned = films, version
        if is_new:
            self._write_catalogue()
        return films

    def _note(self, film: Film) -> None:
        self._films.setdefault(film.key, {})[film.sha256] = film

    def _read_catalogue(self) -> None:
        """Reads what an earlier process knew of the files, which is believed as long as their stamps are the same."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            for key, (values, films) in json.loads(bytes(read_proven(self._cache / "films")[0])).items():
                spec = values and FeatureSpec(Identity(*values[0]), *values[1:])
                self._films[key] = {
                    film[0]: Film(*film, warnings=tuple(warnings), digest=digest, stamp=tuple(stamp), spec=spec)
                    for *film, warnings, digest, stamp in films
                }

    def _write_catalogue(self) -> None:
        films = {}
        for key, of_key in self._films.items():
            spec = next((film.spec for film in of_key.values()), None)
            films[key] = spec and astuple(spec), [[*vars(film).values()][:-1] for film in of_key.values()]
        write_cached(self._cache / "films", [json.dumps(films).encode()])

    def _touch(self) -> None:
        """Lets other processes see that features have changed."""
        with suppress(OSError):
            replace_file(self.home / _CHANGED, lambda file: file.write(secrets.token_bytes(8)), durable=False)

    # The whole.

    def prune(self, folder: Path, videos: Sequence[VideoPath], unlisted: Sequence[Path] = ()) -> tuple[list[str], int]:
        """Deletes what is kept of videos that were seen below a folder, are gone now, and were seen nowhere else.

        Files that are not known yet are read first, for one may have been renamed. What is on a disk that is not there,
        or may be in what cannot be read, is kept, and so is what was never seen.

        Args:
            folder: the folder.
            videos: the videos that it holds now, and those of other folders that a video may have been moved to.
            unlisted: what of the folder cannot be listed.

        Returns:
            The sha256 of the videos that were deleted, and how many are kept because it is not known whether they are
            gone.

        Raises:
            DataError: another process uses the library, or what is known of a folder was damaged.
        """
        if damaged := [*(self.home / FOLDERS).glob("*.damaged")]:
            raise DataError(
                f"{damaged[0]}: nothing was deleted, since it is not known what lies in a folder that was searched. "
                "Search all folders again, or delete this file."
            )
        with self.alone():
            states = {video.state for video in videos}
            records = {state for record in self.folders.all() for state in record.places}
            missing = dict[State, str]()
            unreachable, unread = set[str](), set[int]()
            for state, place in self.folders.places(folder).items():
                if state in states or below(place.path, unlisted):
                    continue
                if volume_of(place.path) != place.volume:
                    unreachable.add(place.sha256)
                else:
                    missing[state] = place.sha256
            sizes = {size for _, size, _ in missing}
            renamed = list[VideoPath]()
            for video in videos:
                if video.size in sizes and video.state not in records:
                    with suppress(OSError):
                        sha256 = hash_file(video.path)
                        if video.unchanged:
                            renamed.append(video._replace(sha256=sha256))
                            continue
                    unread.add(video.size)
            if any(map(_may_be_there, unlisted)):
                unread = sizes
            unreachable |= {sha256 for (_, size, _), sha256 in missing.items() if size in unread}
            self.folders.see(folder, renamed)
            self.folders.forget([state for state, sha256 in missing.items() if sha256 not in unreachable])
            seen = {place.sha256 for record in self.folders.all() for place in record.places.values()}
            unused = sorted({*missing.values()} - seen)
            for key, of_key in self._scan().items():
                for sha256 in unused & of_key.keys():
                    feature_file(self.home, key, sha256).unlink(missing_ok=True)
            self.lines.forget(unused)
            self._touch()
            for place in (self.home / FEATURES).glob("*/??"):
                if not (place.is_symlink() or place.parent.is_symlink()):
                    clear_half_written(place, older_than=ABANDONED_AFTER)
            return unused, len(unreachable)

    def drop_encoder(self, name: str, kept: str = "") -> int:
        """Deletes the features of all videos that encoders of a name have made.

        Args:
            name: the name of the encoders.
            kept: the key of one of them that stays.

        Returns:
            The number of features, one for each video and key.

        Raises:
            DataError: there is no such encoder, a folder is still searched with it, or another process uses the
                library.
        """
        with self.alone():
            specs = self.specs()
            keys = [key for key, spec in specs.items() if spec.encoder.name == name and key != kept]
            if not keys:
                if kept in specs and specs[kept].encoder.name == name:
                    raise DataError(f"{name} is the current encoder. Search the folder with another --encoder first.")
                names = sorted({spec.encoder.name for key, spec in specs.items() if key != kept})
                raise DataError(unknown_name("replaced encoder", name, names))
            for folder in self.folders.all():
                if folder.encoder is not None and encoder_key(folder.encoder) in keys:
                    raise DataError(f"{folder.path}: is searched with {name}. Search it with another --encoder first.")
            films = [film for key in keys for film in self.films(key).values()]
            for film in films:
                feature_file(self.home, film.key, film.sha256).unlink(missing_ok=True)
            self._touch()
            return sum(film.frames > 0 for film in films)

    def import_from(self, home: Path) -> tuple[int, int]:
        """Takes over the features of another library, in which nothing is changed; no file of this one is replaced.

        Files prove themselves, so they are copied as they are. A copy that was interrupted is continued.

        Returns:
            The number of videos that are new here, and of those that were skipped, because the file of their features
            is damaged or not as prvr writes it.

        Raises:
            DataError: there is no library.
        """
        home = home.expanduser().absolute()
        other = Folders(lambda: home, None)
        count = self._take_over(home)
        if not count and not any((home / name).is_dir() for name in (FEATURES, FOLDERS)):
            raise DataError(
                f"{home}: no library found, there is no folder {FEATURES}. Pass a folder given to --library."
            )
        videos, skipped = set[str](), set[str]()
        with self.writable():
            for key, sha256, _ in _feature_files(home):
                path, target = (feature_file(place, key, sha256) for place in (home, self.home))
                if target.exists():
                    continue
                try:
                    file = read_features(path)
                except (DataError, OSError) as error:
                    logger.info("skipped: %s", printable(str(error)))
                    skipped.add(sha256)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                replace_file(target, lambda copy, path=path: copy.write(path.read_bytes()), durable=False)
                if file.film.frames:
                    videos.add(sha256)
            sync()
            self._touch()
            films = {sha256 for of_key in self._scan().values() for sha256 in of_key}
            for record in other.all():
                if places := {state: place for state, place in record.places.items() if place.sha256 in films}:
                    self.folders.add(replace(record, places=places))
        return count + len(videos), len(skipped - videos)

    def _take_over(self, home: Path) -> int:
        """Takes over a library of an older version, this one or another, which stays as it is; gives its videos."""
        if not is_old(home):
            return 0
        count = take_over(self.home, self.folders, home, keep=home != self.home)
        logger.info("%s: %s videos of an earlier version taken over, without encoding", home, f"{count:,}")
        self._touch()
        return count

    def move(self, target: Path) -> None:
        """Moves the library to another folder; later commands find the library of the user there.

        Nothing is deleted before the copy is complete. A move that was interrupted is continued.

        Raises:
            DataError: the folder cannot take it, another process uses the library, or a part of it is a link.
        """
        target = Path(os.path.realpath(target.expanduser()))
        with self.alone():
            home, default = self.home.resolve(), user_data() / "library"
            is_users = home == (moved_to(default) or default).resolve()
            files = _files(home)
            _expect_free(target, home)
            try:
                for path in files:
                    copy = target / path.relative_to(home)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    content = path.read_bytes()
                    replace_file(copy, lambda file, content=content: file.write(content), durable=False)
                    if copy.read_bytes() != content:
                        raise OSError(errno.EIO, "the copy differs", str(copy))
                sync()
            except OSError as error:
                raise DataError(
                    f"{target}: the library cannot be copied there ({error}). It is still in {home}. Free space, or "
                    "name another folder."
                ) from error
            if is_users and target != default.resolve():  # any other is named with --library each time
                default.mkdir(parents=True, exist_ok=True)
                _note_move(default, target)
            (target / MOVED).unlink(missing_ok=True)
            _note_move(home, target)
            shutil.rmtree(home / _CLAIMS, ignore_errors=True)
            for path in [*files, home / _CHANGED]:
                path.unlink(missing_ok=True)
            for folder in [*sorted((home / FEATURES).glob("**/"), reverse=True), home / FOLDERS]:
                with suppress(OSError):  # what is not ours stays
                    (folder / LOCK).unlink(missing_ok=True)
                    folder.rmdir()
        self._named = self._named and target
        self.home = target
        self._films, self._scanned = {}, None

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
                    place = self.home / _CLAIMS / f"process-{os.getpid()}-{secrets.token_hex(4)}"
                    if self._place() == self.home:
                        place.parent.mkdir(exist_ok=True)
                        stack.enter_context(_claim(place))
                        self._take_over(self.home)
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
            self._take_over(self.home)
            for path in (self.home / _CLAIMS).glob("*"):
                with _claim(path, _LONG) as is_free:
                    if not is_free:
                        raise DataError(busy)
            yield

    @contextmanager
    def claimed(self, key: str, sha256: str) -> Iterator[bool]:
        """Claims a video inside the `with` statement, so that no other process encodes it; False if another has.

        On a file system without locks it is claimed at once, and two processes may encode the same video.
        """
        path = self.home / _CLAIMS / f"{key}-{sha256}"
        is_mine = True
        with ExitStack() as stack:
            with self.writable():
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    is_mine = stack.enter_context(_claim(path))
                except OSError as error:
                    if error.errno != errno.ENOLCK:
                        raise
            yield is_mine


def _feature_files(home: Path) -> Iterator[tuple[str, str, Stamp]]:
    """Of every file of features the key, the sha256 of the video and the stamp; links are not followed."""
    for keys in _folders(home / FEATURES):
        for place in _folders(Path(keys.path)) if is_key(keys.name) else ():
            for entry in os.scandir(place.path):
                name = entry.name.removesuffix(SUFFIX)
                if entry.name.endswith(SUFFIX) and is_sha256(name) and name[:2] == place.name:
                    with suppress(FileNotFoundError):
                        yield keys.name, name, stamp_of(entry.stat(follow_symlinks=False))


def _folders(place: Path) -> list[os.DirEntry[str]]:
    with suppress(OSError):
        return sorted((e for e in os.scandir(place) if e.is_dir(follow_symlinks=False)), key=lambda entry: entry.name)
    return []


def _files(home: Path) -> list[Path]:
    """The files that a library is made of.

    Raises:
        DataError: there are none, or one of them is a link.
    """
    paths = [home / FEATURES, *(home / FEATURES).rglob("*"), home / FOLDERS, *(home / FOLDERS).glob("*")]
    if links := [path for path in paths if path.is_symlink()]:
        raise DataError(
            f"{links[0]}: is a symbolic link; a library is moved with all that it holds. Put what the link leads to in "
            "its place, or move only that and renew the link."
        )
    files = [path for path in paths if path.is_file() and path.name != LOCK]
    if not files:
        raise DataError(f"{home}: no library found to move.")
    return files


def _expect_free(target: Path, home: Path) -> None:
    """Refuses a folder that a library cannot be moved to.

    Raises:
        DataError: says why.
    """
    try:
        for inner, outer in ((target, home), (home, target)):
            if any(path.exists() and path.samefile(outer) for path in (inner, *inner.parents) if outer.exists()):
                raise DataError(f"{target}: overlaps the library {home}. Name another folder.")
        names = {path.name for path in target.iterdir()} if target.exists() else set()
    except OSError as error:
        raise DataError(f"{target}: cannot be read ({error}). Name a new folder.") from error
    was_ours = moved_to(target) == home  # the library comes back
    if MOVED in names and not was_ours:
        raise DataError(f"{target}: another library was moved away from there. Name a new folder.")
    if names - {FEATURES, FOLDERS, *((MOVED, LOCK) if was_ours else ())}:
        raise DataError(f"{target}: already exists and is not empty. Name a new folder.")


def _note_move(home: Path, target: Path) -> None:
    replace_file(home / MOVED, lambda file: file.write(os.fsencode(target) + b"\n"))


def _may_be_there(path: Path) -> bool:
    """Whether there is a file or folder, or that cannot be told; links to nothing are none."""
    try:
        path.stat()
    except OSError as error:
        return error.errno != errno.ENOENT
    return True


@contextmanager
def _claim(path: Path, wait: float = 0.0) -> Iterator[bool]:
    """Locks a file as `locked` does, and deletes it at the end."""
    with locked(path, wait) as is_mine:
        try:
            yield is_mine
        finally:
            if is_mine:
                with suppress(OSError):  # somebody who has it open looks again whether there are features now
                    path.unlink()
