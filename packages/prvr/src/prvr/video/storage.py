"""What is kept of videos on disk: a SQLite file of what is known, and a file of features per video and encoder.

A video is known by the sha256 of its file. Features, faults and descriptions belong to that content; where it was seen
is kept apart. So a file that is renamed, moved, copied or on a disk that is away costs nothing.
"""

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from jaxtyping import Float32

from prvr.data.atomic import ABANDONED_AFTER, clear_half_written, replace_file, user_data
from prvr.data.hashes import hash_file
from prvr.errors import DISK_FULL, DataError
from prvr.reading import parse_json, parse_record, read_json
from prvr.video.entries import FIELDS_VERSION, FeatureSpec
from prvr.video.listing import VideoPath, below, prefix_of, volume_of
from prvr.video.subtitles import SubtitleLine

logger = logging.getLogger(__name__)

_FILE, _FEATURES, _SPEC, _MOVED, _CLAIMS = "library.sqlite", "features", "encoder.json", "moved.txt", "claims"
_LINES = 1 << 20  # of a subtitle file: line i of file n has the number n * _LINES + i
_MATCHES = 1000  # lines that a search looks at
_PATIENCE = 30.0  # seconds to wait for the transaction of another process, which lasts milliseconds
_TABLES = (
    """
CREATE TABLE encoders (key TEXT PRIMARY KEY, spec TEXT NOT NULL);
CREATE TABLE videos (sha256 TEXT PRIMARY KEY, about TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE features (sha256 TEXT, encoder TEXT, frames INTEGER NOT NULL, hash TEXT NOT NULL,
    PRIMARY KEY (sha256, encoder));
CREATE TABLE faults (sha256 TEXT, encoder TEXT, reason TEXT NOT NULL, remedy TEXT NOT NULL,
    PRIMARY KEY (sha256, encoder));
CREATE TABLE places (path BLOB, size INTEGER, mtime_ns INTEGER, volume TEXT NOT NULL, seen REAL NOT NULL,
    sha256 TEXT NOT NULL, PRIMARY KEY (path, size, mtime_ns));
CREATE TABLE folders (path BLOB PRIMARY KEY, encoder TEXT NOT NULL, named INTEGER NOT NULL);
""",
    """
CREATE TABLE subtitles (number INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, path BLOB NOT NULL, size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, UNIQUE (sha256, path));
CREATE VIRTUAL TABLE lines USING fts5 (text, language UNINDEXED, start UNINDEXED, stop UNINDEXED,
    tokenize = 'unicode61 remove_diacritics 2');
""",
)  # what each version of the file adds to the one before


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
    """
    home = user_data() / "library"
    with suppress(OSError, UnicodeDecodeError):
        return Path((home / _MOVED).read_text(encoding="utf-8").strip())
    return home


class Storage:
    """The library of a user on disk, for all folders and encoders.

    Every change is one transaction. Features are written whole before it, so a process that is killed leaves the state
    before or after one video. Several processes may read and write at once.

    Args:
        home: the folder; it is made when the first thing is written.
    """

    def __init__(self, home: Path | None = None) -> None:
        self.home = library_home() if home is None else home.expanduser().absolute()

    @property
    def version(self) -> tuple[int, int]:
        """Changes when something is written; cheap to read."""
        try:
            status = self._file.stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_size

    def spec(self, key: str) -> FeatureSpec | None:
        """The features that a key of an encoder stands for."""
        return self.specs().get(key)

    def specs(self) -> dict[str, FeatureSpec]:
        """All encoders that there are features of, by key."""
        rows = self._read("SELECT key, spec FROM encoders")
        return {key: parse_record(FeatureSpec, parse_json(text, "spec"), "spec", file_names=True) for key, text in rows}

    def contents(self, folder: Path, videos: Iterable[VideoPath]) -> dict[str, str]:
        """The sha256 of videos below a folder that were seen with the same path, size and time of change, by id."""
        hashes = {row[:3]: row[4] for row in self._places(folder)}
        states = ((video.id, (os.fsencode(video.path), video.size, video.mtime_ns)) for video in videos)
        return {name: hashes[state] for name, state in states if state in hashes}

    def encoded(self, encoder: str) -> dict[str, int]:
        """The number of rows of the videos that have features of an encoder, by sha256."""
        return dict(self._read("SELECT sha256, frames FROM features WHERE encoder = ?", (encoder,)))

    def has_features(self, encoder: str, sha256: str) -> bool:
        """Whether a video has features of an encoder."""
        return bool(self._read("SELECT 1 FROM features WHERE encoder = ? AND sha256 = ?", (encoder, sha256)))

    def about(self, encoder: str) -> dict[str, dict[str, Any]]:
        """What is known of the videos that have features of an encoder, as `VideoEntry` names it, by sha256."""
        rows = self._read(
            "SELECT videos.sha256, about, frames FROM videos JOIN features USING (sha256) WHERE encoder = ?", (encoder,)
        )
        known = {sha256: json.loads(about) | {"sha256": sha256, "frames": frames} for sha256, about, frames in rows}
        return {sha256: about | {"warnings": tuple(about.get("warnings", ()))} for sha256, about in known.items()}

    def outdated(self) -> set[str]:
        """The videos that were described by an older version of prvr."""
        return {row[0] for row in self._read("SELECT sha256 FROM videos WHERE version < ?", (FIELDS_VERSION,))}

    def faults(self, encoder: str) -> dict[str, Fault]:
        """The videos that cannot be encoded, by sha256."""
        rows = self._read("SELECT sha256, reason, remedy FROM faults WHERE encoder = ?", (encoder,))
        return {sha256: Fault(reason, remedy) for sha256, reason, remedy in rows}

    def places(self, folder: Path) -> list[tuple[VideoPath, str]]:
        """Where videos were seen below a folder, now or earlier, each with its sha256; the latest last."""
        cut = len(prefix_of(folder))
        return [
            (VideoPath(os.fsdecode(path)[cut:], Path(os.fsdecode(path)), size, mtime, volume), sha256)
            for path, size, mtime, volume, sha256 in self._places(folder)
        ]

    def _places(self, folder: Path) -> list[tuple[Any, ...]]:
        """Path, size, time of change, volume and sha256 of what was seen below a folder, the latest last."""
        return self._read(
            f"SELECT path, size, mtime_ns, volume, sha256 FROM places WHERE {_BELOW} ORDER BY seen", _below(folder)
        )

    def last_seen(self, folder: Path) -> tuple[VideoPath, ...]:
        """The videos that were seen below a folder, each path as it was seen last."""
        return tuple({place.path: place for place, _ in self.places(folder)}.values())

    def encoder_of(self, folder: Path) -> tuple[FeatureSpec | None, bool]:
        """The features that a folder, or one above it, was last searched with, and whether the user named them."""
        for place in (folder, *folder.parents):
            rows = self._read("SELECT encoder, named FROM folders WHERE path = ?", (os.fsencode(place),))
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
        rows = self._read("SELECT sha256, frames, hash FROM features WHERE encoder = ?", (encoder,))
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

    def subtitles(self, folder: Path) -> dict[tuple[str, Path], tuple[int, int]]:
        """Size and time of change of the subtitle files below a folder, by the sha256 of the video and the path."""
        rows = self._read(f"SELECT sha256, path, size, mtime_ns FROM subtitles WHERE {_BELOW}", _below(folder))
        return {(sha256, Path(os.fsdecode(path))): (size, mtime) for sha256, path, size, mtime in rows}

    def subtitled(self) -> set[str]:
        """The sha256 of the videos that have lines, or had subtitle files that hold none."""
        return {row[0] for row in self._read("SELECT sha256 FROM subtitles")}

    def lines(self, sha256: str) -> list[SubtitleLine]:
        """All lines of a video, in order of time."""
        rows = self._read(
            "SELECT start, stop, text, language FROM subtitles JOIN lines "
            f"ON lines.rowid BETWEEN number * {_LINES} AND number * {_LINES} + {_LINES - 1} WHERE sha256 = ?",
            (sha256,),
        )
        return sorted((SubtitleLine(*row) for row in rows), key=lambda line: (line.start, line.end))

    def find_lines(
        self, words: str, shas: Iterable[str], *, any_word: bool = False
    ) -> list[tuple[str, float, SubtitleLine]]:
        """The lines with all words of a text, by BM25, best first.

        Upper and lower case and accents do not differ; nothing in the text is an operator.

        Args:
            words: the text.
            shas: the videos whose lines are searched, by sha256.
            any_word: whether one of the words is enough.

        Returns:
            The sha256 of the video, the score, which is higher for a better match, and the line.
        """
        quoted = ['"{}"'.format(word.replace('"', '""')) for word in words.replace("\0", " ").split()]
        if not quoted:
            return []
        rows = self._read(
            "SELECT sha256, -bm25(lines), start, stop, text, language FROM lines JOIN subtitles "
            f"ON number = lines.rowid / {_LINES} WHERE lines MATCH ? AND sha256 IN (SELECT value FROM json_each(?)) "
            f"ORDER BY bm25(lines), lines.rowid LIMIT {_MATCHES}",
            ((" OR " if any_word else " AND ").join(quoted), json.dumps([*shas])),
        )
        return [(sha256, score, SubtitleLine(*line)) for sha256, score, *line in rows]

    def add_subtitles(self, sha256: str, lines: Sequence[SubtitleLine], file: VideoPath | None = None) -> None:
        """Replaces the lines of a video that come from a file beside it, or from its own text tracks."""
        source = (b"", 0, 0) if file is None else (os.fsencode(file.path), file.size, file.mtime_ns)
        with self._write() as connection:
            _drop_subtitles(connection, "sha256 = ? AND path = ?", (sha256, source[0]))
            number = connection.execute(
                "INSERT INTO subtitles (sha256, path, size, mtime_ns) VALUES (?, ?, ?, ?)", (sha256, *source)
            ).lastrowid
            rows = enumerate(lines[:_LINES], (number or 0) * _LINES)
            connection.executemany(
                "INSERT INTO lines (rowid, text, language, start, stop) VALUES (?, ?, ?, ?, ?)",
                ((row, line.text, line.language, line.start, line.end) for row, line in rows),
            )

    def drop_subtitles(self, files: Iterable[tuple[str, Path]]) -> None:
        """Forgets the lines of files, by the sha256 of the video and the path."""
        with self._write() as connection:
            for sha256, path in files:
                _drop_subtitles(connection, "sha256 = ? AND path = ?", (sha256, os.fsencode(path)))

    def add_encoder(self, spec: FeatureSpec) -> str:
        """The key of an encoder, which is noted if it is new."""
        key = encoder_key(spec)
        if self.spec(key) != spec:
            text = json.dumps(asdict(spec))
            with self._write() as connection:
                folder = self.home / _FEATURES / key
                folder.mkdir(parents=True, exist_ok=True)
                replace_file(folder / _SPEC, lambda file: file.write(text.encode()))
                connection.execute("INSERT OR REPLACE INTO encoders VALUES (?, ?)", (key, text))
        return key

    def use_encoder(self, folder: Path, encoder: str, named: bool) -> None:
        """Notes which encoder a folder is searched with."""
        with self._write() as connection:
            connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?, ?)", (os.fsencode(folder), encoder, named))

    def see(self, videos: Mapping[str, Sequence[VideoPath]]) -> None:
        """Notes where videos were seen, by sha256."""
        if videos:
            with self._write() as connection:
                _see(connection, ((sha256, video) for sha256, places in videos.items() for video in places))

    def add(
        self,
        encoder: str,
        sha256: str,
        rows: Float32[np.ndarray, "n f"],
        about: Mapping[str, Any],
        place: VideoPath | None = None,
    ) -> None:
        """Keeps the features of a video: in half precision, or in full where that would lose more than rounding.

        Args:
            encoder: the key of the encoder.
            sha256: of the file.
            rows: `(n, f)`.
            about: the fields of `VideoEntry` that hold for the content.
            place: where it was seen.
        """
        path = self._array(encoder, sha256)
        with np.errstate(over="ignore"):
            half = rows.astype(np.float16)
        largest = float(np.abs(rows).max(initial=0))
        kept = half if np.allclose(half, rows, rtol=1e-3, atol=1e-3 * largest) else rows
        with self._writable():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda file: np.save(file, np.ascontiguousarray(kept), allow_pickle=False))
        with self._write() as connection:
            values = (sha256, encoder, len(rows), hash_file(path))
            connection.execute("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", values)
            _describe(connection, sha256, about)
            _see(connection, [] if place is None else [(sha256, place)])

    def describe(self, sha256: str, about: Mapping[str, Any]) -> None:
        """Replaces what is known of a video."""
        with self._write() as connection:
            _describe(connection, sha256, about)

    def add_fault(self, encoder: str, sha256: str, fault: Fault) -> None:
        """Notes that an encoder cannot encode a video."""
        with self._write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO faults VALUES (?, ?, ?, ?)", (sha256, encoder, fault.reason, fault.remedy)
            )

    def drop_features(self, encoder: str, shas: Iterable[str]) -> None:
        """Forgets that some videos have features, so that they are encoded again."""
        with self._write() as connection:
            connection.executemany(
                "DELETE FROM features WHERE sha256 = ? AND encoder = ?", [(sha256, encoder) for sha256 in shas]
            )

    def prune(self, folder: Path, seen: Collection[Path], unlisted: Sequence[Path] = ()) -> tuple[int, int]:
        """Deletes what is kept of videos that were seen below a folder, are gone now, and were seen nowhere else.

        A video on a disk that is not there counts as seen.

        Args:
            folder: the folder.
            seen: the paths of the videos that it holds now.
            unlisted: folders whose content is unknown; nothing below them is deleted.

        Returns:
            How many videos were deleted, and how many are kept because their disk is not there.
        """
        gone, offline = set[str](), set[str]()
        paths = []
        for place, sha256 in self.places(folder):
            if place.path in seen or below(place.path, unlisted):
                continue
            if volume_of(place.path) != place.volume:
                offline.add(sha256)
            else:
                gone.add(sha256)
                paths.append((os.fsencode(place.path),))
        with self._write() as connection:
            connection.executemany("DELETE FROM places WHERE path = ?", paths)
            kept = {row[0] for row in connection.execute("SELECT sha256 FROM places")}
            unused = sorted(gone - kept)
            arrays = [
                self._array(encoder, sha256)
                for sha256 in unused
                for (encoder,) in connection.execute("SELECT encoder FROM features WHERE sha256 = ?", (sha256,))
            ]
            for table in ("features", "faults", "videos"):
                connection.executemany(f"DELETE FROM {table} WHERE sha256 = ?", [(sha256,) for sha256 in unused])
            for sha256 in unused:
                _drop_subtitles(connection, "sha256 = ?", (sha256,))
        for path in arrays:
            path.unlink(missing_ok=True)
        for place in (self.home / _FEATURES).glob("*/??"):
            clear_half_written(place, older_than=ABANDONED_AFTER)
        return len(unused), len(offline)

    def merge(self, other: "Storage") -> int:
        """Takes over the features of another library; returns the number of videos that are new here.

        Raises:
            DataError: there is no library.
        """
        if not other._file.is_file():
            raise DataError(f"{other.home}: no library found, there is no {_FILE}. Pass a folder given to --library.")
        count = 0
        for key, spec in other.specs().items():
            self.add_encoder(spec)
            mine, about = self.encoded(key), other.about(key)
            for sha256, fields in about.items():
                if sha256 not in mine:
                    rows = other.read_features(key, sha256)
                    self.add(key, sha256, rows, {name: fields[name] for name in fields.keys() - {"sha256", "frames"}})
                    if lines := other.lines(sha256):
                        self.add_subtitles(sha256, lines)
                    count += 1
            for sha256, fault in other.faults(key).items():
                self.add_fault(key, sha256, fault)
        with self._write() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO places VALUES (?, ?, ?, ?, ?, ?)", other._read("SELECT * FROM places")
            )
            connection.executemany(
                "INSERT OR IGNORE INTO folders VALUES (?, ?, ?)", other._read("SELECT * FROM folders")
            )
        return count

    def move(self, target: Path) -> None:
        """Moves the library to another folder; later commands find the library of the user there.

        Raises:
            DataError: the folder exists, or cannot be written.
        """
        target = target.expanduser().absolute()
        if target.exists() and (not target.is_dir() or any(path.name != _MOVED for path in target.iterdir())):
            raise DataError(f"{target}: already exists and is not empty. Name a new folder.")
        default, is_users = user_data() / "library", self.home == library_home()
        with self._writable():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(self.home, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_MOVED))
            if is_users and target == default:
                (default / _MOVED).unlink(missing_ok=True)
            elif is_users:  # any other is named with --library each time
                default.mkdir(parents=True, exist_ok=True)
                replace_file(default / _MOVED, lambda file: file.write(f"{target}\n".encode()))
            for name in (_FEATURES, _CLAIMS):
                if (self.home / name).exists():
                    shutil.rmtree(self.home / name)
            self._file.unlink(missing_ok=True)
        self.home = target

    @contextmanager
    def claimed(self, encoder: str, sha256: str) -> Iterator[bool]:
        """Claims a video inside the `with` statement, so that no other process encodes it; False if another has."""
        path = self.home / _CLAIMS / f"{encoder}-{sha256}"
        lock = FileLock(path)
        with self._writable():
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(Timeout):
                lock.acquire(blocking=False)
        try:
            yield lock.is_locked
        finally:
            if lock.is_locked:
                with suppress(OSError):  # somebody who has it open looks again whether there are features now
                    path.unlink()
                lock.release()

    @property
    def _file(self) -> Path:
        return self.home / _FILE

    def _array(self, encoder: str, sha256: str) -> Path:
        return self.home / _FEATURES / encoder / sha256[:2] / f"{sha256}.npy"

    def _read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if not self._file.is_file():
            return []
        try:
            with closing(self._connect()) as connection:
                return connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:  # no permission, say
                raise DataError(
                    f"{self._file}: cannot be read ({error}). Fix its permissions, or choose another library with "
                    "--library."
                ) from error
            self._rebuild(error)
            return self._read(statement, values)

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._writable():
            self.home.mkdir(parents=True, exist_ok=True)
            with closing(self._connect_to_write()) as connection, connection:
                yield connection

    def _rebuild(self, error: Exception) -> None:
        """Starts from the features that are there, because the SQLite file is damaged; videos are described later."""
        aside = self._file.with_name(f"{_FILE}.damaged-{time.time_ns()}")
        logger.warning("%s: damaged (%s); rebuilt from the features, the old file is %s", self._file, error, aside)
        with self._writable():
            self._file.rename(aside)
        for place in sorted((self.home / _FEATURES).glob(f"*/{_SPEC}")):
            key, spec = place.parent.name, parse_record(FeatureSpec, read_json(place), str(place), file_names=True)
            self.add_encoder(spec)
            with self._write() as connection:
                for path in place.parent.glob("??/*.npy"):
                    with suppress(ValueError, OSError, EOFError):
                        rows = len(np.load(path, mmap_mode="r", allow_pickle=False))
                        values = (path.stem, key, rows, hash_file(path))
                        connection.execute("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", values)
                        about = json.dumps({"duration": rows / spec.rate, "width": 0, "height": 0, "codec": ""})
                        connection.execute("INSERT OR IGNORE INTO videos VALUES (?, ?, 0)", (path.stem, about))

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """Explains why the library cannot be written."""
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            full = (isinstance(error, OSError) and error.errno in DISK_FULL) or "full" in str(error)
            remedy = "Free space on the disk" if full else "Fix its permissions"
            reason = "the disk is full" if full else f"cannot be written ({error})"
            raise LibraryUnwritable(
                f"{self.home}: {reason}. Finished videos are kept. {remedy}, or choose another folder with --library."
            ) from error

    def _connect_to_write(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, timeout=_PATIENCE)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version < len(_TABLES):
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    version = connection.execute("PRAGMA user_version").fetchone()[0]
                    for statement in "".join(_TABLES[version:]).split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {max(version, len(_TABLES))}")
            elif version > len(_TABLES):
                raise DataError(
                    f"{self._file}: written by a newer version of prvr (format {version}, this version reads "
                    f"{len(_TABLES)}). Update prvr, or choose another folder with --library."
                )
        except BaseException:
            connection.close()
            raise
        return connection


class LibraryUnwritable(DataError):
    """The library cannot be written: the disk is full, or it is read-only."""


def encoder_key(spec: FeatureSpec) -> str:
    """A name for an encoder and the rate of its features, the same for equal ones."""
    values = asdict(spec)
    values["encoder"].pop("name")
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _describe(connection: sqlite3.Connection, sha256: str, about: Mapping[str, Any]) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO videos VALUES (?, ?, ?)", (sha256, json.dumps(dict(about)), FIELDS_VERSION)
    )


_BELOW = "path >= ? AND path < ?"


def _below(folder: Path) -> tuple[bytes, bytes]:
    """The bounds of all paths below a folder, for `_BELOW`."""
    start = os.fsencode(prefix_of(folder))
    return start, start[:-1] + bytes([start[-1] + 1])


def _drop_subtitles(connection: sqlite3.Connection, condition: str, values: Sequence[Any]) -> None:
    for (number,) in connection.execute(f"SELECT number FROM subtitles WHERE {condition}", values).fetchall():
        bounds = (number * _LINES, number * _LINES + _LINES - 1)
        connection.execute("DELETE FROM lines WHERE rowid BETWEEN ? AND ?", bounds)
        connection.execute("DELETE FROM subtitles WHERE number = ?", (number,))


def _see(connection: sqlite3.Connection, videos: Iterable[tuple[str, VideoPath]]) -> None:
    rows = [(os.fsencode(v.path), v.size, v.mtime_ns, v.volume, time.time(), sha256) for sha256, v in videos]
    connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?)", rows)
