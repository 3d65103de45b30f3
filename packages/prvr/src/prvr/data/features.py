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

_SPARSE = 256 * 2**20  # bytes that a matrix may have which its file hardly holds
BIGFILE = ("shape.txt", "id.txt", "feature.bin", "video2frames.txt")
HDF5 = "feature.hdf5"


class FeatureReader(AbstractContextManager["FeatureReader"], ABC):
    """Frame features of a folder, one video at a time. Use it as a context manager; not shared between processes."""

    files: tuple[Path, ...]
    video_ids: tuple[str, ...]
    dim: int

    def read(self, video_id: str) -> Float[np.ndarray, "n f"]:
        """Frame features of one video in time order.

        Args:
            video_id: one of ``video_ids``.

        Returns:
            (n f) float32 or float64 as stored, n >= 1, finite.

        Raises:
            DataError: unknown video, no frame, wrong width, or NaN or infinity in a row.
        """
        if video_id not in self:
            raise DataError(
                f"{self.files[0].parent}: no features for video {video_id!r} ({len(self.video_ids)} videos are there). "
                "Add its features, or take its captions out of the caption file."
            )
        rows = self._rows(video_id)
        return _checked(rows, f"video {video_id!r} in {self.files[0].parent}", "frame", self.dim)

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
        rows, owner: what a row and a matrix belong to, for messages.
    """

    def __init__(self, path: Path, rows: str = "frames", owner: str = "video") -> None:
        if not path.is_file():
            raise DataError(f"{path}: no such file. Check the data root, or download the features.")
        self.files = (path,)
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise DataError(f"{path}: not a readable HDF5 file ({error}). Truncated? Copy it again.") from error
        with _explained(path, "its list of entries"):
            self.video_ids = tuple(self._file.keys())
        self._known = frozenset(self.video_ids)
        if not self._known:
            raise DataError(f"{path}: holds no dataset. Expected one ({rows} x features) dataset per {owner}.")
        name = short(self.video_ids[0])
        with _explained(path, f"entry {name}"):
            shape = _matrix(self._file, self.video_ids[0], path).shape
            if len(shape) != 2:
                raise DataError(f"{path}: entry {name} is not a matrix (rows x features), but of {shape}.")
            self.dim = int(shape[1])

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._known

    def _rows(self, video_id: str) -> np.ndarray:
        with _explained(self.files[0], f"entry {short(video_id)}"):
            return _matrix(self._file, video_id, self.files[0])[()]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class QueryFeatures(AbstractContextManager["QueryFeatures"]):
    """Word features of queries: a flat HDF5 file with one dataset (w e) per caption id. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = Hdf5Reader(path, "words", "caption id")
        self.dim = self._file.dim

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._file

    def read(self, query_id: str) -> Float[np.ndarray, "w e"]:
        """Word features of one query, all its rows, as stored.

        Raises:
            DataError: unknown caption id, no word, wrong width, or NaN or infinity in a row.
        """
        if query_id not in self:
            raise DataError(
                f"{self.path}: no features for caption {query_id!r}. Encode that caption, or take it out of the file."
            )
        return _checked(self._file._rows(query_id), f"caption {query_id!r}", "word", self.dim)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def open_features(folder: Path | str) -> FeatureReader:
    """Opens a folder of frame features: BigFile where its four files are complete (the faster), else ``feature.hdf5``.

    Args:
        folder: ``ROOT/COL/FeatureData/FEATURE``.

    Raises:
        DataError: neither layout is there, or a file is truncated or inconsistent.
    """
    files = feature_files(folder)
    return Hdf5Reader(files[0]) if len(files) == 1 else BigFileReader(Path(folder))


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
    found = re.fullmatch(r"\s*(\d{1,18})\s+(\d{1,18})\s*", text)
    if found is None or int(found[2]) < 1:
        raise DataError(f"{path}: expected one line 'ROWS WIDTH', got {short(' '.join(text[:200].split()))}.")
    return int(found[1]), int(found[2])


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
        found = text[place:] if text.startswith("{") else text
        raise DataError(
            f"{path}: not a Python dict literal {{video: [frame, ...]}}, with {short(found[:80], 60)} after "
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
        raise DataError(f"{path}: {short(text)} is no text of Python ({error}). Copy it again.") from error


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


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    """Turns what h5py raises about a damaged file into one message."""
    try:
        yield
    except DataError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{path}: {what} cannot be read ({error}). Truncated? Copy the file again.") from error


def _matrix(file: h5py.File, key: str, path: Path) -> h5py.Dataset:
    """An entry that lies in this file as numbers, and no link to another one: opening that could wait forever."""
    name = f"{path}: entry {short(key)}"
    link = file.get(key, getlink=True)
    if not isinstance(link, h5py.HardLink):
        raise DataError(f"{name} is a link ({type(link).__name__}), expected a matrix (rows x features).")
    item = file[key]
    if not isinstance(item, h5py.Dataset):
        raise DataError(f"{name} is a {type(item).__name__}, expected a floating-point matrix (rows x features).")
    if item.dtype.kind != "f" or item.shape is None:
        raise DataError(f"{name} is {item.dtype}, expected a floating-point matrix (rows x features).")
    if item.is_virtual or item.external:
        raise DataError(f"{name} lies in another file. Copy it into this one.")
    size, stored = math.prod(item.shape) * item.dtype.itemsize, item.id.get_storage_size()
    if size > _SPARSE and size > 64 * stored:  # rows that were never written: reading makes them all
        raise DataError(
            f"{name} has shape {item.shape}, {size} bytes, of which the file holds {stored}. Extract it again."
        )
    return item


def _checked(rows: np.ndarray, what: str, unit: str, dim: int) -> np.ndarray:
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise DataError(f"{what}: features have shape {rows.shape}, expected ({unit}s, {dim}). Extract it again.")
    if not len(rows):
        raise DataError(f"{what}: 0 {unit}s. At least one is needed; take it out or extract it again.")
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise DataError(
            f"{what}: NaN or infinity in {unit} row {int(bad.argmax())} ({int(bad.sum())} of {len(rows)} rows). "
            "Extract it again."
        )
    return rows
