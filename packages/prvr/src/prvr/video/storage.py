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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from jaxtyping import Float32

from prvr.data.atomic import ABANDONED_AFTER, clear_half_written, replace_file, user_data
from prvr.data.hashes import hash_file
from prvr.errors import DataError
from prvr.reading import parse_json, parse_record, read_json
from prvr.video.database import BELOW, FILE, Database, bounds
from prvr.video.entries import FIELDS_VERSION, FeatureSpec
from prvr.video.lines import Lines, drop_lines
from prvr.video.listing import VideoPath, below, prefix_of, volume_of

logger = logging.getLogger(__name__)

_PART = 4096  # rows that are compared at a time
_FEATURES, _SPEC, _MOVED, _CLAIMS = "features", "encoder.json", "moved.txt", "claims"


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

    Attributes:
        lines: the lines of subtitles.
    """

    def __init__(self, home: Path | None = None) -> None:
        folder = library_home() if home is None else home.expanduser().absolute()
        self._database = Database(folder, self._rebuild)
        self.lines = Lines(self._database)

    @property
    def home(self) -> Path:
        """The folder."""
        return self._database.home

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
        states = ((video.id, (os.fsencode(video.path), video.size, video.mtime_ns)) for video in videos)
        return {name: hashes[state] for name, state in states if state in hashes}

    def encoded(self, encoder: str) -> dict[str, int]:
        """The number of rows of the videos that have features of an encoder, by sha256."""
        return dict(self._database.read("SELECT sha256, frames FROM features WHERE encoder = ?", (encoder,)))

    def has_features(self, encoder: str, sha256: str) -> bool:
        """Whether a video has features of an encoder."""
        return bool(self._database.read("SELECT 1 FROM features WHERE encoder = ? AND sha256 = ?", (encoder, sha256)))

    def about(self, encoder: str, *, others: bool = False) -> dict[str, dict[str, Any]]:
        """What is known of the videos that have features of an encoder, as `VideoEntry` names it, by sha256.

        Args:
            encoder: the key of the encoder.
            others: also of all other videos, with 0 frames.
        """
        rows = self._database.read(
            f"SELECT videos.sha256, about, COALESCE(frames, 0) FROM videos {'LEFT ' * others}JOIN features "
            "ON features.sha256 = videos.sha256 AND encoder = ?",
            (encoder,),
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
        """Path, size, time of change, volume and sha256 of what was seen below a folder, the latest last."""
        return self._database.read(
            f"SELECT path, size, mtime_ns, volume, sha256 FROM places WHERE {BELOW} ORDER BY seen", bounds(folder)
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
        with self._database.write() as connection:
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
                drop_lines(connection, "sha256 = ?", (sha256,))
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

        Raises:
            DataError: the folder exists, or cannot be written.
        """
        target = target.expanduser().absolute()
        if target.exists() and (not target.is_dir() or any(path.name != _MOVED for path in target.iterdir())):
            raise DataError(f"{target}: already exists and is not empty. Name a new folder.")
        default, is_users = user_data() / "library", self.home == library_home()
        with self._database.writable():
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
            self._database.file.unlink(missing_ok=True)
        self._database.home = target

    @contextmanager
    def claimed(self, encoder: str, sha256: str) -> Iterator[bool]:
        """Claims a video inside the `with` statement, so that no other process encodes it; False if another has."""
        path = self.home / _CLAIMS / f"{encoder}-{sha256}"
        lock = FileLock(path)
        with self._database.writable():
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


def _see(connection: sqlite3.Connection, videos: Iterable[tuple[str, VideoPath]]) -> None:
    rows = [(os.fsencode(v.path), v.size, v.mtime_ns, v.volume, time.time(), sha256) for sha256, v in videos]
    connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?)", rows)
