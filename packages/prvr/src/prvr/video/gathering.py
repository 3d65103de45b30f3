"""Which files are meant, and what each is called."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prvr.errors import DataError

SUFFIXES = (
    ".3g2", ".3gp", ".asf", ".avi", ".f4v", ".flv", ".m2ts", ".m2v", ".m4v", ".mkv", ".mov", ".mp4", ".mpe", ".mpeg",
    ".mpg", ".mts", ".mxf", ".ogm", ".ogv", ".qt", ".rm", ".rmvb", ".ts", ".vob", ".webm", ".wmv",
)  # fmt: skip
"""Names of video files end so; files that are named one by one may end in anything."""


@dataclass(frozen=True)
class Named:
    """A file that is to be read.

    Args:
        id: what it is called: its place below the folder that was named, with `/`; its name, if it was named itself.
        path: absolute.
    """

    id: str
    path: Path


def gather(videos: Iterable[Path | str]) -> list[Named]:
    """The files that are named, and the video files below the folders that are named; those that are missing too.

    Hidden files and folders are left out, and links to folders are not followed.

    Args:
        videos: files and folders.

    Returns:
        in order of arguments, then of names; each file once.

    Raises:
        DataError: two files would have the same id, or a folder cannot be listed.
    """
    found: dict[str, Path] = {}
    for given in videos:
        try:
            root = Path(given).expanduser().absolute()
        except RuntimeError as error:  # ~ and somebody who is not known here
            raise DataError(
                f"{given}: names the folder of nobody ({error}). Write ./ before it if it is a file."
            ) from error
        paths = _below(root) if root.is_dir() else [root]
        for path in paths:
            name = path.relative_to(root).as_posix() if root.is_dir() else path.name
            if found.setdefault(name, path) != path:
                raise DataError(
                    f"{path} and {found[name]} would both be called {name!r}. Name a folder that holds both, or "
                    "extract them into two stores."
                )
    return [Named(name, path) for name, path in found.items()]


def _below(root: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}). Check its rights.") from error

    paths: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [
            Path(folder, name) for name in names if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
        ]
    return sorted(paths)


def printable(text: str) -> str:
    """A name as it can be shown: control characters, and bytes that are no UTF-8, as escapes.

    Example:
        >>> printable("caf\u00e9\x1b[31m.mp4").isascii(), printable("a\\nb")
        (False, 'a\\\\nb')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
