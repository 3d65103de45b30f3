"""Where a library lies, files that prove themselves, and how a file that was hashed is known again.

A file that prvr-search writes is the sha256 of its content in hexadecimal, a line end, and the content. It appears
whole or not at all, and is compared with its hash when it is read.
"""

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from prvr.data.atomic import replace_file, user_data
from prvr.errors import DataError
from prvr.reading import LARGE, read_bytes, short

HEAD = 65
"""Bytes before the content: the hash and a line end."""
FEATURES, FOLDERS = "features", "folders"
"""What a library is made of."""
MOVED = "moved.txt"
"""The note that says where a library was moved to."""
Stamp = tuple[int, int, int, int]
"""Inode, size, and the times at which the content and anything else of a file last changed, in ns since 1970."""


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells that a file is the one that was hashed. No program can change a file and leave the last time."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def stamp_at(path: Path) -> Stamp | None:
    """The stamp of a file; None where there is none."""
    with suppress(OSError):
        return stamp_of(path.stat())
    return None


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


def write_cached(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Writes a file that can be made again, as `write_proven` does; without a word where it cannot be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_proven(path, parts, durable=False)


def sync() -> None:
    """Waits until what was written is on the disk."""
    if hasattr(os, "sync"):
        os.sync()


def read_proven(path: Path) -> tuple[memoryview, str]:
    """The content of a file, and its hash.

    Raises:
        OSError: there is no such file, or the system refuses to read it now.
        DataError: it is a link or no file, too large, or its content does not match its hash.
    """
    if path.is_symlink():  # what it leads to may be somebody else's
        raise DataError(f"{path}: is a link.")
    content = memoryview(read_now(path, 8 * LARGE))
    digest = hashlib.sha256(content[HEAD:]).hexdigest()
    if content[:HEAD] != f"{digest}\n".encode():
        raise DataError(f"{path}: damaged: its content does not match its hash.")
    return content[HEAD:], digest


def read_now(path: Path, most: int) -> bytes:
    """The content of a file, where what passes is told from what is wrong with it.

    Raises:
        OSError: there is no such file, or the system refuses to read it now.
        DataError: it is no regular file, or larger than `most` bytes.
    """
    try:
        return read_bytes(path, most)
    except DataError as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, IsADirectoryError):
            raise OSError(str(error)) from error
        raise


def put_aside(path: Path) -> None:
    """Renames what is damaged, to a name that nothing has, so that what it held is made or noted again."""
    with suppress(OSError):
        path.replace(path.with_suffix(f".{secrets.token_hex(4)}.damaged"))


def library_home() -> Path:
    """Where the library of the user lies: `prvr/library` in the user's data folder, or where it was moved to.

    It is made of what takes hours to compute, so it is not kept in a cache.

    Raises:
        DataError: it was moved to a place that is not there, or the note that says where cannot be read.
    """
    home = user_data() / "library"
    if (place := moved_to(home)) is None:
        return home
    if not parts_of(place):
        raise DataError(
            f"{place}: not found; the library was moved there. Connect its disk, or name another library with "
            f"--library. To begin a new one, delete {home / MOVED}."
        )
    return place


def parts_of(home: Path) -> list[Path]:
    """The folders that a library is made of; none where there is no library."""
    return [part for name in (FEATURES, FOLDERS) if (part := home / name).is_dir()]


def moved_to(home: Path) -> Path | None:
    """Where the library that lay in a folder was moved to; None if it was not.

    Raises:
        DataError: the note that says so cannot be read.
    """
    note = home / MOVED
    if not os.path.lexists(note):
        return None
    place = Path(os.fsdecode(read_bytes(note).removesuffix(b"\n")))
    if not place.is_absolute() or "\0" in str(place):
        raise DataError(f"{note}: expected the absolute path of a folder, got {short(str(place))}. Delete this file.")
    return place
