"""Files that backends keep: replaced as a whole, and read only if their hash is right."""

import errno
import hashlib
import logging
from collections.abc import Callable
from io import BufferedRandom
from pathlib import Path
from typing import BinaryIO, TypeVar

from prvr.data.atomic import clear_half_written, is_real_folder, replace_file
from prvr.errors import DataError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_DIGEST_BYTES = 64  # of blake2b, before the content


def read_signed(path: Path, read: Callable[[BinaryIO], _T]) -> _T | None:
    """What a function reads from a file of `write_signed`; None where there is none, or, with a warning, a damaged one.

    The function gets the file once its hash is right: a damaged length could make it ask for any amount of memory. It
    raises ValueError or RuntimeError for content that it cannot use.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_signed(Path(folder, "rows.bin"), lambda file: file.write(b"a few rows"))
        ...     read_signed(Path(folder, "rows.bin"), lambda file: file.read(5))
        b'a few'
    """
    try:
        if not path.is_file():  # opening a pipe would wait
            if path.exists():
                raise ValueError("not a regular file")
            return None
        with path.open("rb") as file:
            digest = file.read(_DIGEST_BYTES)
            if hashlib.file_digest(file, "blake2b").digest() != digest:
                raise ValueError("its content does not match its hash")
            file.seek(_DIGEST_BYTES)
            return read(file)
    except (OSError, ValueError, RuntimeError) as error:
        logger.warning("%s cannot be used (%s) and is rebuilt", path, str(error).rstrip("."))
        return None


def write_signed(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replaces a file; where its folder is read-only, nothing is kept.

    Args:
        path: the file, in the folder of the backend alone.
        write: writes the content.

    Raises:
        DataError: the folder cannot be written.
    """
    folder = path.parent

    def write_hashed(file: BufferedRandom) -> None:
        file.write(bytes(_DIGEST_BYTES))
        write(file)
        file.seek(_DIGEST_BYTES)
        digest = hashlib.file_digest(file, "blake2b").digest()
        file.seek(0)
        file.write(digest)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, write_hashed)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise DataError(
                f"{folder}: cannot be written ({error}). Free disk space or fix its permissions; the backend "
                "'exact' needs no files."
            ) from error
        logger.warning("%s is read-only: what it would hold is computed each time it is needed", folder)
        return
    if is_real_folder(folder) and is_real_folder(folder.parent):  # a link: who knows what else is written there
        clear_half_written(folder)
