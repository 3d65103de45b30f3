"""Readers of frame features (BigFile and HDF5) and of query features (HDF5)."""

import ast
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float

from prvr.errors import DataError
from prvr.reading import LARGE, read_bytes, read_text, short

_SPARSE = 256 * 2**20  # bytes of a matrix that may be stored sparsely
BIGFILE = ("shape.txt", "id.txt", "feature.bin", "video2frames.txt")
HDF5 = "feature.hdf5"


class FeatureReader(AbstractContextManager["FeatureReader"], ABC):
    """Features in a folder or file, one video (or caption) at a time. Use it as a context manager, in one process.

    Attributes:
        files: the files that are read.
        video_ids: the ids of all entries.
        dim: width of the features.
    """

    files: tuple[Path, ...]
    video_ids: tuple[str, ...]
    dim: int
    item: str = "video"
    row: str = "frame"

    def read(self, video_id: str) -> Float[np.ndarray, "n f"]:
        """Features of one video in time order, or of the words of one caption.

        Args:
            video_id: one of ``video_ids``.

        Returns:
            (n f) float32 or float64 as stored, n >= 1, finite.

        Raises:
            DataError: unknown id, no row, wrong width, or NaN or infinity in a row.
        """
        name = f"{self.files[0].parent}: {self.item} {video_id!r}"
        if video_id not in self:
            raise DataError(
                f"{name} has no features ({len(self.video_ids)} {self.item}s are available). Extract them, or "
                "remove its captions from the caption file."
            )
        rows = self._rows(video_id)
        finite = np.isfinite(rows).all(axis=-1)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            problem = f"features have shape {rows.shape}, expected ({self.row}s, {self.dim})"
        elif not len(rows):
            problem = f"0 {self.row}s, expected at least one"
        elif not finite.all():
            first, count = int(finite.argmin()), int((~finite).sum())
            problem = f"NaN or infinity in {self.row} row {first} ({count} of {len(rows)} rows)"
        else:
            return rows
        raise DataError(f"{name}: {problem}. Extract it again.")

    @abstractmethod
    def __contains__(self, video_id: object) -> bool: ...

    @abstractmethod
    def _rows(self, video_id: str) -> np.ndarray: ...

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""

    def __exit__(self, *_: object) -> None:
        self.close()


class BigFileReader(FeatureReader):
    """BigFile: one flat float32 matrix, its row names, and the frame names of each video."""

    def __init__(self, folder: Path) -> None:
        shape, ids, binary, frames = self.files = tuple(folder / name for name in BIGFILE)
        rows, self.dim = _read_shape(shape)
        size, expected = binary.stat().st_size, 4 * rows * self.dim
        if size != expected:
            raise DataError(
                f"{binary}: {size} bytes, but shape.txt says {rows} x {self.dim} float32 = {expected} bytes. "
                "The file is truncated or belongs to another shape.txt: copy it again."
            )
        # Split bytes, not text: a UTF-8 letter may hold byte 0xA0 or 0x85, which are spaces in ISO-8859-1 text.
        names = read_bytes(ids, LARGE).split()
        if len(names) != rows:
            raise DataError(f"{ids}: {len(names)} names, but shape.txt says {rows} rows. Copy the folder again.")
        row_of = {name: row for row, name in enumerate(names)}
        if len(row_of) != rows:
            repeated = Counter(names).most_common(1)[0][0].decode("latin-1")
            raise DataError(f"{ids}: frame name {short(repeated)} is repeated. Names must be unique.")
        self._row_numbers = {v: _rows_of(v, n, row_of, frames) for v, n in _read_video2frames(frames).items()}
        self.video_ids = tuple(self._row_numbers)
        self._file = binary.open("rb", buffering=0)

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._row_numbers

    def _rows(self, video_id: str) -> np.ndarray:
        rows = self._row_numbers[video_id]
        out = np.empty((len(rows), self.dim), np.float32)
        # Frames nearly always lie in one run; each run is one read.
        runs = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1)
        for run in runs if len(rows) else []:
            self._file.seek(4 * self.dim * int(rows[run[0]]))
            out[run] = np.fromfile(self._file, "<f4", len(run) * self.dim).reshape(len(run), self.dim)
        return out

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class Hdf5Reader(FeatureReader):
    """HDF5: one matrix (rows x features) for each name, float32 or float64; `dim` is the width of the first.

    Args:
        path: the file.
        item, row: what a matrix and a row belong to, for messages.
    """

    def __init__(self, path: Path, item: str = "video", row: str = "frame") -> None:
        self.files, self.item, self.row = (path,), item, row
        if not path.is_file():
            raise DataError(f"{path}: no such file. Check the data root, or download the features.")
        with self._reading():
            self._file = h5py.File(path, "r")
            self.video_ids = tuple(self._file.keys())
            self._names = frozenset(self.video_ids)
            if not self._names:
                raise DataError(f"{path}: no dataset in it, expected one ({row}s x features) dataset per {item}.")
            self.dim = int(self._matrix(self.video_ids[0]).shape[1])

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._names

    def _rows(self, video_id: str) -> np.ndarray:
        with self._reading():
            return self._matrix(video_id)[()]

    def _matrix(self, name: str) -> h5py.Dataset:
        """An entry whose numbers lie in this file. Links are not followed: opening their target could wait forever."""
        link = self._file.get(name, getlink=True)
        item = self._file[name] if isinstance(link, h5py.HardLink) else link
        if not isinstance(item, h5py.Dataset):
            problem = f"a {type(item).__name__}"
        elif item.is_virtual or item.external:
            problem = "stored in another file"
        elif item.dtype.kind != "f" or item.shape is None or item.ndim != 2:
            problem = f"{item.dtype} of shape {item.shape}"
        else:
            size, stored = math.prod(item.shape) * item.dtype.itemsize, item.id.get_storage_size()
            if size <= _SPARSE or size <= 64 * stored:
                return item
            problem = f"of shape {item.shape}, {size} bytes, of which the file holds {stored}"
        raise DataError(
            f"{self.files[0]}: entry {short(name)} is {problem}, expected a floating-point matrix ({self.row}s x "
            "features) in this file. Extract it again."
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns what h5py raises about a damaged file into one message."""
        try:
            yield
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.files[0]}: cannot be read ({error}). Truncated? Copy the file again.") from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def open_features(folder: Path | str) -> FeatureReader:
    """Opens a folder of frame features: BigFile where its four files are complete (the faster), else ``feature.hdf5``.

    Args:
        folder: ``ROOT/COL/FeatureData/FEATURE``.

    Raises:
        DataError: neither layout is there, or a file is truncated or inconsistent.
    """
    files = feature_files(folder)
    return Hdf5Reader(files[0]) if len(files) == 1 else BigFileReader(Path(folder))


def open_query_features(path: Path) -> FeatureReader:
    """Opens word features of queries: a flat HDF5 file with one dataset (w e) per caption id.

    Raises:
        DataError: the file is missing or damaged.
    """
    return Hdf5Reader(path, "caption", "word")


def feature_files(folder: Path | str) -> tuple[Path, ...]:
    """The files that [open_features][prvr.data.features.open_features] would read.

    Raises:
        DataError: neither layout is there.
    """
    folder = Path(folder)
    missing = [name for name in BIGFILE if not (folder / name).is_file()]
    if not missing:
        return tuple(folder / name for name in BIGFILE)
    if (folder / HDF5).is_file():
        return (folder / HDF5,)
    raise DataError(
        f"{folder}: no frame features. Expected {HDF5}, or BigFile's {', '.join(BIGFILE)} "
        f"(missing: {', '.join(missing)})."
    )


def _read_shape(path: Path) -> tuple[int, int]:
    text = read_bytes(path).decode("ascii", errors="replace")
    match = re.fullmatch(r"\s*(\d{1,18})\s+(\d{1,18})\s*", text)
    if match is None or int(match[2]) < 1:
        raise DataError(f"{path}: expected one line 'ROWS WIDTH', got {short(' '.join(text[:200].split()))}.")
    return int(match[1]), int(match[2])


_STRING = r"""[uU]?(?:'[^'\\\r\n]*+(?:\\.[^'\\\r\n]*+)*+'|"[^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+")"""
_ENTRY = re.compile(
    rf"\s*+({_STRING})\s*+:\s*+[\[(]((?:\s*+{_STRING}\s*+(?:,|(?=[\])])))*+)\s*+[\])]\s*+(?:,|(?=\}}))", re.DOTALL
)


def _read_video2frames(path: Path) -> dict[str, list[str]]:
    # Not ast.literal_eval: of a large file that holds something else it makes gigabytes of nodes.
    text, table, place = read_text(path, LARGE).strip(), dict[str, list[str]](), 1
    while text.startswith("{") and (entry := _ENTRY.match(text, place)) is not None:
        video_id, frames = _literal(entry[1], path), entry[2]
        if video_id in table:
            raise DataError(f"{path}: video {short(video_id)} is repeated. Ids must be unique.")
        table[video_id] = [_literal(name, path) for name in re.findall(_STRING, frames)]
        place = entry.end()
    if not text.startswith("{") or text[place:].strip() != "}":
        rest = text[place:] if text.startswith("{") else text
        raise DataError(
            f"{path}: not a Python dict literal {{video: [frame, ...]}}, with {short(rest[:80], 60)} after "
            f"{len(table)} videos. Truncated? Copy it again."
        )
    return table


def _literal(text: str, path: Path) -> str:
    plain = text.lstrip("uU")[1:-1]
    if "\\" not in plain:
        return plain
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise DataError(f"{path}: {short(text)} is not a Python string ({error}). Copy it again.") from error


def _rows_of(video_id: str, names: list[str], row_of: dict[bytes, int], path: Path) -> np.ndarray:
    rows = [row_of.get(name.encode("utf-8", "surrogatepass")) for name in names]
    if None in rows:  # id.txt is ISO-8859-1 by convention; files written as UTF-8 exist too
        rows = [row_of.get(name.encode("latin-1", "replace")) for name in names]
    if None in rows:
        raise DataError(
            f"{path}: frame {short(names[rows.index(None)])} of video {short(video_id)} is not in id.txt. "
            "Copy the folder again."
        )
    return np.array(rows, np.int64)
