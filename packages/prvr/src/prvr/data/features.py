"""Readers of frame features (BigFile and HDF5) and of query features (HDF5)."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np
from jaxtyping import Float

from prvr.data.errors import DataError

BIGFILE = ("shape.txt", "id.txt", "feature.bin", "video2frames.txt")
HDF5 = "feature.hdf5"


class FeatureReader(ABC):
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

    def __enter__(self) -> "FeatureReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        names = ids.read_bytes().split()
        if len(names) != rows:
            raise DataError(f"{ids}: {len(names)} names, but shape.txt says {rows} rows. Copy the folder again.")
        row_of = {name: row for row, name in enumerate(names)}
        if len(row_of) != rows:
            raise DataError(f"{ids}: frame name {_first_repeat(names)!r} stands there twice. Names must be unique.")
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
        self._file.close()


class Hdf5Reader(FeatureReader):
    """HDF5: one dataset (n f) per video, float32 or float64."""

    def __init__(self, folder: Path) -> None:
        self.files = (folder / HDF5,)
        self._file = _open_hdf5(self.files[0])
        self.video_ids = tuple(self._file.keys())
        if not self.video_ids:
            raise DataError(f"{self.files[0]}: holds no dataset. Expected one (frames x features) dataset per video.")
        self.dim = _width(self._file, self.video_ids[0], self.files[0])

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._file

    def _rows(self, video_id: str) -> np.ndarray:
        return _read_dataset(self._file, video_id, self.files[0])

    def close(self) -> None:
        self._file.close()


class QueryFeatures:
    """Word features of queries: a flat HDF5 file with one dataset (w e) per caption id. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open_hdf5(path)
        first = next(iter(self._file.keys()), None)
        if first is None:
            raise DataError(f"{path}: holds no dataset. Expected one (words x features) dataset per caption id.")
        self.dim = _width(self._file, first, path)

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
        return _checked(_read_dataset(self._file, query_id, self.path), f"caption {query_id!r}", "word", self.dim)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> "QueryFeatures":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_features(folder: Path | str) -> FeatureReader:
    """Opens a folder of frame features: BigFile where its four files are complete (the faster), else ``feature.hdf5``.

    Args:
        folder: ``ROOT/COL/FeatureData/FEATURE``.

    Raises:
        DataError: neither layout is there, or a file is truncated or inconsistent.
    """
    files = feature_files(folder)
    return Hdf5Reader(Path(folder)) if len(files) == 1 else BigFileReader(Path(folder))


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
    text = path.read_text(encoding="ascii", errors="replace").split()
    if len(text) != 2 or not all(word.isdigit() for word in text) or int(text[1]) < 1:
        raise DataError(f"{path}: expected one line 'ROWS WIDTH', got {' '.join(text)[:60]!r}.")
    return int(text[0]), int(text[1])


def _read_video2frames(path: Path) -> dict[str, list[str]]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8").strip(), mode="eval")
        table = ast.literal_eval(tree)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise DataError(
            f"{path}: not a Python dict literal {{video: [frame, ...]}} ({error}). Truncated? Copy it again."
        ) from error
    if not isinstance(table, dict) or not isinstance(tree.body, ast.Dict):
        raise DataError(f"{path}: expected a dict literal {{video: [frame, ...]}}, got {type(table).__name__}.")
    if len(table) != len(tree.body.keys):
        keys = [key.value for key in tree.body.keys if isinstance(key, ast.Constant)]
        raise DataError(f"{path}: video {_first_repeat(keys)!r} stands there twice. Ids must be unique.")
    return table


def _rows_of(video_id: str, names: list[str], row_of: dict[bytes, int], path: Path) -> np.ndarray:
    rows = [row_of.get(name.encode("utf-8")) for name in names]
    if None in rows:  # id.txt is ISO-8859-1 by convention; files written as UTF-8 exist too
        rows = [row_of.get(name.encode("latin-1", "replace")) for name in names]
    if None in rows:
        raise DataError(
            f"{path}: frame {names[rows.index(None)]!r} of video {video_id!r} is not in id.txt. Copy the folder again."
        )
    return np.array(rows, np.int64)


def _first_repeat(names: Iterable[object]) -> str:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            return name.decode("latin-1") if isinstance(name, bytes) else str(name)
        seen.add(name)
    return ""


def _open_hdf5(path: Path) -> h5py.File:
    if not path.is_file():
        raise DataError(f"{path}: no such file. Check the data root, or download the features.")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: not a readable HDF5 file ({error}). Truncated? Copy it again.") from error


def _width(file: h5py.File, key: str, path: Path) -> int:
    item = file[key]
    if not isinstance(item, h5py.Dataset) or item.ndim != 2:
        raise DataError(f"{path}: entry {key!r} is not a matrix (rows x features). Expected a flat file of matrices.")
    return int(item.shape[1])


def _read_dataset(file: h5py.File, key: str, path: Path) -> np.ndarray:
    item = file[key]
    if not isinstance(item, h5py.Dataset) or item.dtype.kind != "f":
        kind = item.dtype if isinstance(item, h5py.Dataset) else type(item).__name__
        raise DataError(f"{path}: entry {key!r} is {kind}, expected a floating-point matrix (rows x features).")
    try:
        return item[()]
    except OSError as error:
        raise DataError(f"{path}: entry {key!r} cannot be read ({error}). Truncated? Copy the file again.") from error


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
