"""The files of a packed split: flat memory-mapped matrices with hashes."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from prvr.data.hashes import hash_file, read_signed, signed
from prvr.errors import DataError, InputError
from prvr.reading import LARGE, read_json

FORMAT = 5
MATRICES = ("clips", "frames", "words")
HEADER = "meta.json"
STREAM = "stream"
"""The matrix of a second stream, which few have."""
FILES = (*(f"{name}.bin" for name in (*MATRICES, STREAM)), "index.npz", "text.json", HEADER)
_MEND = "Delete this folder, it is built again from the data."
VERIFY_LIMIT = 512 * 2**20  # bytes whose hashes are computed when the files are opened; above, call verify()


class PackedWriter:
    """Streams a packed split into an empty folder: rows are appended, only their numbers are kept in memory.

    Attributes:
        lengths: of each matrix, the number of rows of each video or query.
    """

    def __init__(self, folder: Path, dtype: str, more: Sequence[str] = ()) -> None:
        self.folder, self.dtype = folder, np.dtype(dtype).newbyteorder("<")
        self._files: dict[str, BinaryIO] = {}
        self.lengths: dict[str, list[int]] = {name: [] for name in (*MATRICES, *more)}
        self._widths = dict.fromkeys(self.lengths, 0)

    def __enter__(self) -> "PackedWriter":
        self._files = {name: (self.folder / f"{name}.bin").open("wb") for name in self.lengths}
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            with suppress(OSError):  # the error that kept `finish` from closing it is the one to tell
                file.close()

    def append(self, name: str, rows: np.ndarray) -> None:
        """Appends the rows of a video or a query to one of the matrices."""
        self._files[name].write(np.ascontiguousarray(rows, self.dtype).data)
        self.lengths[name].append(len(rows))
        self._widths[name] = rows.shape[1]

    def finish(self, index: dict[str, np.ndarray], text: dict[str, Any], about: dict[str, Any]) -> None:
        """Writes the small files and, last, the header that vouches for all of them."""
        for file in self._files.values():
            file.close()
        ends = {name: np.cumsum([0, *lengths], dtype=np.int64) for name, lengths in self.lengths.items()}
        index |= {f"{name.removesuffix('s')}_offsets": ends[name] for name in ends if name != "clips"}
        shapes = {name: [int(ends[name][-1]), self._widths[name]] for name in ends}
        with (self.folder / "index.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **index)
        (self.folder / "text.json").write_text(json.dumps(text), encoding="utf-8", newline="\n")
        paths = [path for name in FILES if name != HEADER and (path := self.folder / name).is_file()]
        files = {path.name: {"size": path.stat().st_size, "sha256": hash_file(path)} for path in paths}
        header = {"format": FORMAT, "dtype": self.dtype.name, "shapes": shapes, "files": files, "about": about}
        (self.folder / HEADER).write_text(signed(header), encoding="utf-8", newline="\n")


class PackedFiles:
    """The open files of a packed split. Matrices are mapped, not read; the small files are read at once.

    Args:
        folder: what a [PackedWriter][prvr.data.packed_files.PackedWriter] filled.
        verify: compute all hashes now; default: if the files have at most 512 MiB.

    Raises:
        DataError: the folder is missing, truncated, damaged, or of another format; names the folder to delete.
    """

    def __init__(self, folder: Path, verify: bool | None = None) -> None:
        self.folder = folder
        missing = f"{folder}: this packed split is damaged: it has no {HEADER}. {_MEND}"
        self.header = read_signed(folder / HEADER, range(FORMAT, FORMAT + 1), _MEND, missing)
        self.about: dict[str, Any] = self.header["about"]
        files = self.header["files"]
        for name, entry in files.items():
            path = folder / name
            size = path.stat().st_size if path.is_file() else None
            if size != entry["size"]:
                raise _damaged(folder, f"{name} has {size} bytes, expected {entry['size']}")
        total = sum(entry["size"] for entry in files.values())
        self.verify([n for n in files if verify or (verify is None and total <= VERIFY_LIMIT) or not n.endswith("bin")])
        with np.load(folder / "index.npz", allow_pickle=False) as index:
            self.index = {name: index[name] for name in index.files}
        self.text: dict[str, list[Any]] = read_json(folder / "text.json", LARGE)
        dtype = np.dtype(self.header["dtype"]).newbyteorder("<")
        self._maps: dict[str, np.ndarray] | None = {
            name: np.memmap(folder / f"{name}.bin", dtype, "r", shape=tuple(shape)).view(np.ndarray)  # plain: cheaper
            for name, shape in self.header["shapes"].items()
        }

    def verify(self, names: list[str] | None = None) -> None:
        """Reads files (default: all) and compares their hashes.

        Raises:
            DataError: a file is damaged.
        """
        for name in self.header["files"] if names is None else names:
            if hash_file(self.folder / name) != self.header["files"][name]["sha256"]:
                raise _damaged(self.folder, f"the hash of {name} does not match its content")

    def matrix(self, name: str) -> np.ndarray:
        """One of the mapped matrices. Copy what you keep: no view may outlive ``close``."""
        if self._maps is None:
            raise InputError(f"{self.folder}: the packed split was closed; open it again")
        return self._maps[name]

    def close(self) -> None:
        """Unmaps the matrices, so that the folder can be deleted or replaced (Windows refuses that before)."""
        self._maps = None


def _damaged(folder: Path, problem: str) -> DataError:
    return DataError(f"{folder}: this packed split is damaged: {problem}. {_MEND}")
