"""The files of the faiss backend: one of centroids, one per segment, and a state that names them with their hashes."""

import errno
import hashlib
import json
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from prvr.data.files import clear_half_written, is_real_folder, replace_file
from prvr.errors import DataError, require
from prvr.reading import parse_record, read_json

__all__ = ["FaissFiles", "FaissState", "StoredIndex", "import_faiss"]

logger = logging.getLogger(__name__)

_FORMAT = 1
_STATE = "state.json"
_NAME = re.compile(r"[0-9a-f]{16}\.faiss")


def import_faiss() -> Any:
    """The library.

    Raises:
        prvr.MissingExtraError: it is not installed; the message says how to.
    """
    return require("faiss", "search", "The faiss backend")


@dataclass(frozen=True)
class StoredIndex:
    """A file.

    Args:
        file: its name.
        size: in bytes.
        blake2b: of its content, hexadecimal.
    """

    file: str
    size: int
    blake2b: str


@dataclass(frozen=True)
class FaissState:
    """Which files belong together.

    Args:
        dim: width of the vectors.
        storage: what was asked for: `Flat`, `SQfp16` or `SQ8`.
        vectors: how many there were when the centroids were found.
        centroids: an index without vectors.
        segments: for each segment the index of its vectors.
    """

    dim: int
    storage: str
    vectors: int
    centroids: StoredIndex
    segments: dict[str, StoredIndex]


class FaissFiles:
    """A folder of indices. A file that is named by the state is never written again; one that is not is cleared away.

    Where the folder is read-only, nothing is kept: what is stored is only told.

    Args:
        folder: is made when something is stored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._read_only = folder, False

    def read_state(self) -> FaissState | None:
        """What the folder holds; None, with a warning, if that cannot be told."""
        path = self.folder / _STATE
        try:
            found = read_json(path)
            if not isinstance(found, dict) or found.get("format") != _FORMAT:
                raise DataError(f"{path}: its format is not {_FORMAT}")
            return parse_record(FaissState, found, str(path))
        except FileNotFoundError:
            return None
        except DataError as error:
            logger.warning("%s. It cannot be used: the faiss index is built anew", str(error).rstrip("."))
            return None

    def write_state(self, state: FaissState) -> None:
        """Replaces the state, then clears away the files it does not name.

        Raises:
            DataError: the folder cannot be written.
        """
        body = json.dumps({"format": _FORMAT, **asdict(state)}, indent=1).encode()
        self._replace(_STATE, lambda file: file.write(body))
        if self._read_only:
            return
        named = {state.centroids.file, *(entry.file for entry in state.segments.values())}
        if not is_real_folder(self.folder) or not is_real_folder(self.folder.parent):
            return  # a link, and who knows what else is written there
        clear_half_written(self.folder)
        for path in self.folder.iterdir():
            if path.name not in named and _NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)

    def store(self, index: Any) -> StoredIndex:
        """Writes an index under a name of its own.

        Raises:
            DataError: the folder cannot be written.
        """
        faiss = import_faiss()

        name = f"{secrets.token_hex(8)}.faiss"
        seen = hashlib.blake2b(digest_size=16)
        size = 0

        def write(file: BinaryIO) -> None:
            def pass_on(data: bytes) -> int:
                nonlocal size
                seen.update(data)
                size += len(data)
                return file.write(data)

            faiss.write_index(index, faiss.PyCallbackIOWriter(pass_on))

        self._replace(name, write)
        return StoredIndex(name, size, seen.hexdigest())

    def load(self, entry: StoredIndex) -> Any | None:
        """The index in a file; None, with a warning, if the file is not as it was written."""
        faiss = import_faiss()

        path = self.folder / entry.file
        try:
            if path.parent != self.folder or not path.is_file():  # opening a pipe would wait
                raise ValueError("there is no such file")
            if (size := path.stat().st_size) != entry.size:
                raise ValueError(f"it has {size} bytes, not the {entry.size} that were written")
            with path.open("rb") as file:
                # Before faiss reads it: a damaged length could make it ask for any amount of memory.
                if hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest() != entry.blake2b:
                    raise ValueError("its content does not match its hash")
                file.seek(0)
                return faiss.read_index(faiss.PyCallbackIOReader(file.read))
        except (OSError, ValueError, RuntimeError) as error:
            logger.warning("%s is damaged (%s): it is built anew", path, error)
            return None

    def _replace(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        if self._read_only:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / name, write)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise DataError(
                    f"{self.folder}: cannot be written ({error}). Free space or mend the folder; the backend 'exact' "
                    "needs no files."
                ) from error
            self._read_only = True
            logger.warning("%s is read-only: the faiss index is built in memory each time it is opened", self.folder)


_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
