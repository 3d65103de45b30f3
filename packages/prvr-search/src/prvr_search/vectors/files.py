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
from bisect import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedRandom
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from prvr.data.atomic import ABANDONED_AFTER, HALF_WRITTEN, clear_half_written, replace_file
from prvr.errors import DataError
from prvr_search.store.features import is_sha256
from prvr_search.store.proof import HEAD, Stamp, read_proven, stamp_at, stamp_of, write_cached
from prvr_search.vectors.model import RowSet, SearchModel

logger = logging.getLogger(__name__)

SUFFIX = ".vectors"
_STAMPS, _TAIL = "stamps", 16
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


def layout(sets: Mapping[str, RowSet]) -> list[tuple[str, np.dtype[Any], str]]:
    """The arrays of a block in order: name, type of a row, and what there is a row for."""
    names = sorted(sets)
    return [
        ("times", np.dtype(("<f8", (2,))), "windows"),
        *((f"{name}.lengths", np.dtype("<f4"), name) for name in names if sets[name].lengths),
        *((name, np.dtype("<i4"), "windows") for name in ("steps", *(f"{name}.counts" for name in names))),
        *((name, np.dtype(("<f2", (sets[name].dim,))), name) for name in names),
    ]


@dataclass(frozen=True, eq=False)
class VectorFile:
    """A file of vectors, which stays open; it can be read by several threads.

    Args:
        path: the file, whose name is the hash of its content.
        sets: its sets of rows.
        videos: the hashes of the features of its videos, in order.
        ends: for `windows` and each set `(v + 1)`: how many rows come before each video, and in all.
        edges: the number of the first video of each block, and of all videos.
        places: where each block begins in the file, and where the last one ends.
        file, stamp: the open file, and its state when it was opened.
    """

    path: Path
    sets: Mapping[str, RowSet]
    videos: Sequence[str]
    ends: Mapping[str, Int64[np.ndarray, " _"]]
    edges: Sequence[int]
    places: Sequence[int]
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
        return [*pairwise(self.edges)]

    def read(self, first: int, stop: int) -> Arrays:
        """The vectors of some videos of one block.

        Args:
            first, stop: the number of the first video, and that after the last.

        Raises:
            DataError: the file is shorter than it was.
        """
        block = bisect(self.edges, first) - 1
        place, begin, end = self.places[block], self.edges[block], self.edges[block + 1]
        arrays: dict[str, np.ndarray] = {}
        for name, kind, what in layout(self.sets):
            of = self.ends[what]
            arrays[name] = array = np.empty(of[stop] - of[first], kind)
            with self._lock:
                self.file.seek(place + int(of[first] - of[begin]) * kind.itemsize)
                if self.file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
                    raise DataError(f"{self.path}: was cut short; its vectors are made again.")
            place += int(of[end] - of[begin]) * kind.itemsize
        return arrays


def write_vectors(
    folder: Path, sets: Mapping[str, RowSet], videos: Collection[str], get: Callable[[str], Arrays]
) -> None:
    """Writes the vectors of some videos as a file; those of one block are in memory at a time.

    The blocks come first, then what is known of them as JSON, and the length of that in `_TAIL` digits.

    Args:
        folder: of the model.
        sets: the sets of rows.
        videos: the hashes of their features.
        get: gives the vectors of a video.

    Raises:
        OSError: it cannot be written.
    """
    digest, names = hashlib.sha256(), sorted(videos)
    counts, edges, places = {what: list[int]() for what in ("windows", *sets)}, [0], [HEAD]

    def write(file: BufferedRandom) -> None:
        def put(content: bytes | memoryview) -> None:
            digest.update(content)
            file.write(content)

        file.write(bytes(HEAD))
        block, size = list[Arrays](), 0
        for number, video in enumerate(names, 1):
            block.append(arrays := get(video))
            size += sum(array.nbytes for array in arrays.values())
            for what, lengths in counts.items():
                lengths.append(len(arrays["steps" if what == "windows" else what]))
            if size > _BLOCK or number == len(names):
                for name, kind, _ in layout(sets):
                    rows = np.concatenate([one[name] for one in block]).astype(kind.base)
                    put(rows.reshape(-1).view(np.uint8).data)
                edges.append(number)
                places.append(file.tell())
                block, size = [], 0
        about = json.dumps({"videos": names, "counts": counts, "edges": edges, "places": places}).encode()
        put(about)
        put(f"{len(about):0{_TAIL}}".encode())
        file.seek(0)
        file.write(digest.hexdigest().encode() + b"\n")

    temporary = folder / f"new.{secrets.token_hex(8)}{HALF_WRITTEN}"
    replace_file(temporary, write, durable=False)
    path = folder / f"{digest.hexdigest()}{SUFFIX}"
    temporary.replace(path)
    _note(folder, [path])


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

    def get(video: str) -> Arrays:
        file, number = place[video]
        return file.read(number, number + 1)

    try:
        write_vectors(folder, files[0].sets, place, get)
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
            if not set(digests).isdisjoint(_about(file)["videos"]):
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


def _about(file: io.BufferedReader) -> dict[str, Any]:
    """What a file says of its blocks."""
    file.seek(-_TAIL, os.SEEK_END)
    size = int(file.read())
    file.seek(-_TAIL - size, os.SEEK_END)
    return json.loads(file.read(size))


def _opened(path: Path, sets: Mapping[str, RowSet], file: io.BufferedReader, stamp: Stamp) -> VectorFile:
    """An open file with what it says of its blocks.

    Raises:
        OSError, ValueError, TypeError, KeyError: it does not fit these sets.
    """
    about = _about(file)
    videos, edges, places = about["videos"], about["edges"], about["places"]
    ends = {what: np.append(0, np.cumsum(np.array(about["counts"][what], np.int64))) for what in ("windows", *sets)}
    size = HEAD + sum(int(ends[what][-1]) * kind.itemsize for _, kind, what in layout(sets))
    if size != places[-1] or {*map(len, ends.values())} != {len(videos) + 1} or len(edges) != len(places):
        raise ValueError("it holds other sets of rows")
    return VectorFile(path, sets, videos, ends, edges, places, file, stamp)


def _noted(folder: Path) -> dict[str, Any]:
    """The stamps with which files were hashed."""
    try:
        return json.loads(bytes(read_proven(folder / _STAMPS)[0]))
    except (OSError, DataError, ValueError):
        return {}


def _note(folder: Path, paths: Sequence[Path]) -> None:
    """Notes the stamps of files that were hashed, or written, just now."""
    noted = {name: stamp for name, stamp in _noted(folder).items() if (folder / name).exists()}
    noted |= {path.name: stamp_at(path) for path in paths}
    write_cached(folder / _STAMPS, [json.dumps(noted).encode()])
