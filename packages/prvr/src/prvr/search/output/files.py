"""Result files appear whole or not at all."""

from pathlib import Path

from prvr.data.files import replace_file
from prvr.errors import DataError

__all__ = ["write_text"]


def write_text(path: Path | str, text: str) -> None:
    """Writes a file as UTF-8, its line ends as they are; what stood there stays until it is complete.

    Raises:
        DataError: it cannot be written.
    """
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: file.write(text.encode("utf-8")))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error}). Free space or choose another folder.") from error
