"""A list of hashes beside the files it vouches for: what is loaded is what was saved, or it is refused."""

import hashlib
import re
from pathlib import Path

from prvr.data.atomic import MARK
from prvr.errors import DataError
from prvr.reading import read_text

__all__ = ["HASHES", "check_hashes", "hash_file", "write_hashes"]

HASHES = "sha256.txt"
"""Lines as `sha256sum` writes and checks them."""
_NOT_LISTED = {HASHES, MARK, "README.md"}  # the card is for people, who may edit it
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def hash_file(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_hashes(folder: Path) -> None:
    """Lists the files in a folder, and in the folders inside it."""
    lines = [f"{hash_file(folder / name)}  {name}\n" for name in _listed(folder)]
    (folder / HASHES).write_text("".join(lines), encoding="utf-8", newline="\n")


def check_hashes(folder: Path) -> None:
    """Compares the files in a folder with their list; a folder without a list is not checked.

    Raises:
        DataError: a file has changed, is missing, or is not listed; names it.
    """
    path = folder / HASHES
    try:
        lines = read_text(path).removesuffix("\n").split("\n")
    except FileNotFoundError:
        return
    known: dict[str, str] = {}
    for line in lines:
        if (found := _LINE.fullmatch(line)) is None:
            raise DataError(f"{path}: the line {line[:80]!r} is no hash and name of a file. {_MEND}")
        known[found[2]] = found[1]
    for name in dict.fromkeys([*known, *_listed(folder)]):
        file = folder / name
        if name not in known:
            raise DataError(f"{file}: is not listed in {HASHES}. {_MEND}")
        if not file.is_file():
            raise DataError(f"{file}: is missing, but listed in {HASHES}. {_MEND}")
        if hash_file(file) != known[name]:
            raise DataError(f"{file}: is damaged or was changed: its hash is not that in {HASHES}. {_MEND}")


def _listed(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in _NOT_LISTED)
    return sorted(path.relative_to(folder).as_posix() for path in files)


_MEND = f"Put back a copy of the folder; if you have changed it yourself, delete its {HASHES}."
