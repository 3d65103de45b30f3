"""How annotation files are read, and what a conversion returns."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prvr.errors import DataError
from prvr.reading import LARGE, parse_json, read_bytes


@dataclass(frozen=True)
class Conversion:
    """What a conversion has written.

    Args:
        path: the folder of the corpus, or the file that was written into one.
        counts: numbers by split, by what is counted: `counts["videos"]["train"]`.
        notes: what was left out or changed, a sentence each.
    """

    path: Path
    counts: Mapping[str, Mapping[str, int | float]]
    notes: Sequence[str] = ()


def lengths(by_split: Mapping[str, Sized]) -> dict[str, int]:
    """The number of items of each split."""
    return {split: len(items) for split, items in by_split.items()}


def read_text(path: Path) -> str:
    """The text of a file: UTF-8, with a mark at its start or without; ISO-8859-1 where it is no UTF-8."""
    content = read_bytes(path, LARGE)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # some of these files are that old
        return content.decode("iso-8859-1")


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a file that are not blank, each with its number from 1."""
    # not splitlines: a caption may hold U+2028, U+0085 and the like
    lines = enumerate(read_text(path).split("\n"), 1)
    return [(number, line.removesuffix("\r")) for number, line in lines if line.strip()]


def read_lines(path: Path) -> list[str]:
    """The lines of a file that are not blank."""
    return [line for _, line in numbered_lines(path)]


def read_json(path: Path, kind: type) -> Any:
    """The content of a JSON file.

    Args:
        path: the file.
        kind: `dict` or `list`.

    Raises:
        DataError: not JSON, or of another kind.
    """
    try:
        content = parse_json(read_text(path), str(path))
    except DataError as error:
        raise DataError(f"{error} Truncated? Download it again.") from error
    if not isinstance(content, kind):
        expected = "object" if kind is dict else "array"
        got = type(content).__name__
        raise DataError(f"{path}: expected a JSON {expected}, got {got}. Is it another file?")
    return content
