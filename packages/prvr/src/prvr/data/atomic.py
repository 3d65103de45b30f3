"""Files and folders that appear whole or not at all."""

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from prvr.data.errors import DataError
from prvr.errors import DISK_FULL

logger = logging.getLogger(__name__)

HALF_WRITTEN = ".prvr-tmp"  # ends the name of a file that is being written
ABANDONED_AFTER = 24 * 3600.0  # seconds until what a killed process left behind is cleared away


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file beside ``path`` and renames it when it is complete; what stood there stays until then.

    Errors of ``write`` and of the file system pass through; nothing half-written is left.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{HALF_WRITTEN}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, to be filled and then published; removed if it still stands at the end.

    Raises:
        DataError: the disk is full, or the place cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(target.parent)
        folder = _beside(target)
        folder.mkdir()
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
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, target: Path, is_good: Callable[[Path], bool]) -> bool:
    """Renames a finished folder to ``target``; where a good one stands already, that one stays.

    Args:
        folder: what [temporary_folder][prvr.data.atomic.temporary_folder] gave.
        target: its final name.
        is_good: judges a folder that stands there; a bad one is moved out of the way.

    Returns:
        whether ours was published (False: another process was faster).
    """
    for _ in range(3):
        try:
            folder.rename(target)
            return True
        except OSError:
            if not target.exists():
                raise
        if is_good(target):
            return False
        discard(target)
    raise DataError(f"{target}: cannot be replaced, another process keeps it in use. Delete this folder and run again.")


def discard(target: Path) -> None:
    """Takes a folder out of the way in one step, then deletes it."""
    aside = _beside(target)
    try:
        target.rename(aside)
    except FileNotFoundError:
        logger.debug("%s was taken away by another process", target)
    except OSError as error:
        raise DataError(f"{target}: cannot be removed ({error}). Close what uses it, delete it, run again.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _beside(target: Path) -> Path:
    return target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")


def _clear_abandoned(folder: Path) -> None:
    for path in folder.glob(".tmp-*"):
        try:
            old = time.time() - path.stat().st_mtime > ABANDONED_AFTER
        except FileNotFoundError:
            continue
        if old:
            logger.info("removing %s, left behind by a process that was killed", path)
            shutil.rmtree(path, ignore_errors=True)
