"""What is kept of videos on disk: a SQLite file of what is known, and a file of features per video and encoder.

A video is known by the sha256 of its file. Features, faults and descriptions belong to that content; where it was seen
is kept apart. So a file that is renamed, moved, copied or on a disk that is away costs nothing.
"""

import errno
import filecmp
import json
import logging
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from prvr.data.atomic import (
    ABANDONED_AFTER,
    LOCK,
    PATIENCE,
    clear_half_written,
    is_marked,
    locked,
    mark,
    owned,
    replace_file,
    unmark,
    user_data,
)
from prvr.data.hashes import hash_file
from prvr.encoders.entries import FeatureSpec
from prvr.errors import DataError, unknown_name
from prvr.reading import parse_record, printable, read_json, short
from prvr_search.films.decode import FIELDS_VERSION
from prvr_search.films.listing import VideoPath, below, prefix_of, volume_of
from prvr_search.store.arrays import (
    FEATURES,
    SPEC,
    encoder_key,
    feature_file,
    is_sha256,
    parse_about,
    read_rows,
    read_specs,
)
from prvr_search.store.database import BELOW, FILE, Database, bounds
from prvr_search.store.home import MOVED, library_home, moved_to
from prvr_search.store.lines import Lines, drop_lines

logger = logging.getLogger(__name__)

_PART = 4096  # rows that are compared at a time
_FOLDERS, _CLAIMS = "folders.json", "claims"
_SHORT = 5.0  # seconds to wait for processes that use the library, before it is moved or pruned
_OF_ENCODER = "SELECT encoder, sha256 FROM features WHERE encoder = ?"
_OLDER = "not described by this version of prvr"


@dataclass(frozen=True)
class Fault:
    """Why a video cannot be encoded.

    Args:
        reason, remedy: what is wrong, and what to do.
    """

    reason: str
    remedy: str


@dataclass(frozen=True)
class _Choices:
    """The content of `folders.json`: the key of the encoder of each folder, and whether the user named it."""

    folders: dict[str, tuple[str, bool]]


class Storage:
    """The library of a user on disk, for all folders and encoders.

    Every change is one transaction. Features are written whole before it, so a process that is killed leaves the state
    before or after one video. Several processes may read and write at once.

    Args:
        home: the folder; it is made when the first thing is written.

    Attributes:
        lines: the lines of subtitles.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._named = None if home is None else home.expanduser().absolute()
        self._database = Database(self._place())
        self.lines = Lines(self._database)
        self._specs: dict[str, FeatureSpec] = {}

    @property
    def home(self) -> Path:
        """The folder."""
        return self._database.home

    def _place(self) -> Path:
        """The folder as it is now: another process may have moved the library."""
        if self._named is None:
            return library_home()
        if (place := moved_to(self._named)) is not None:
            raise DataError(f"{self._named}: this library was moved to {printable(str(place))}. Name that folder.")
        return self._named

    @property
    def version(self) -> tuple[int, int]:
        """Changes when something is written; cheap to read."""
        return self._database.version

    def writable(self) -> AbstractContextManager[None]:
        """Explains, inside the `with` statement, why the library cannot be written."""
        return self._database.writable()

    @property
    def damages(self) -> int:
        """How often the SQLite file was found to be damaged; it is put aside, and what is missing is noted again."""
        return self._database.damages

    def spec(self, key: str) -> FeatureSpec | None:
        """The features that a key of an encoder stands for."""
        if key not in self._specs:
            self._specs |= self.specs()
        return self._specs.get(key)

    def specs(self) -> dict[str, FeatureSpec]:
        """All encoders that there are features of, by key."""
        return read_specs(self.home, self._database.read("SELECT key, spec FROM encoders"))

    def contents(self, folder: Path, videos: Iterable[VideoPath]) -> dict[str, str]:
        """The sha256 of videos below a folder that were seen with the same path, size and time of change, by id."""
        hashes = {row[:3]: row[4] for row in self._places(folder)}
        states = ((video.id, _state(video)) for video in videos)
        return {name: hashes[state] for name, state in states if state in hashes}

    def encoded(self, encoder: str) -> dict[str, int]:
        """The number of rows of the videos that have features of an encoder, by sha256."""
        rows = self._database.read("SELECT sha256, frames FROM features WHERE encoder = ?", (encoder,))
        return {sha256: frames for sha256, frames in rows if is_sha256(sha256) and _is_count(frames)}

    def has_features(self, encoder: str, sha256: str) -> bool:
        """Whether a video has features of an encoder.

        Where the SQLite file does not know them, because it was lost or damaged, but they are there, they are noted.

        Raises:
            FeaturesElsewhere: links lead out of the library.
        """
        self._array(encoder, sha256)
        rows = self._database.read("SELECT frames FROM features WHERE encoder = ? AND sha256 = ?", (encoder, sha256))
        if rows and _is_count(rows[0][0]):
            return True
        try:
            array, digest = self._read(encoder, sha256)
        except DataError:
            return False
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", (sha256, encoder, len(array), digest)
            )
        return True

    def about(self, encoder: str, *, others: bool = False) -> dict[str, dict[str, Any]]:
        """What is known of the videos that have features of an encoder, as `VideoEntry` names it, by sha256.

        Args:
            encoder: the key of the encoder.
            others: also of all other videos, with 0 frames.
        """
        return {sha256: about for sha256, about, _ in self._descriptions(encoder, others)}

    def outdated(self, encoder: str, *, others: bool = False) -> dict[str, str]:
        """Why some videos are to be described again, by sha256; arguments as of `about`."""
        return {sha256: reason for sha256, _, reason in self._descriptions(encoder, others) if reason}

    def _descriptions(self, encoder: str, others: bool = False) -> Iterator[tuple[str, dict[str, Any], str]]:
        """The sha256 of videos, what is known of each, and why it is to be described again, or an empty text."""
        rows = self._database.read(
            "SELECT features.sha256, frames, about, version FROM features LEFT JOIN videos USING (sha256) "
            "WHERE encoder = ?",
            (encoder,),
        )
        spec = self.spec(encoder)
        for sha256, frames, text, version in rows:
            if spec is None or not is_sha256(sha256) or not _is_count(frames):
                continue
            try:
                about, reason = parse_about(text, sha256, frames), ""
            except DataError as error:
                about = {"duration": frames / spec.rate, "width": 0, "height": 0, "codec": ""}
                about, reason = about | {"sha256": sha256, "frames": frames}, str(error)
            if text is None or not _is_count(version) or version < FIELDS_VERSION:
                reason = _OLDER
            yield sha256, about, reason
        if others:
            unencoded = self._database.read(
                "SELECT sha256, about, version FROM videos "
                "WHERE sha256 NOT IN (SELECT sha256 FROM features WHERE encoder = ?)",
                (encoder,),
            )
            for sha256, text, version in unencoded:
                with suppress(DataError):  # otherwise it is not known
                    is_current = _is_count(version) and version >= FIELDS_VERSION
                    yield sha256, parse_about(text, sha256, 0), "" if is_current else _OLDER

    def faults(self, encoder: str) -> dict[str, Fault]:
        """The videos that cannot be encoded, by sha256."""
        rows = self._database.read("SELECT sha256, reason, remedy FROM faults WHERE encoder = ?", (encoder,))
        return {sha256: Fault(str(reason), str(remedy)) for sha256, reason, remedy in rows}

    def places(self, folder: Path) -> list[tuple[VideoPath, str]]:
        """Where videos were seen below a folder, now or earlier, each with its sha256; the latest last."""
        cut = len(prefix_of(folder))
        return [
            (VideoPath(os.fsdecode(path)[cut:], Path(os.fsdecode(path)), size, mtime, volume), sha256)
            for path, size, mtime, volume, sha256 in self._places(folder)
        ]

    def _places(self, folder: Path) -> list[tuple[Any, ...]]:
        """Path, size, time of change, volume and sha256 of what was seen below a folder, the latest last.

        In the order of the rows: clocks go back.
        """
        rows = self._database.read(
            f"SELECT path, size, mtime_ns, volume, sha256 FROM places WHERE {BELOW} ORDER BY rowid", bounds(folder)
        )
        return [row for row in rows if is_place(*row[:3]) and is_sha256(row[4])]

    def last_seen(self, folder: Path) -> tuple[VideoPath, ...]:
        """The videos that were seen below a folder, each path as it was seen last."""
        return tuple({place.path: place for place, _ in self.places(folder)}.values())

    def encoder_of(self, folder: Path) -> tuple[FeatureSpec | None, bool]:
        """The features that a folder, or one above it, was last searched with, and whether the user named them."""
        choices = self._choices(self._database.read("SELECT path, encoder, named FROM folders"))
        for place in (folder, *folder.parents):
            if (choice := choices.get(str(place))) is not None:
                return self.spec(choice[0]), choice[1]
        return None, False

    def _choices(self, rows: Iterable[tuple[Any, ...]]) -> dict[str, tuple[str, bool]]:
        """The keys of the encoders of folders, and whether the user named them.

        They are noted beside the features too, in case the SQLite file is lost.

        Args:
            rows: what the SQLite file has: path, key, and whether it was named.
        """
        choices: dict[str, tuple[str, bool]] = {}
        with suppress(FileNotFoundError, DataError):
            note = read_json(self.home / FEATURES / _FOLDERS)
            choices = dict(parse_record(_Choices, note, _FOLDERS, file_names=True).folders)
        choices |= {
            os.fsdecode(path): (key, bool(named)) for path, key, named in rows if is_place(path) and self.spec(key)
        }
        return {path: choice for path, choice in choices.items() if self.spec(choice[0])}

    def _note_choices(self, connection: sqlite3.Connection) -> None:
        rows = connection.execute("SELECT path, encoder, named FROM folders").fetchall()
        text = json.dumps({"folders": self._choices(rows)}, indent=1)
        (self.home / FEATURES).mkdir(parents=True, exist_ok=True)
        replace_file(self.home / FEATURES / _FOLDERS, lambda file: file.write(text.encode()))

    def read_features(self, encoder: str, sha256: str) -> Float32[np.ndarray, "n f"]:
        """The features of a video.

        Raises:
            DataError: the file is missing or damaged.
        """
        try:
            return self._read(encoder, sha256)[0]
        except DataError as error:
            raise DataError(f"{error} Run the command again to encode the video.") from error

    def check(self, encoder: str, shas: Collection[str]) -> dict[str, str]:
        """What is wrong with the features of some videos, by sha256: their files are read and their hashes compared."""
        rows = self._database.read("SELECT sha256, frames, hash FROM features WHERE encoder = ?", (encoder,))
        problems = {}
        for sha256, frames, digest in rows:
            if sha256 not in shas:
                continue
            try:
                features, hash_now = self._read(encoder, sha256)
                if (len(features), hash_now) != (frames, digest):
                    problems[sha256] = f"{self._array(encoder, sha256)}: does not match its hash"
            except DataError as error:
                problems[sha256] = str(error)
        return problems

    def check_descriptions(self, encoder: str, shas: Collection[str]) -> dict[str, str]:
        """What is wrong with what is known of some videos that have features, by sha256."""
        return {
            sha256: f"{self._database.file}: video {sha256}: {reason}"
            for sha256, reason in self.outdated(encoder).items()
            if sha256 in shas and reason != _OLDER
        }

    def size(self, encoder: str, shas: Collection[str]) -> int:
        """Size of the features of some videos, in bytes."""
        total = 0
        for sha256 in shas:
            with suppress(OSError, DataError):
                total += self._array(encoder, sha256).stat().st_size
        return total

    def add_encoder(self, spec: FeatureSpec) -> str:
        """The key of an encoder, which is noted if it is new."""
        key = encoder_key(spec)
        folder = self.home / FEATURES / key
        if self.specs().get(key) != spec or not (folder / SPEC).is_file():
            text = json.dumps(asdict(spec))
            with self._database.write() as connection:
                folder.mkdir(parents=True, exist_ok=True)
                replace_file(folder / SPEC, lambda file: file.write(text.encode()))
                connection.execute("INSERT OR REPLACE INTO encoders VALUES (?, ?)", (key, text))
        return key

    def use_encoder(self, folder: Path, encoder: str, named: bool) -> None:
        """Notes which encoder a folder is searched with."""
        with self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", (os.fsencode(folder), encoder, named))
            self._note_choices(connection)

    def see(self, videos: Mapping[str, Sequence[VideoPath]]) -> None:
        """Notes where videos were seen, by sha256."""
        if videos:
            with self._database.write() as connection:
                _see(connection, ((sha256, video) for sha256, places in videos.items() for video in places))

    def add(
        self,
        encoder: str,
        sha256: str,
        rows: Float32[np.ndarray, "n f"],
        about: Mapping[str, Any] | None,
        place: VideoPath | None = None,
        version: int = FIELDS_VERSION,
    ) -> None:
        """Keeps the features of a video: in half precision, or in full where that would lose more than rounding.

        Args:
            encoder: the key of the encoder.
            sha256: of the file.
            rows: `(n, f)`.
            about: the fields of `VideoEntry` that hold for the content; None: it is described later.
            place: where it was seen.
            version: of the fields; those of an older one are read again.
        """
        path = self._array(encoder, sha256)
        array = rows.astype(np.float16) if _fits_half(rows) else rows
        with self._database.writable():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda file: np.save(file, np.ascontiguousarray(array), allow_pickle=False))
        with self._database.write() as connection:
            values = (sha256, encoder, len(rows), hash_file(path))
            connection.execute("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", values)
            if about is not None:
                _describe(connection, sha256, about, version)
            _see(connection, [] if place is None else [(sha256, place)])

    def describe(self, sha256: str, about: Mapping[str, Any]) -> None:
        """Replaces what is known of a video."""
        with self._database.write() as connection:
            _describe(connection, sha256, about)

    def add_fault(self, encoder: str, sha256: str, fault: Fault) -> None:
        """Notes that an encoder cannot encode a video."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO faults VALUES (?, ?, ?, ?)", (sha256, encoder, fault.reason, fault.remedy)
            )

    def drop_features(self, encoder: str, shas: Collection[str], *, aside: bool = False) -> None:
        """Forgets that some videos have features, so that they are encoded again if the files cannot be read.

        Args:
            encoder: the key of the encoder.
            shas: the videos, by sha256.
            aside: rename the files, which can be read but are not what was written.
        """
        with self._database.write() as connection:
            connection.executemany(
                "DELETE FROM features WHERE sha256 = ? AND encoder = ?", [(sha256, encoder) for sha256 in shas]
            )
            for sha256 in shas if aside else ():
                with suppress(FileNotFoundError, DataError):
                    path = self._array(encoder, sha256)
                    path.replace(path.with_suffix(".damaged"))

    def folders(self) -> list[Path]:
        """The folders that were searched."""
        rows = self._database.read("SELECT path FROM folders")
        return [Path(os.fsdecode(path)) for (path,) in rows if is_place(path)]

    def prune(self, folder: Path, videos: Sequence[VideoPath], unlisted: Sequence[Path] = ()) -> tuple[list[str], int]:
        """Deletes what is kept of videos that were seen below a folder, are gone now, and were seen nowhere else.

        Files that are not known yet are read first, for one may have been renamed. What is on a disk that is not there,
        or may be in what cannot be read, is kept.

        Args:
            folder: the folder.
            videos: the videos that it holds now, and those of other folders that a video may have been moved to.
            unlisted: what of the folder cannot be listed.

        Returns:
            The sha256 of the videos that were deleted, and how many are kept because it is not known whether they are
            gone.

        Raises:
            DataError: another process uses the library.
        """
        with self._alone():
            states = {_state(video) for video in videos}
            records = {row[:3] for row in self._database.read("SELECT path, size, mtime_ns FROM places")}
            missing = dict[tuple[Any, ...], str]()
            unreachable = set[str]()
            unread = set[int]()
            for place, sha256 in self.places(folder):
                if _state(place) in states or below(place.path, unlisted):
                    continue
                if volume_of(place.path) != place.volume:
                    unreachable.add(sha256)
                else:
                    missing[_state(place)] = sha256
            sizes = {size for _, size, _ in missing}
            renamed = list[tuple[str, VideoPath]]()
            for video in videos:
                if video.size in sizes and _state(video) not in records:
                    with suppress(OSError):
                        sha256 = hash_file(video.path)
                        if video.unchanged:
                            renamed.append((sha256, video))
                            continue
                    unread.add(video.size)
            if any(map(_may_be_there, unlisted)):
                unread = sizes
            unreachable |= {sha256 for (_, size, _), sha256 in missing.items() if size in unread}
            with self._database.write() as connection:
                _see(connection, renamed)
                connection.executemany(
                    "DELETE FROM places WHERE path = ? AND size = ? AND mtime_ns = ?",
                    [state for state, sha256 in missing.items() if sha256 not in unreachable],
                )
                seen = {row[0] for row in connection.execute("SELECT sha256 FROM places")}
                unused = sorted({*missing.values()} - seen)
                arrays = [*self._arrays(connection, unused)]
                for table in ("features", "faults", "videos"):
                    connection.executemany(f"DELETE FROM {table} WHERE sha256 = ?", [(sha256,) for sha256 in unused])
                for sha256 in unused:
                    drop_lines(connection, "sha256 = ?", (sha256,))
            for path in arrays:
                path.unlink(missing_ok=True)
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
        with self._alone():
            specs = self.specs()
            keys = [key for key, spec in specs.items() if spec.encoder.name == name and key != kept]
            if not keys:
                if kept in specs and specs[kept].encoder.name == name:
                    raise DataError(f"{name} is the current encoder. Search the folder with another --encoder first.")
                names = sorted({spec.encoder.name for key, spec in specs.items() if key != kept})
                raise DataError(unknown_name("replaced encoder", name, names))
            for folder in self.folders():
                if (spec := self.encoder_of(folder)[0]) is not None and encoder_key(spec) in keys:
                    raise DataError(f"{folder}: is searched with {name}. Search it with another --encoder first.")
            with self._database.write() as connection:
                rows = [row for key in keys for row in connection.execute(_OF_ENCODER, (key,))]
                for key in keys:
                    for table, column in (("features", "encoder"), ("faults", "encoder"), ("encoders", "key")):
                        connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (key,))
            for encoder, sha256 in rows:
                with suppress(DataError):  # it names no file of this library
                    self._array(encoder, sha256).unlink(missing_ok=True)
            for key in keys:
                (self.home / FEATURES / key / SPEC).unlink(missing_ok=True)
            self._specs.clear()
            return len(rows)

    def take_over(
        self,
        places: Iterable[tuple[Any, ...]],
        folders: Iterable[tuple[bytes, str, int]],
        faults: Mapping[tuple[str, str], Fault],
    ) -> None:
        """Notes what another library knows and this one does not.

        Args:
            places: path, size, time of change, volume, time and sha256 of videos.
            folders: path, key of the encoder, and whether the user named it.
            faults: by sha256 and encoder.
        """
        with self._database.write() as connection:
            connection.executemany("INSERT OR IGNORE INTO places VALUES (?, ?, ?, ?, ?, ?)", places)
            connection.executemany("INSERT OR IGNORE INTO folders VALUES (?, ?, ?)", folders)
            rows = [(*key, fault.reason, fault.remedy) for key, fault in faults.items()]
            connection.executemany("INSERT OR IGNORE INTO faults VALUES (?, ?, ?, ?)", rows)
            self._note_choices(connection)

    def move(self, target: Path) -> None:
        """Moves the library to another folder; later commands find the library of the user there.

        Nothing is deleted before the copy is complete and compared. A move that was interrupted is begun again.

        Raises:
            DataError: the folder cannot take it, another process uses the library, or a part of it is a link.
        """
        target = Path(os.path.realpath(target.expanduser()))
        with self._alone():
            home, default = self.home.resolve(), user_data() / "library"
            is_users = home == (moved_to(default) or default).resolve()
            files = self._files(home)
            _expect_empty(target, home)
            copies = [target / path.relative_to(home) for path in files]
            try:
                target.mkdir(parents=True, exist_ok=True)
                mark(target)
                for path, copy in zip(files, copies, strict=True):
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, copy)
                    if not filecmp.cmp(path, copy, shallow=False):
                        raise OSError(errno.EIO, "the copy differs", str(copy))
                if hasattr(os, "sync"):
                    os.sync()
            except BaseException as error:
                with suppress(OSError):
                    _remove(target, copies)
                    target.rmdir()
                if isinstance(error, OSError):
                    raise DataError(
                        f"{target}: the library cannot be copied there ({error}). It is still in {home}. Free space, "
                        "or name another folder."
                    ) from error
                raise
            if is_users and target != default.resolve():  # any other is named with --library each time
                default.mkdir(parents=True, exist_ok=True)
                _note_move(default, target)
            (target / MOVED).unlink(missing_ok=True)
            _note_move(home, target)
            unmark(target)  # or who uses it next does: until here, it can be begun again
            mark(home)
            shutil.rmtree(home / _CLAIMS, ignore_errors=True)
            _remove(home, files)
        self._named = self._named and target
        self._database.home = target

    def _files(self, home: Path) -> list[Path]:
        """The files that a library is made of.

        Raises:
            DataError: there are none, or one of them is a link.
        """
        paths = [home / FEATURES, *(home / FEATURES).rglob("*"), *home.glob(f"{FILE}*")]  # no row before its features
        if links := [path for path in paths if path.is_symlink()]:
            raise DataError(
                f"{links[0]}: is a symbolic link; a library is moved with all that it holds. Put what the link leads "
                "to in its place, or move only that and renew the link."
            )
        files = [path for path in paths if path.is_file()]
        if not files:
            raise DataError(f"{home}: no library found to move.")
        return files

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the `with` statement, no other process moves or prunes the library; one that was moved is followed.

        A library that cannot be written, or whose file system has no locks, is used as it is.

        Raises:
            DataError: another process does not end.
        """
        with ExitStack() as stack:
            with suppress(OSError):
                self._database.home = self._place()
                self.home.mkdir(parents=True, exist_ok=True)
                with owned(self.home, wait=PATIENCE):
                    place = self.home / _CLAIMS / f"process-{os.getpid()}-{secrets.token_hex(4)}"
                    if self._place() == self.home:
                        unmark(self.home)
                        place.parent.mkdir(exist_ok=True)
                        stack.enter_context(_claim(place))
            if self._place() != self.home:  # it was moved while this process waited
                stack.enter_context(self.in_use())
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside the `with` statement, no other process uses the library.

        Raises:
            DataError: another process does not end.
        """
        busy = f"{self.home}: another process is using this library. Wait until it has finished, then run again."
        self._database.home = self._place()
        with ExitStack() as stack:
            try:
                self.home.mkdir(parents=True, exist_ok=True)
                stack.enter_context(owned(self.home, busy, wait=_SHORT))
            except OSError as error:
                raise DataError(
                    f"{self.home}: cannot be locked ({error}). Fix its permissions, or copy it to a disk that has "
                    "locks, and name the copy with --library."
                ) from error
            stack.enter_context(self._database.writable())
            if self._place() != self.home:
                raise DataError(f"{self.home}: was just moved by another process. Run again.")
            for path in (self.home / _CLAIMS).glob("*"):
                with _claim(path, _SHORT) as is_free:
                    if not is_free:
                        raise DataError(busy)
            unmark(self.home)
            yield

    @contextmanager
    def claimed(self, encoder: str, sha256: str) -> Iterator[bool]:
        """Claims a video inside the `with` statement, so that no other process encodes it; False if another has.

        On a file system without locks it is claimed at once, and two processes may encode the same video.
        """
        path = self.home / _CLAIMS / f"{encoder}-{sha256}"
        is_mine = True
        with ExitStack() as stack:
            with self._database.writable():
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    is_mine = stack.enter_context(_claim(path))
                except OSError as error:
                    if error.errno != errno.ENOLCK:
                        raise
            yield is_mine

    def _arrays(self, connection: sqlite3.Connection, shas: Iterable[str]) -> Iterator[Path]:
        """The files of the features of videos, of all encoders."""
        for sha256 in shas:
            for (encoder,) in connection.execute("SELECT encoder FROM features WHERE sha256 = ?", (sha256,)):
                with suppress(DataError):  # it names no file of this library
                    yield self._array(encoder, sha256)

    def _array(self, encoder: str, sha256: str) -> Path:
        return feature_file(self.home, encoder, sha256)

    def _read(self, encoder: str, sha256: str) -> tuple[Float32[np.ndarray, "n f"], str]:
        """The features of a video, and the hash of their file."""
        spec = self.spec(encoder)
        if spec is None:
            raise DataError(f"{self.home}: no encoder has the key {short(encoder)}.")
        return read_rows(self._array(encoder, sha256), spec)


def _fits_half(rows: Float32[np.ndarray, "n f"]) -> bool:
    """Whether half precision loses no more than rounding; compared in parts, because comparing takes copies."""
    error = 1e-3 * float(max(rows.max(initial=0), -rows.min(initial=0)))
    with np.errstate(over="ignore"):
        return all(
            np.allclose(part.astype(np.float16), part, rtol=1e-3, atol=error)
            for part in (rows[first : first + _PART] for first in range(0, len(rows), _PART))
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def is_place(path: object, size: object = 0, mtime_ns: object = 0) -> bool:
    """Whether values are an absolute path in bytes, a size and a time of change."""
    if not isinstance(path, bytes) or b"\0" in path or not isinstance(size, int) or not isinstance(mtime_ns, int):
        return False
    name = os.fsdecode(path)
    return Path(name).is_absolute() and os.path.normpath(name) == name


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


def _expect_empty(target: Path, home: Path) -> None:
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
    if not is_marked(target) and names - ({MOVED, LOCK} if was_ours else set()):
        raise DataError(f"{target}: already exists and is not empty. Name a new folder.")
    if MOVED in names and not was_ours:
        raise DataError(f"{target}: another library was moved away from there. Name a new folder.")


def _remove(home: Path, files: Iterable[Path]) -> None:
    """Deletes files of a library, the folders of features that are empty then, and the mark."""
    for path in files:
        path.unlink(missing_ok=True)
    for folder in sorted((home / FEATURES).glob("**/"), reverse=True):
        with suppress(OSError):  # what is not ours stays
            folder.rmdir()
    unmark(home)


def _note_move(home: Path, target: Path) -> None:
    replace_file(home / MOVED, lambda file: file.write(os.fsencode(target) + b"\n"))


def _may_be_there(path: Path) -> bool:
    """Whether there is a file or folder, or that cannot be told; links to nothing are none."""
    try:
        path.stat()
    except OSError as error:
        return error.errno != errno.ENOENT
    return True


def _state(video: VideoPath) -> tuple[bytes, int, int]:
    """What tells that a file is the one that was seen."""
    return os.fsencode(video.path), video.size, video.mtime_ns


def _describe(
    connection: sqlite3.Connection, sha256: str, about: Mapping[str, Any], version: int = FIELDS_VERSION
) -> None:
    connection.execute("INSERT OR REPLACE INTO videos VALUES (?, ?, ?)", (sha256, json.dumps(dict(about)), version))


def _see(connection: sqlite3.Connection, videos: Iterable[tuple[str, VideoPath]]) -> None:
    rows = [(*_state(video), video.volume, time.time(), sha256) for sha256, video in videos]
    connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?)", rows)
