"""A store that one process writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from prvr.data.atomic import HALF_WRITTEN
from prvr.data.errors import DataError
from prvr.video.store import FOLDER, HEADER, StoreHeader, read_header, write_header

_LOCK = ".lock"


@contextmanager
def opened_for_writing(folder: Path, header: StoreHeader) -> Iterator[Path]:
    """Makes a store, or opens one with the same header; clears away what a killed process had half written.

    Raises:
        DataError: the store is of another encoder or rate, another process is writing it, it holds something else, or
            it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)  # the system lets go of it when a process dies, in whatever way
        lock.acquire(blocking=False)
    except Timeout:
        raise DataError(f"{folder}: another process is writing this store. Wait for it, or name another.") from None
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error}). Name another folder.") from error
    try:
        _check(folder, header)
        yield folder
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error}). The videos that were finished are intact: free space or mend the "
            "folder, then run again."
        ) from error
    finally:
        lock.release()


def _check(folder: Path, header: StoreHeader) -> None:
    for path in [*folder.glob(f"*{HALF_WRITTEN}"), *(folder / FOLDER).glob(f"*{HALF_WRITTEN}")]:
        path.unlink(missing_ok=True)
    if not (folder / HEADER).exists():
        others = [path.name for path in folder.iterdir() if path.name not in (_LOCK, FOLDER)]
        if others or ((folder / FOLDER).exists() and any((folder / FOLDER).iterdir())):
            raise DataError(f"{folder}: holds something else ({(others or [FOLDER])[0]}). Name a new or empty folder.")
        (folder / FOLDER).mkdir(exist_ok=True)
        write_header(folder, header)
        return
    found = read_header(folder)
    if found != header:
        raise DataError(
            f"{folder}: was made with {found.encoder} at {found.rate:g} frames per second; asked for {header.encoder} "
            f"at {header.rate:g}. Extract with the same as before, or name another store."
        )
    (folder / FOLDER).mkdir(exist_ok=True)
