"""What is kept of videos on disk: a SQLite file of what is known, and a file of features per video and encoder.

A video is known by the sha256 of its file. Features, faults and descriptions belong to that content; where it was seen
is kept apart. So a file that is renamed, moved, copied or on a disk that is away costs nothing.
"""

import errno
import filecmp
import hashlib
import json
import logging
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from prvr.errors import DataError
from prvr.reading import parse_json, parse_record, printable, read_bytes, read_json, short
from prvr.video.database import BELOW, FILE, Database, bounds
from prvr.video.entries import FIELDS_VERSION, FeatureSpec
from prvr.video.lines import Lines, drop_lines
from prvr.video.listing import VideoPath, below, prefix_of, volume_of

logger = logging.getLogger(__name__)

_PART = 4096  # rows that are compared at a time
_FEATURES, _SPEC, _MOVED, _CLAIMS = "features", "encoder.json", "moved.txt", "claims"
_SHORT = 5.0  # seconds to wait for processes that use the library, before it is moved or pruned


@dataclass(frozen=True)
class Fault:
    """Why a video cannot be encoded.

    Args:
        reason, remedy: what is wrong, and what to do.
    """

    reason: str
    remedy: str


def library_home() -> Path:
    """Where the library of the user lies: `prvr/library` in the user's data folder, or where it was moved to.

    It is made of what takes hours to compute, so it is not kept in a cache.

    Raises:
        DataError: it was moved to a place that is not there, or the note that says where cannot be read.
    """
    home = user_data() / "library"
    if (place := _moved_to(home)) is None:
        return home
    if not place.is_dir():
        raise DataError(
            f"{place}: not there, and the library was moved to it. Connect its disk, or name another library with "
            f"--library. To begin a new one, delete {home / _MOVED}."
        )
    return place


def _moved_to(home: Path) -> Path | None:
    """Where the library that lay in a folder was moved to; None if it was not.

    Raises:
        DataError: the note that says so cannot be read.
    """
    note = home / _MOVED
    if not os.path.lexists(note):
        return None
    place = Path(os.fsdecode(read_bytes(note).removesuffix(b"\n")))
    if not place.is_absolute() or "\0" in str(place):
        raise DataError(f"{note}: expected the absolute path of a folder, got {short(str(place))}. Delete this file.")
    return place


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
        self._database = Database(self._place(), self._rebuild)
        self.lines = Lines(self._database)

    @property
    def home(self) -> Path:
        """The folder."""
        return self._database.home

    def _place(self) -> Path:
        """The folder as it is now: another process may have moved the library."""
        if self._named is None:
            return library_home()
        if (place := _moved_to(self._named)) is not None:
            raise DataError(f"{self._named}: this library was moved to {printable(str(place))}. Name that folder.")
        return self._named

    @property
    def version(self) -> tuple[int, int]:
        """Changes when something is written; cheap to read."""
        return self._database.version

    def spec(self, key: str) -> FeatureSpec | None:
        """The features that a key of an encoder stands for."""
        return self.specs().get(key)

    def specs(self) -> dict[str, FeatureSpec]:
        """All encoders that there are features of, by key."""
        rows = self._database.read("SELECT key, spec FROM encoders")
        return {key: parse_record(FeatureSpec, parse_json(text, "spec"), "spec", file_names=True) for key, text in rows}

    def contents(self, folder: Path, videos: Iterable[VideoPath]) -> dict[str, str]:
        """The sha256 of videos below a folder that were seen with the same path, size and time of change, by id."""
        hashes = {row[:3]: row[4] for row in self._places(folder)}
        states = ((video.id, _state(video)) for video in videos)
        return {name: hashes[state] for name, state in states if state in hashes}

    def encoded(self, encoder: str) -> dict[str, int]:
        """The number of rows of the videos that have features of an encoder, by sha256."""
        return dict(self._database.read("SELECT sha256, frames FROM features WHERE encoder = ?", (encoder,)))

    def has_features(self, encoder: str, sha256: str) -> bool:
        """Whether a video has features of an encoder."""
        return bool(self._database.read("SELECT 1 FROM features WHERE encoder = ? AND sha256 = ?", (encoder, sha256)))

    def about(self, encoder: str) -> dict[str, dict[str, Any]]:
        """What is known of the videos that have features of an encoder, as `VideoEntry` names it, by sha256."""
        rows = self._database.read(
            "SELECT videos.sha256, about, frames FROM videos JOIN features USING (sha256) WHERE encoder = ?", (encoder,)
        )
        known = {sha256: json.loads(about) | {"sha256": sha256, "frames": frames} for sha256, about, frames in rows}
        return {sha256: about | {"warnings": tuple(about.get("warnings", ()))} for sha256, about in known.items()}

    def outdated(self) -> set[str]:
        """The videos that were described by an older version of prvr."""
        return {row[0] for row in self._database.read("SELECT sha256 FROM videos WHERE version < ?", (FIELDS_VERSION,))}

    def faults(self, encoder: str) -> dict[str, Fault]:
        """The videos that cannot be encoded, by sha256."""
        rows = self._database.read("SELECT sha256, reason, remedy FROM faults WHERE encoder = ?", (encoder,))
        return {sha256: Fault(reason, remedy) for sha256, reason, remedy in rows}

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
        return self._database.read(
            f"SELECT path, size, mtime_ns, volume, sha256 FROM places WHERE {BELOW} ORDER BY rowid", bounds(folder)
        )

    def last_seen(self, folder: Path) -> tuple[VideoPath, ...]:
        """The videos that were seen below a folder, each path as it was seen last."""
        return tuple({place.path: place for place, _ in self.places(folder)}.values())

    def encoder_of(self, folder: Path) -> tuple[FeatureSpec | None, bool]:
        """The features that a folder, or one above it, was last searched with, and whether the user named them."""
        for place in (folder, *folder.parents):
            rows = self._database.read("SELECT encoder, named FROM folders WHERE path = ?", (os.fsencode(place),))
            if rows:
                return self.spec(rows[0][0]), bool(rows[0][1])
        return None, False

    def read_features(self, encoder: str, sha256: str) -> Float32[np.ndarray, "n f"]:
        """The features of a video.

        Raises:
            DataError: the file is missing or damaged.
        """
        path = self._array(encoder, sha256)
        try:
            with path.open("rb") as file:
                rows = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: cannot be read ({error}). Run the command again to encode the video.") from error
        return rows.astype(np.float32)

    def check(self, encoder: str, spec: FeatureSpec, shas: Collection[str]) -> dict[str, str]:
        """What is wrong with the features of some videos, by sha256: their files are read and their hashes compared."""
        rows = self._database.read("SELECT sha256, frames, hash FROM features WHERE encoder = ?", (encoder,))
        problems = {}
        for sha256, frames, digest in rows:
            if sha256 not in shas:
                continue
            try:
                features = self.read_features(encoder, sha256)
            except DataError as error:
                problems[sha256] = str(error)
                continue
            if features.shape != (frames, spec.dim) or hash_file(self._array(encoder, sha256)) != digest:
                problems[sha256] = f"{self._array(encoder, sha256)}: does not match its hash"
        return problems

    def size(self, encoder: str, shas: Collection[str]) -> int:
        """Size of the features of some videos, in bytes."""
        total = 0
        for sha256 in shas:
            with suppress(OSError):
                total += self._array(encoder, sha256).stat().st_size
        return total

    def add_encoder(self, spec: FeatureSpec) -> str:
        """The key of an encoder, which is noted if it is new."""
        key = encoder_key(spec)
        if self.spec(key) != spec:
            text = json.dumps(asdict(spec))
            with self._database.write() as connection:
                folder = self.home / _FEATURES / key
                folder.mkdir(parents=True, exist_ok=True)
                replace_file(folder / _SPEC, lambda file: file.write(text.encode()))
                connection.execute("INSERT OR REPLACE INTO encoders VALUES (?, ?)", (key, text))
        return key

    def use_encoder(self, folder: Path, encoder: str, named: bool) -> None:
        """Notes which encoder a folder is searched with."""
        with self._database.write() as connection:
            connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", (os.fsencode(folder), encoder, named))

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
        about: Mapping[str, Any],
        place: VideoPath | None = None,
        version: int = FIELDS_VERSION,
    ) -> None:
        """Keeps the features of a video: in half precision, or in full where that would lose more than rounding.

        Args:
            encoder: the key of the encoder.
            sha256: of the file.
            rows: `(n, f)`.
            about: the fields of `VideoEntry` that hold for the content.
            place: where it was seen.
            version: of the fields; those of an older one are read again.
        """
        path = self._array(encoder, sha256)
        kept = rows.astype(np.float16) if _fits_half(rows) else rows
        with self._database.writable():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda file: np.save(file, np.ascontiguousarray(kept), allow_pickle=False))
        with self._database.write() as connection:
            values = (sha256, encoder, len(rows), hash_file(path))
            connection.execute("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", values)
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

    def drop_features(self, encoder: str, shas: Iterable[str]) -> None:
        """Forgets that some videos have features, so that they are encoded again."""
        with self._database.write() as connection:
            connection.executemany(
                "DELETE FROM features WHERE sha256 = ? AND encoder = ?", [(sha256, encoder) for sha256 in shas]
            )

    def folders(self) -> list[Path]:
        """The folders that were searched."""
        return [Path(os.fsdecode(path)) for (path,) in self._database.read("SELECT path FROM folders")]

    def prune(self, folder: Path, videos: Sequence[VideoPath], unlisted: Sequence[Path] = ()) -> tuple[int, int]:
        """Deletes what is kept of videos that were seen below a folder, are gone now, and were seen nowhere else.

        Files that are not known yet are read first, for one may have been renamed. What is on a disk that is not there,
        or may be in what cannot be read, is kept.

        Args:
            folder: the folder.
            videos: the videos that it holds now, and those of other folders that a video may have been moved to.
            unlisted: what of the folder cannot be listed.

        Returns:
            How many videos were deleted, and how many are kept because it is not known whether they are gone.

        Raises:
            DataError: another process uses the library.
        """
        with self._alone():
            states = {_state(video) for video in videos}
            known = {row[:3] for row in self._database.read("SELECT path, size, mtime_ns FROM places")}
            gone, kept, unread = dict[tuple[Any, ...], str](), set[str](), set[int]()
            for place, sha256 in self.places(folder):
                if _state(place) in states or below(place.path, unlisted):
                    continue
                if volume_of(place.path) != place.volume:
                    kept.add(sha256)
                else:
                    gone[_state(place)] = sha256
            sizes = {size for _, size, _ in gone}
            renamed = list[tuple[str, VideoPath]]()
            for video in videos:
                if video.size in sizes and _state(video) not in known:
                    with suppress(OSError):
                        sha256 = hash_file(video.path)
                        if video.unchanged:
                            renamed.append((sha256, video))
                            continue
                    unread.add(video.size)
            if any(map(_may_be_there, unlisted)):
                unread = sizes
            kept |= {sha256 for (_, size, _), sha256 in gone.items() if size in unread}
            with self._database.write() as connection:
                _see(connection, renamed)
                connection.executemany(
                    "DELETE FROM places WHERE path = ? AND size = ? AND mtime_ns = ?",
                    [state for state, sha256 in gone.items() if sha256 not in kept],
                )
                seen = {row[0] for row in connection.execute("SELECT sha256 FROM places")}
                unused = sorted({*gone.values()} - seen)
                arrays = [
                    self._array(encoder, sha256)
                    for sha256 in unused
                    for (encoder,) in connection.execute("SELECT encoder FROM features WHERE sha256 = ?", (sha256,))
                ]
                for table in ("features", "faults", "videos"):
                    connection.executemany(f"DELETE FROM {table} WHERE sha256 = ?", [(sha256,) for sha256 in unused])
                for sha256 in unused:
                    drop_lines(connection, "sha256 = ?", (sha256,))
            for path in arrays:
                path.unlink(missing_ok=True)
            for place in (self.home / _FEATURES).glob("*/??"):
                clear_half_written(place, older_than=ABANDONED_AFTER)
            return len(unused), len(kept)

    def merge(self, other: "Storage") -> int:
        """Takes over the features of another library; returns the number of videos that are new here.

        Raises:
            DataError: there is no library.
        """
        if not other._database.file.is_file():
            raise DataError(f"{other.home}: no library found, there is no {FILE}. Pass a folder given to --library.")
        count = 0
        for key, spec in other.specs().items():
            self.add_encoder(spec)
            mine, about = self.encoded(key), other.about(key)
            for sha256, fields in about.items():
                if sha256 not in mine:
                    rows = other.read_features(key, sha256)
                    self.add(key, sha256, rows, {name: fields[name] for name in fields.keys() - {"sha256", "frames"}})
                    if lines := other.lines.of(sha256):
                        self.lines.add(sha256, lines)
                    count += 1
            for sha256, fault in other.faults(key).items():
                self.add_fault(key, sha256, fault)
        with self._database.write() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO places VALUES (?, ?, ?, ?, ?, ?)", other._database.read("SELECT * FROM places")
            )
            connection.executemany(
                "INSERT OR IGNORE INTO folders VALUES (?, ?, ?)", other._database.read("SELECT * FROM folders")
            )
        return count

    def move(self, target: Path) -> None:
        """Moves the library to another folder; later commands find the library of the user there.

        Nothing is deleted before the copy is complete and compared. A move that was interrupted is begun again.

        Raises:
            DataError: the folder cannot take it, another process uses the library, or a part of it is a link.
        """
        target = Path(os.path.realpath(target.expanduser()))
        with self._alone():
            home, default = self.home.resolve(), user_data() / "library"
            is_users = home == (_moved_to(default) or default).resolve()
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
            (target / _MOVED).unlink(missing_ok=True)
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
        paths = [home / _FEATURES, *(home / _FEATURES).rglob("*"), *home.glob(f"{FILE}*")]  # no row before its features
        if links := [path for path in paths if path.is_symlink()]:
            raise DataError(
                f"{links[0]}: is a symbolic link; a library is moved with all that it holds. Put what the link leads "
                "to in its place, or move only that and renew the link."
            )
        files = [path for path in paths if path.is_file()]
        if not files:
            raise DataError(f"{home}: no library found, there is nothing to move.")
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
        busy = f"{self.home}: another process uses this library. Wait for it to end, then run again."
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

    def _array(self, encoder: str, sha256: str) -> Path:
        return self.home / _FEATURES / encoder / sha256[:2] / f"{sha256}.npy"

    def _rebuild(self, error: Exception) -> None:
        """Starts from the features that are there, because the SQLite file is damaged; videos are described later."""
        aside = self._database.file.with_name(f"{FILE}.damaged-{time.time_ns()}")
        logger.warning(
            "%s: damaged (%s); rebuilt from the features, the old file is %s", self._database.file, error, aside
        )
        with self._database.writable():
            self._database.file.rename(aside)
        for place in sorted((self.home / _FEATURES).glob(f"*/{_SPEC}")):
            key, spec = place.parent.name, parse_record(FeatureSpec, read_json(place), str(place), file_names=True)
            self.add_encoder(spec)
            with self._database.write() as connection:
                for path in place.parent.glob("??/*.npy"):
                    with suppress(ValueError, OSError, EOFError):
                        rows = len(np.load(path, mmap_mode="r", allow_pickle=False))
                        values = (path.stem, key, rows, hash_file(path))
                        connection.execute("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", values)
                        about = json.dumps({"duration": rows / spec.rate, "width": 0, "height": 0, "codec": ""})
                        connection.execute("INSERT OR IGNORE INTO videos VALUES (?, ?, 0)", (path.stem, about))


def _fits_half(rows: Float32[np.ndarray, "n f"]) -> bool:
    """Whether half precision loses no more than rounding; compared in parts, because comparing takes copies."""
    error = 1e-3 * float(max(rows.max(initial=0), -rows.min(initial=0)))
    with np.errstate(over="ignore"):
        return all(
            np.allclose(part.astype(np.float16), part, rtol=1e-3, atol=error)
            for part in (rows[first : first + _PART] for first in range(0, len(rows), _PART))
        )


def encoder_key(spec: FeatureSpec) -> str:
    """A name for an encoder and the rate of its features, the same for equal ones."""
    values = asdict(spec)
    values["encoder"].pop("name")
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _describe(
    connection: sqlite3.Connection, sha256: str, about: Mapping[str, Any], version: int = FIELDS_VERSION
) -> None:
    connection.execute("INSERT OR REPLACE INTO videos VALUES (?, ?, ?)", (sha256, json.dumps(dict(about)), version))


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
                raise DataError(f"{target}: the library lies in {home}. Name a folder that is not part of it.")
        names = {path.name for path in target.iterdir()} if target.exists() else set()
    except OSError as error:
        raise DataError(f"{target}: cannot be read ({error}). Name a new folder.") from error
    was_ours = _moved_to(target) == home  # the library comes back
    if not is_marked(target) and names - ({_MOVED, LOCK} if was_ours else set()):
        raise DataError(f"{target}: already exists and is not empty. Name a new folder.")
    if _MOVED in names and not was_ours:
        raise DataError(f"{target}: another library was moved away from there. Name a new folder.")


def _remove(home: Path, files: Iterable[Path]) -> None:
    """Deletes files of a library, the folders of features that are empty then, and the mark."""
    for path in files:
        path.unlink(missing_ok=True)
    for folder in sorted((home / _FEATURES).glob("**/"), reverse=True):
        with suppress(OSError):  # what is not ours stays
            folder.rmdir()
    unmark(home)


def _note_move(home: Path, target: Path) -> None:
    replace_file(home / _MOVED, lambda file: file.write(os.fsencode(target) + b"\n"))


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


def _see(connection: sqlite3.Connection, videos: Iterable[tuple[str, VideoPath]]) -> None:
    rows = [(*_state(video), video.volume, time.time(), sha256) for sha256, video in videos]
    connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?)", rows)
