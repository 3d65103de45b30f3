"""Files of vectors: those of many videos in one, named by the hash of its content, written whole and never changed.

Each video is known by the hash of its features, so vectors of other features are never taken for its own. All of them
can be computed again: what does not prove itself is deleted.
"""

import errno
import hashlib
import io
import json
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedRandom
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from prvr.data.atomic import ABANDONED_AFTER, HALF_WRITTEN, clear_half_written, replace_file
from prvr.errors import DataError
from prvr_search.store.features import is_sha256
from prvr_search.store.proof import HEAD, Stamp, read_proven, stamp_of, write_proven
from prvr_search.vectors.model import RowSet, SearchModel

logger = logging.getLogger(__name__)

SUFFIX = ".vectors"
_STAMPS = "stamps"
_BLOCK = 2**20  # bytes of the vectors that are read at a time
_MOST = 8  # files; more are joined
Arrays = Mapping[str, np.ndarray]
"""The vectors of some videos, one after the other: `times` `(w, 2)`, the start and end of each window in seconds;
`steps` `(w)`, see `WindowVectors`; for each set of rows `NAME` `(n, d)`, the rows of one window after those of another,
`NAME.counts` `(w)`, how many are of each window, and where the set keeps lengths, `NAME.lengths` `(n)`."""


def row_sets(model: SearchModel) -> dict[str, RowSet]:
    """The sets of rows that are stored for a model, by name: those that are scored, and those that it asks for."""
    weights = {"clips": model.clip_weight or model.frames_by_clip, "frames": model.frame_weight}
    return {**{name: RowSet(model.dim) for name, weight in weights.items() if weight}, **model.stored}


def layout(sets: Mapping[str, RowSet]) -> list[tuple[str, str, int, str]]:
    """The arrays of a block in order: name, type, columns (0: it has one dimension), and what there is a row for."""
    arrays = [("times", "<f8", 2, "windows")]
    arrays += [(f"{name}.lengths", "<f4", 0, name) for name, kind in sorted(sets.items()) if kind.lengths]
    arrays += [(name, "<i4", 0, "windows") for name in ("steps", *(f"{name}.counts" for name in sorted(sets)))]
    return arrays + [(name, "<f2", kind.dim, name) for name, kind in sorted(sets.items())]


@dataclass(frozen=True, eq=False)
class VectorFile:
    """A file of vectors, which stays open; it can be read by several threads.

    Args:
        path: the file, whose name is the hash of its content.
        sets: its sets of rows.
        videos: the hashes of the features of its videos, in order.
        ends: for `windows` and each set `(v + 1)`: how many rows come before each video, and in all.
        edges: the number of the first video of each block, and of all videos.
        start: where the first block begins in the file.
        file, stamp: the open file, and its state when it was opened.
    """

    path: Path
    sets: Mapping[str, RowSet]
    videos: Sequence[str]
    ends: Mapping[str, Int64[np.ndarray, " _"]]
    edges: Int64[np.ndarray, " b"]
    start: int
    file: io.BufferedReader
    stamp: Stamp
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect_unchanged(self) -> None:
        """Refuses a file that was changed since it was opened.

        Raises:
            DataError: it was.
        """
        if not self.is_unchanged:
            raise DataError(f"{self.path}: was changed while it was open; its vectors are made again.")

    @property
    def is_unchanged(self) -> bool:
        """Whether it is as it was when it was opened; joined with others and deleted, perhaps."""
        status = os.fstat(self.file.fileno())
        return stamp_of(status)[: 4 if status.st_nlink else 3] == self.stamp[: 4 if status.st_nlink else 3]

    def __del__(self) -> None:
        self.file.close()

    def blocks(self) -> list[tuple[int, int]]:
        """The number of the first video of each block, and of the one after its last."""
        return [*pairwise(self.edges.tolist())]

    def read(self, first: int, stop: int) -> Arrays:
        """The vectors of some videos of one block.

        Args:
            first, stop: the number of the first video, and that after the last.

        Raises:
            DataError: the file is shorter than it was.
        """
        block = int(np.searchsorted(self.edges, first, side="right")) - 1
        begin, end = self.edges[block : block + 2].tolist()
        widths = _widths(self.sets)
        place = self.start + sum(int(self.ends[what][begin]) * width for what, width in widths.items())
        whole = None
        if (first, stop) == (begin, end):
            whole = self._bytes(place, sum(self._rows(what, begin, end) * width for what, width in widths.items()))
            place = 0
        arrays = {}
        for name, kind, columns, what in layout(self.sets):
            width, rows = np.dtype(kind).itemsize * max(columns, 1), self._rows(what, first, stop)
            from_ = place + self._rows(what, begin, first) * width
            part = self._bytes(from_, rows * width) if whole is None else whole[from_ : from_ + rows * width]
            arrays[name] = part.view(kind).reshape((rows, columns) if columns else (rows,))
            place += self._rows(what, begin, end) * width
        return arrays

    def counts(self, number: int) -> dict[str, int]:
        """How many windows, and rows of each set, a video has."""
        return {what: self._rows(what, number, number + 1) for what in self.ends}

    def _rows(self, what: str, first: int, stop: int) -> int:
        return int(self.ends[what][stop] - self.ends[what][first])

    def _bytes(self, offset: int, size: int) -> UInt8[np.ndarray, " n"]:
        content = np.empty(size, np.uint8)
        with self._lock:
            self.file.seek(offset)
            if self.file.readinto(content.data) != size:
                raise DataError(f"{self.path}: was cut short; its vectors are made again.")
        return content


def _widths(sets: Mapping[str, RowSet]) -> dict[str, int]:
    """The bytes of all arrays for a window, and for a row of each set."""
    widths: dict[str, int] = {}
    for _, kind, columns, what in layout(sets):
        widths[what] = widths.get(what, 0) + np.dtype(kind).itemsize * max(columns, 1)
    return widths


def write_vectors(
    folder: Path, sets: Mapping[str, RowSet], counts: Mapping[str, Mapping[str, int]], get: Callable[[str], Arrays]
) -> Path:
    """Writes the vectors of some videos as a file; those of one block are in memory at a time.

    Args:
        folder: of the model.
        sets: the sets of rows.
        counts: of each video, by the hash of its features, how many windows and rows of each set it has.
        get: gives the vectors of a video.

    Raises:
        OSError: it cannot be written.
    """
    widths, videos = _widths(sets), sorted(counts)
    sizes = [sum(counts[video][what] * width for what, width in widths.items()) for video in videos]
    edges, size = [0], 0
    for number, more in enumerate(sizes):
        if size and size + more > _BLOCK:
            edges.append(number)
            size = 0
        size += more
    edges.append(len(videos))
    head = {"videos": videos, "counts": {what: [counts[video][what] for video in videos] for what in widths}}
    text = json.dumps({**head, "edges": edges}).encode()
    digest = hashlib.sha256(text := text + b" " * (-len(text) % 8) + b"\n")

    def write(file: BufferedRandom) -> None:
        file.write(bytes(HEAD) + text)
        for first, stop in pairwise(edges):
            arrays = [get(video) for video in videos[first:stop]]
            for name, kind, _, _ in layout(sets):
                part = np.concatenate([one[name] for one in arrays]).astype(kind).reshape(-1).view(np.uint8).data
                digest.update(part)
                file.write(part)
        file.seek(0)
        file.write(digest.hexdigest().encode() + b"\n")

    temporary = folder / f"new.{secrets.token_hex(8)}{HALF_WRITTEN}"
    replace_file(temporary, write, durable=False)
    path = folder / f"{digest.hexdigest()}{SUFFIX}"
    temporary.replace(path)
    _note(folder, [path])
    return path


def open_vectors(folder: Path, sets: Mapping[str, RowSet], opened: Sequence[VectorFile] = ()) -> Sequence[VectorFile]:
    """All files of vectors of a model, the largest first; those that do not prove themselves are deleted.

    A file whose stamp is that with which it was hashed, or written, is not hashed again.

    Args:
        folder: of the model.
        sets: the sets of rows that a file has to hold.
        opened: files that are open already.
    """
    noted, files, hashed = _noted(folder), list[VectorFile](), list[Path]()
    known = {file.path: file for file in opened}
    for path in _files(folder):
        try:
            if path in known and stamp_of(path.lstat()) == known[path].stamp:
                files.append(known[path])
                continue
            file = _open(path)
            stamp = stamp_of(os.fstat(file.fileno()))
            if list(stamp) != noted.get(path.name):
                _expect_proven(path, file)
                hashed.append(path)
            files.append(_opened(path, sets, file, stamp))
        except FileNotFoundError:  # another process has just joined it with others
            continue
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s: made again (%s)", path, error)
            if not folder.is_symlink():  # who knows what lies there
                with suppress(OSError):
                    path.unlink()
    if hashed:
        _note(folder, hashed)
    return sorted(files, key=lambda file: (-int(file.ends["windows"][-1]), file.path.name))


def join_vectors(folder: Path, files: Sequence[VectorFile]) -> Sequence[VectorFile]:
    """Joins small files where there are many, and deletes what the joined one holds.

    Args:
        folder: of the model.
        files: those of the model, the largest first.

    Returns:
        The files that there are now.
    """
    if len(files) <= _MOST:
        return files
    small = [file for file in files if 4 * len(file.videos) < len(files[0].videos)]
    parts = small if len(files) - len(small) < _MOST else files
    place = {video: (file, number) for file in parts for number, video in enumerate(file.videos)}
    counts = {
        video: {what: file._rows(what, number, number + 1) for what in file.ends}
        for video, (file, number) in place.items()
    }

    def get(video: str) -> Arrays:
        file, number = place[video]
        return file.read(number, number + 1)

    try:
        write_vectors(folder, files[0].sets, counts, get)
    except OSError as error:
        logger.info("%s: files of vectors are not joined (%s)", folder, error)
        return files
    for file in parts:
        with suppress(OSError):  # another process reads it
            file.path.unlink()
    clear_half_written(folder, older_than=ABANDONED_AFTER)  # newer files may be those of another process
    return open_vectors(folder, files[0].sets, files)


def delete_vectors(place: Path, digests: Collection[str]) -> None:
    """Deletes the files that hold vectors of some videos, for any model; those of others in them are made again.

    Args:
        place: the folder of the folders of the models.
        digests: the hashes of the features of the videos.
    """
    for path in (path for folder in place.glob("*/") for path in _files(folder)):
        with suppress(OSError, ValueError, TypeError, KeyError), _open(path) as file:
            if not set(digests).isdisjoint(_head(file)["videos"]):
                path.unlink()


def _files(folder: Path) -> list[Path]:
    """The files that are named as ours are."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if is_sha256(path.stem))


def _open(path: Path) -> io.BufferedReader:
    """An open regular file; opening a pipe would wait.

    Raises:
        OSError: it is none, or cannot be read.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return path.open("rb")


def _expect_proven(path: Path, file: io.BufferedReader) -> None:
    """Compares the content of a file with its first line and with its name.

    Raises:
        ValueError: it is not what was written.
    """
    file.seek(0)
    first = file.read(HEAD)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    if first != f"{digest}\n".encode() or path.name != digest + SUFFIX:
        raise ValueError("its content does not match its hash")


def _head(file: io.BufferedReader) -> dict[str, Any]:
    file.seek(HEAD)
    head = file.readline()
    return {**json.loads(head), "start": HEAD + len(head)}


def _opened(path: Path, sets: Mapping[str, RowSet], file: io.BufferedReader, stamp: Stamp) -> VectorFile:
    """An open file with what its head says.

    Raises:
        ValueError, TypeError, KeyError: it does not fit these sets.
    """
    head = _head(file)
    widths = _widths(sets)
    ends = {what: np.append(0, np.cumsum(np.array(head["counts"][what], np.int64))) for what in widths}
    edges = np.array(head["edges"], np.int64)
    size = head["start"] + sum(int(ends[what][-1]) * width for what, width in widths.items())
    if size != stamp[1] or {*map(len, ends.values())} != {len(head["videos"]) + 1} or len(edges) < 2:
        raise ValueError("it holds other sets of rows")
    return VectorFile(path, sets, head["videos"], ends, edges, head["start"], file, stamp)


def _noted(folder: Path) -> dict[str, Any]:
    """The stamps with which files were hashed."""
    try:
        return json.loads(bytes(read_proven(folder / _STAMPS)[0]))
    except (OSError, DataError, ValueError):
        return {}


def _note(folder: Path, paths: Sequence[Path]) -> None:
    """Notes the stamps of files that were hashed, or written, just now."""
    with suppress(OSError):
        noted = {name: stamp for name, stamp in _noted(folder).items() if (folder / name).exists()}
        noted |= {path.name: stamp_of(path.stat()) for path in paths}
        write_proven(folder / _STAMPS, [json.dumps(noted).encode()], durable=False)
