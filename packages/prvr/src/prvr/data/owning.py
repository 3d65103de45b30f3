"""One process at a time owns a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from prvr.errors import DataError, PrvrError

__all__ = ["LOCK", "owned"]

LOCK = ".lock"
"""The file in the folder that says so. It stays there: deleting a lock could let two processes in."""


@contextmanager
def owned(folder: Path, busy: str, kind: type[PrvrError] = DataError, *, wait: bool = False) -> Iterator[None]:
    """Owns a folder, from here to the end of the `with`; the system lets go of it when a process dies in whatever way.

    Args:
        folder: is there already.
        busy: the message if another process owns it.
        kind: of the error.
        wait: for that process, instead.

    Raises:
        kind: another process owns it, or its lock is a link.
        OSError: it cannot be written.
    """
    path = folder / LOCK
    if path.is_symlink():
        raise kind(f"{path}: is a symbolic link, expected a lock that prvr has made. Remove the link.")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        raise kind(busy) from None
    try:
        yield
    finally:
        lock.release()
