"""Hashes that files and headers carry: what is read is what was written, or it is refused."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from prvr.errors import DataError
from prvr.reading import read_object, read_text

HASHES = "sha256.txt"
"""Lines as `sha256sum` writes and checks them."""
_NOT_LISTED = {HASHES, "README.md"}  # people may edit the model card
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_MEND = f"Restore the folder from a backup; if you changed it yourself, delete its {HASHES}."


def hash_file(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_sample(path: Path) -> str:
    """The sha256 of the length of a file and of blocks spread evenly over it, its first and last bytes among them.

    A megabyte is read of a file of any size. A change that spares all blocks is not seen.
    """
    length, blocks, size = path.stat().st_size, 256, 4096
    sha = hashlib.sha256(str(length).encode())
    with path.open("rb") as file:
        for block in range(blocks if length > blocks * size else 1):
            file.seek(block * max(length - size, 0) // (blocks - 1))
            sha.update(file.read(size if length > blocks * size else length))
    return sha.hexdigest()


def digest(header: dict[str, Any]) -> str:
    """The sha256 of a JSON object without its own key `sha256`."""
    body = {key: value for key, value in header.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def signed(body: dict[str, Any]) -> str:
    """A JSON object with its own hash (see `digest`) under `sha256`, as `read_signed` reads it from a file."""
    return json.dumps(body | {"sha256": digest(body)}, indent=1, allow_nan=False)


def read_signed(path: Path, formats: range, mend: str, missing: str) -> dict[str, Any]:
    """The object in a JSON file that states its format and its own hash (see `digest`).

    Args:
        path: the file.
        formats: the versions of the format that are read.
        mend: what to do about a damaged file, a sentence.
        missing: the message where there is no such file.

    Raises:
        DataError: it is missing or damaged, was edited, or is of another format.
    """
    body = read_object(path, mend, missing)
    if not {"format", "sha256"} <= body.keys():
        raise DataError(f"{path}: expected a JSON object with the keys format and sha256. {mend}")
    if type(body["format"]) is not int or body["format"] not in formats:
        supported = " and ".join(map(str, formats))
        raise DataError(f"{path}: format {str(body['format'])[:20]}, this version reads {supported}. {mend}")
    if body["sha256"] != digest(body):
        raise DataError(f"{path}: does not match its own hash: it was edited or damaged. {mend}")
    return body


def write_hashes(folder: Path) -> None:
    """Lists the files in a folder, and in the folders inside it, in its `sha256.txt`."""
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
    hashes: dict[str, str] = {}
    for line in lines:
        if (match := _LINE.fullmatch(line)) is None:
            raise DataError(f"{path}: the line {line[:80]!r} is not a hash and a file name. {_MEND}")
        hashes[match[2]] = match[1]
    for name in dict.fromkeys([*hashes, *_listed(folder)]):
        file = folder / name
        if name not in hashes:
            raise DataError(f"{file}: is not listed in {HASHES}. {_MEND}")
        if not file.is_file():
            raise DataError(f"{file}: is missing, but listed in {HASHES}. {_MEND}")
        if hash_file(file) != hashes[name]:
            raise DataError(f"{file}: is damaged or was changed: its hash is not that in {HASHES}. {_MEND}")


def _listed(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in _NOT_LISTED)
    return sorted(path.relative_to(folder).as_posix() for path in files)
