"""Readers of frame features (BigFile and HDF5) and of query features (HDF5)."""

import ast
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
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
        match = re.fullmatch(rb"\s*([1-9]\d{0,17})\s+([1-9]\d{0,17})\s*", text := read_bytes(shape))
        if match is None:
            raise DataError(f"{shape}: expected one line 'ROWS WIDTH', got {short(text)}.")
        rows, self.dim = int(match[1]), int(match[2])
        size, expected = binary.stat().st_size, 4 * rows * self.dim
        if size != expected:
            raise DataError(
                f"{binary}: {size} bytes, but shape.txt says {rows} x {self.dim} float32 = {expected} bytes. "
                "The file is truncated or belongs to another shape.txt: copy it again."
            )
        row_of = {name: row for row, name in enumerate(_read_names(ids, rows))}
        try:
            self._row_numbers = {
                video: np.array([row_of[name] for name in names], np.int64)
                for video, names in _read_video2frames(frames).items()
            }
        except KeyError as error:
            raise DataError(
                f"{frames}: frame {short(error.args[0])} is not in id.txt. Copy the folder again."
            ) from None
        self.video_ids = tuple(self._row_numbers)
        self._matrix = np.memmap(binary, "<f4", "r", shape=(rows, self.dim))

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._row_numbers

    def _rows(self, video_id: str) -> np.ndarray:
        return self._matrix.view(np.ndarray)[self._row_numbers[video_id]]

    def close(self) -> None:
        """Closes the file."""
        del self._matrix


class Hdf5Reader(FeatureReader):
    """HDF5: one matrix (rows x features) for each name, float32 or float64; `dim` is the width of the first.

    Further axes of length 1 are left out, and the only matrix in a group stands for the group.

    An id that the file lacks is also looked for as the authors of MSC-PRVR (a video without `v_`) and of DL-DKD (a
    caption with `#` for `#enc#`) write it.

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
            self.dim = int(self._matrix(self.video_ids[0]).shape[-1])

    def __contains__(self, video_id: object) -> bool:
        return isinstance(video_id, str) and self._name(video_id) in self._names

    def _name(self, video_id: str) -> str:
        return video_id if video_id in self._names else video_id.removeprefix("v_").replace("#enc#", "#")

    def _rows(self, video_id: str) -> np.ndarray:
        with self._reading():
            entry = self._matrix(self._name(video_id))
            return entry[()].reshape(math.prod(entry.shape[:-1]), entry.shape[-1])

    def _matrix(self, name: str) -> h5py.Dataset:
        """An entry whose numbers lie in this file, or the only one in a group of this name.

        Links are not followed: opening their target could wait forever.
        """
        link = self._file.get(name, getlink=True)
        item = self._file[name] if isinstance(link, h5py.HardLink) else link
        if isinstance(item, h5py.Group) and len(item) == 1 and "/" not in name:
            return self._matrix(f"{name}/{next(iter(item))}")
        if isinstance(item, h5py.Group):
            problem = f"a Group of {len(item)} entries, among them {short(list(islice(item, 3)))}"
        elif not isinstance(item, h5py.Dataset):
            problem = f"a {type(item).__name__}"
        elif item.is_virtual or item.external:
            problem = "stored in another file"
        elif item.dtype.kind != "f" or not is_matrix(item.shape or ()):
            problem = f"{item.dtype} of shape {item.shape}"
        else:
            size = math.prod(item.shape) * item.dtype.itemsize
            stored = item.id.get_storage_size()
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
            if "unable to lock file" in str(error):
                raise DataError(
                    f"{self.files[0]}: is locked ({error}). Another program has it open, perhaps to write, or its disk "
                    "cannot lock files. Close that program, or set the environment variable "
                    "HDF5_USE_FILE_LOCKING=FALSE if none writes it."
                ) from error
            raise DataError(f"{self.files[0]}: cannot be read ({error}). Truncated? Copy the file again.") from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def is_matrix(shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of a matrix, but for axes of length 1 before the last."""
    return len(shape) > 1 and math.prod(shape[:-1]) == max(shape[:-1])


def open_features(folder: Path | str) -> FeatureReader:
    """Opens a folder of frame features: BigFile where its four files are complete (the faster), else ``feature.hdf5``.

    Args:
        folder: ``ROOT/COL/FeatureData/FEATURE``; or an HDF5 file.

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
    if folder.is_file():
        return (folder,)
    missing = [name for name in BIGFILE if not (folder / name).is_file()]
    if not missing:
        return tuple(folder / name for name in BIGFILE)
    if (folder / HDF5).is_file():
        return (folder / HDF5,)
    raise DataError(
        f"{folder}: no frame features. Expected {HDF5}, or BigFile's {', '.join(BIGFILE)} "
        f"(missing: {', '.join(missing)})."
    )


def _read_names(path: Path, rows: int) -> list[str]:
    """The names of the rows: ISO-8859-1 by convention; files written as UTF-8 exist too."""
    content = read_bytes(path, LARGE)
    try:
        content.decode()
        encoding = "utf-8"
    except UnicodeDecodeError:
        encoding = "latin-1"
    # Split bytes, not text: a letter may be U+00A0 or U+0085, which are spaces in text.
    names = [name.decode(encoding) for name in content.split()]
    if len(names) != rows:
        raise DataError(f"{path}: {len(names)} names, but shape.txt says {rows} rows. Copy the folder again.")
    name, number = Counter(names).most_common(1)[0]
    if number > 1:
        raise DataError(f"{path}: frame name {short(name)} is repeated. Names must be unique.")
    return names


_BRACKETS = 1000  # at most, in the names of a video that has the end of a list in one


def _read_video2frames(path: Path) -> dict[str, list[str]]:
    """The frames of each video, from a Python dict literal, list by list: the tree of a whole one takes gigabytes."""
    text = read_text(path, LARGE).strip()
    *lists, rest = re.split(r"(?<=\])\s*(?=[,}])", text[1:])
    table, entry = dict[str, list[str]](), ""
    for part in lists:
        entry += part
        try:
            ((video, frames),) = ast.literal_eval("{" + entry.removeprefix(",") + "}").items()
            "".join([video, *frames])  # raises where one is no text
        except SyntaxError as error:
            if entry.count("]") < _BRACKETS and "unicode error" not in str(error):
                continue  # the end of a list stands in a name
            raise DataError(f"{path}: video {len(table) + 1}: {error}. Copy it again.") from error
        except (AttributeError, MemoryError, RecursionError, TypeError, ValueError):
            break
        if video in table:
            raise DataError(f"{path}: video {short(video)} is repeated. Ids must be unique.")
        table[video], entry = list(frames), ""
    if text[:1] != "{" or (entry + rest).strip(" ,\n") != "}":
        raise DataError(
            f"{path}: not a Python dict literal {{video: [frame, ...]}}, with {short((entry + rest)[:80], 60)} "
            f"after {len(table)} videos. Truncated? Copy it again."
        )
    return table
