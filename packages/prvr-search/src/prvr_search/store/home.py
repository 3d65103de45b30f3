"""Where the library of a user lies; this imports nothing that takes long."""

import os
from pathlib import Path

from prvr.data.atomic import user_data
from prvr.errors import DataError
from prvr.reading import read_bytes, short

MOVED = "moved.txt"
"""The note that says where a library was moved to."""


def library_home() -> Path:
    """Where the library of the user lies: `prvr/library` in the user's data folder, or where it was moved to.

    It is made of what takes hours to compute, so it is not kept in a cache.

    Raises:
        DataError: it was moved to a place that is not there, or the note that says where cannot be read.
    """
    home = user_data() / "library"
    if (place := moved_to(home)) is None:
        return home
    if not place.is_dir():
        raise DataError(
            f"{place}: not found; the library was moved there. Connect its disk, or name another library with "
            f"--library. To begin a new one, delete {home / MOVED}."
        )
    return place


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
