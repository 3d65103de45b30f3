"""Files that prove themselves, and how a file that was hashed is known again.

A file that prvr-search writes is the sha256 of its content in hexadecimal, a line end, and the content. It appears
whole or not at all, and is compared with its hash when it is read.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from prvr.data.atomic import replace_file
from prvr.errors import DataError
from prvr.reading import LARGE, read_bytes

HEAD = 65
"""Bytes before the content: the hash and a line end."""
Stamp = tuple[int, int, int, int]
"""Inode, size, and the times at which the content and anything else of a file last changed, in ns since 1970."""


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells that a file is the one that was hashed. No program can change a file and leave the last time."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def write_proven(path: Path, parts: Sequence[bytes | memoryview], *, durable: bool = True) -> str:
    """Writes a file and gives the hash of its content.

    Args:
        path: the file; its folder exists.
        parts: the content, one part after the other.
        durable: wait for the disk. A power failure may damage a file that is not; its reader notices.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    text = digest.hexdigest()
    replace_file(path, lambda file: file.writelines((f"{text}\n".encode(), *parts)), durable=durable)
    return text


def read_proven(path: Path, most: int = 8 * LARGE) -> tuple[memoryview, str]:
    """The content of a file, and its hash.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: it is a link, too large, cannot be read, or its content does not match its hash.
    """
    if path.is_symlink():  # what it leads to may be somebody else's
        raise DataError(f"{path}: is a link.")
    content = memoryview(read_bytes(path, most))
    digest = hashlib.sha256(content[HEAD:]).hexdigest()
    if content[:HEAD] != f"{digest}\n".encode():
        raise DataError(f"{path}: damaged: its content does not match its hash.")
    return content[HEAD:], digest
