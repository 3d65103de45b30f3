"""Files and folders that appear whole or not at all, and folders that one process owns.

Nothing is deleted that was not made here: what is being written, and what is to be deleted, has a name of its own kind
with 16 random hexadecimal digits. Links are never followed when something is deleted.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from prvr.errors import DISK_FULL, DataError, PrvrError

logger = logging.getLogger(__name__)

HALF_WRITTEN = ".prvr-tmp"
"""Ends the name of a file that is being written, and starts that of a folder."""
LOCK = ".lock"
"""The lock of a folder that a process owns. It is never deleted: that could let two processes in."""
ABANDONED_AFTER = 24 * 3600.0  # seconds until what a killed process left behind is cleared away

PATIENCE = 600.0  # seconds until a process that waits for another one gives up
_QUIET = 1.0  # seconds until it says that it waits
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # never a file, or a link, that stands there
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}

_FILE = re.compile(r".+\.[0-9a-f]{16}" + re.escape(HALF_WRITTEN), re.DOTALL)
_FOLDER = re.compile(re.escape(HALF_WRITTEN) + r"-(.+)-[0-9a-f]{16}", re.DOTALL)


def user_cache() -> Path:
    """The folder of prvr in the user's cache, for what can be computed again: `$XDG_CACHE_HOME/prvr` on Linux."""
    return platformdirs.user_cache_path("prvr", appauthor=False)


def user_data() -> Path:
    """The folder of prvr among the user's data, for what took hours to compute: `$XDG_DATA_HOME/prvr` on Linux."""
    return platformdirs.user_data_path("prvr", appauthor=False)


Content = bytes | Callable[[BufferedRandom], object]
"""The content of a file, or what writes it; this may also read what it has written."""


def replace_file(path: Path, content: Content, *, durable: bool = True) -> None:
    """Writes a file beside ``path`` and renames it when it is complete; what stood there stays until then.

    Errors of what writes it, and of the file system, pass through; nothing half-written is left. A file that is not
    ``durable`` may be empty or damaged after a power failure; its reader checks it.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{HALF_WRITTEN}")
    opened = os.fdopen(os.open(temporary, _NEW, 0o666), "w+b")
    try:
        with opened as file:
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, content: Content) -> None:
    """Writes a file for a user, as `replace_file` does, and the folders that it lies in.

    Raises:
        DataError: it cannot be written, or a device or a pipe has this name, which no file replaces.
    """
    try:
        if _is_stream(path):
            raise FileExistsError(errno.EEXIST, "Is a device or a pipe")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error}). Free space or choose another folder.") from error


def write_output(path: Path, content: bytes) -> None:
    """Writes a file that the user names, as `write_file` does: what a link leads to, and to a device or a pipe.

    Raises:
        DataError: it cannot be written.
    """
    if not _is_stream(path):
        write_file(Path(os.path.realpath(path)), content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error}). Choose a file.") from error


def _is_stream(path: Path) -> bool:
    """Whether a path leads to a device, a pipe or a socket."""
    return path.exists() and not (path.is_file() or path.is_dir())


def clear_half_written(folder: Path, *inside: str, older_than: float = 0.0) -> None:
    """Deletes the files that `replace_file` left in a folder, and in folders inside it, when it was killed.

    Args:
        folder: the folder.
        inside: names of folders inside it.
        older_than: seconds since a file was last changed.
    """
    for place in (folder, *(folder / name for name in inside if is_real_folder(folder / name))):
        for path in place.iterdir():
            with suppress(FileNotFoundError):  # another process has just renamed it
                status = path.lstat()
                is_old = time.time() - status.st_mtime >= older_than
                if is_old and _FILE.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
                    path.unlink()


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, to be filled and then published; removed if it still stands at the end.

    Raises:
        DataError: the disk is full, or the place cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_abandoned(target, older_than=ABANDONED_AFTER)
        folder = unfinished_folder(target)
    except OSError as error:
        raise DataError(f"{target.parent}: cannot write there ({error}). Choose another folder.") from error
    try:
        yield folder
    except OSError as error:
        if error.errno in DISK_FULL or any(f"errno = {code}," in str(error) for code in DISK_FULL):
            raise DataError(
                f"{target}: the disk is full, or a size limit was hit, while writing it ({error}). "
                "Nothing was kept. Free space or choose another folder, then run again."
            ) from error
        raise
    finally:
        remove_unfinished(folder)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to be filled, which becomes ``target`` at the end of the `with` statement, whole or not at all.

    Raises:
        DataError: ``target`` exists and is not empty, another process has made it meanwhile, the disk is full, or the
            place cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target}: already exists and is not empty. Choose a new folder, or empty this one.")
    with temporary_folder(target) as folder:
        yield folder
        with suppress(OSError):
            target.rmdir()  # empty; not every system renames over it
        if not publish(folder, target, lambda _: True):
            raise DataError(f"{target}: another process has just written to it. Choose another folder.")


def publish(folder: Path, target: Path, is_good: Callable[[Path], bool]) -> bool:
    """Renames a finished folder to ``target``; where a good one stands already, that one stays.

    Args:
        folder: what [temporary_folder][prvr.data.atomic.temporary_folder] gave.
        target: its final name.
        is_good: judges a folder that stands there. A bad one is replaced if it holds nothing but files that `folder`
            has as well.

    Returns:
        whether ours was published (False: another process was faster).

    Raises:
        DataError: what stands there is bad, and may be somebody else's.
    """
    for _ in range(3):
        try:
            folder.rename(target)
        except OSError:
            if not target.exists():
                raise
        else:
            return True
        if is_good(target):
            return False
        discard(target, [path.name for path in folder.iterdir()])
    raise DataError(f"{target}: cannot be replaced, another process keeps it in use. Delete this folder and run again.")


def discard(target: Path, files: Collection[str]) -> None:
    """Takes a damaged folder out of the way in one step, then deletes it.

    Args:
        target: the folder.
        files: names of the files that it may hold.

    Raises:
        DataError: it holds anything else, or cannot be removed.
    """
    try:
        if not is_real_folder(target):
            kind = "a symbolic link" if target.is_symlink() else "not a directory"
            raise DataError(f"{target}: is {kind}, expected a folder of prvr. Remove it, or choose another folder.")
        for path in sorted(target.iterdir()):
            if path.name not in files or not stat.S_ISREG(path.lstat().st_mode):
                raise DataError(
                    f"{target}: holds {path.name}, which prvr did not write; nothing was deleted. Move this "
                    "folder away, or choose another one."
                )
        aside = _beside(target)
        target.rename(aside)
    except FileNotFoundError:
        logger.debug("%s was taken away by another process", target)
    except OSError as error:
        raise DataError(f"{target}: cannot be removed ({error}). Close what uses it, delete it, run again.") from error
    else:
        remove_unfinished(aside)


@contextmanager
def owned(folder: Path, busy: str = "", kind: type[PrvrError] = DataError, *, wait: float = 0.0) -> Iterator[None]:
    """Owns a folder inside the `with` statement. The operating system releases it if the process dies.

    Args:
        folder: an existing folder.
        busy: the error message if another process owns it; default: how long it has been waited for.
        kind: the class of that error.
        wait: seconds to wait for the other process before raising; after one second, a warning says so.

    Raises:
        kind: another process owns it, or its lock is a link.
        OSError: it cannot be written, or its file system has no locks.
    """
    path = folder / LOCK
    if path.is_symlink():
        raise kind(f"{path}: is a symbolic link, expected a lock that prvr has made. Remove the link.")
    with locked(path, wait) as is_mine:
        if not is_mine:
            raise kind(busy or f"{folder}: used by another process for {wait:.0f} s. Wait for it to end, or end it.")
        yield


@contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[bool]:
    """Locks a file inside the `with` statement, whether or not it exists; False if another process has locked it.

    Args:
        path: the file.
        wait: seconds to wait for the other process; after one second, a warning says so.

    Raises:
        OSError: it cannot be written, or its file system has no locks.
    """
    lock = FileLock(path, fallback_to_soft=False)  # a soft lock is a file, which outlives its process
    try:
        with suppress(Timeout):
            lock.acquire(timeout=min(wait, _QUIET))
        if not lock.is_locked and wait > _QUIET:
            logger.warning("%s: waiting for another process; Ctrl-C ends this", path.parent)
            with suppress(Timeout):
                lock.acquire(timeout=wait - _QUIET)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        raise OSError(errno.ENOLCK, "this file system has no locks", str(path)) from error
    try:
        yield lock.is_locked
    finally:
        lock.release()


def is_real_folder(path: Path) -> bool:
    """Whether there is a folder, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def unfinished_folder(target: Path) -> Path:
    """A new, empty folder beside ``target``, to be filled and renamed."""
    folder = _beside(target)
    folder.mkdir()
    return folder


def remove_unfinished(folder: Path) -> None:
    """Deletes a folder with a name of `unfinished_folder`; leaves any other alone. What somebody has open stays."""
    if _FOLDER.fullmatch(folder.name) and is_real_folder(folder):
        shutil.rmtree(folder, ignore_errors=True)


def clear_abandoned(target: Path, *, older_than: float = 0.0) -> None:
    """Deletes what killed processes left beside ``target`` of folders that should have become it.

    Args:
        target: what they were to be.
        older_than: seconds in which nothing in them has changed.
    """
    for path in target.parent.glob(f"{HALF_WRITTEN}-*"):
        name = _FOLDER.fullmatch(path.name)
        if name is None or name[1] != target.name or not is_real_folder(path):
            continue
        try:
            changed = max(entry.lstat().st_mtime for entry in [path, *path.rglob("*")])
        except OSError:
            continue  # another process is at it
        if time.time() - changed >= older_than:
            logger.info("removing %s, left behind by a process that was killed", path)
            remove_unfinished(path)


def _beside(target: Path) -> Path:
    return target.with_name(f"{HALF_WRITTEN}-{target.name}-{secrets.token_hex(8)}")
