"""A store that one process writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prvr.data.files import LOCK, clear_half_written, owned
from prvr.errors import DataError
from prvr.video.store import FOLDER, HEADER, StoreHeader, read_header, write_header


@contextmanager
def opened_for_writing(folder: Path, header: StoreHeader) -> Iterator[Path]:
    """Makes a store, or opens one with the same header; clears away what a killed process had half written.

    Raises:
        DataError: the store is of another encoder or rate, another process is writing it, it holds something else, or
            it cannot be written.
    """
    busy = f"{folder}: another process is writing this store. Wait for it, or name another."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with owned(folder, busy):
            _check(folder, header)
            yield folder
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error}). The videos that were finished are intact: free space or mend the "
            "folder or name another, then run again."
        ) from error


def _check(folder: Path, header: StoreHeader) -> None:
    clear_half_written(folder, FOLDER)
    if not (folder / HEADER).exists():
        others = [path.name for path in folder.iterdir() if path.name not in (LOCK, FOLDER)]
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
