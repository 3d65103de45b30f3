"""Bounded reading of untrusted files: regular files only, up to a size, with the content that is expected."""

import json
import math
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from prvr.errors import DataError

_T = TypeVar("_T")

SMALL = 64 * 2**20
"""Bytes: the limit of a file that is read as a whole."""

LARGE = 2**30
"""Bytes: the limit of a file with an entry for each video or caption."""


def short(value: object, most: int = 80) -> str:
    """A value as a message shows it: cut where it is long.

    Examples:
        >>> short(["a", 1]), short("b" * 100, most=10)
        ("['a', 1]", "'bbbbbbbbb ...")
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than some thousand digits
        return "a very long number"
    return text if len(text) <= most else f"{text[:most]} ..."


def printable(text: str) -> str:
    """A name as a message or a page shows it: control characters and bytes that are not UTF-8 become escapes.

    Examples:
        >>> printable("caf\u00e9\x1b[31m.mp4").isascii(), printable("a\\nb")
        (False, 'a\\\\nb')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which stand for bytes of names or arguments that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_bytes(path: Path, most: int = SMALL) -> bytes:
    """The content of a regular file.

    Args:
        path: the file. Links are followed.
        most: how many bytes it may have.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: it is a folder, a pipe or a device, it is too large, or it cannot be read.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise DataError(f"{path}: expected a regular file, got a directory, a pipe or a device. Remove it.")
            # Python takes as much memory as it is asked to read.
            content = b"" if about.st_size > most else file.read(about.st_size + 1)
    except FileNotFoundError:
        raise
    except IsADirectoryError as error:
        raise DataError(f"{path}: expected a regular file, got a directory. Remove it.") from error
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        raise DataError(f"{path}: cannot be read ({error}). Check the path and its permissions.") from error
    if (size := max(about.st_size, len(content))) > most:
        raise DataError(f"{path}: {size} bytes, expected at most {most}. Check the file.")
    return content


def read_text(path: Path, most: int = SMALL) -> str:
    """The content of a UTF-8 file, without a byte order mark.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: as `read_bytes`, or it is not UTF-8.
    """
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}). Save it as UTF-8.") from error


def read_json(path: Path, most: int = SMALL) -> Any:
    """The value in a JSON file.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: as `read_text`, or it is not JSON.
    """
    return parse_json(read_text(path, most), str(path))


def read_object(path: Path, mend: str, missing: str | None = None) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: the file.
        mend: what to do about a damaged file, a sentence.
        missing: the message where there is no such file; None: `FileNotFoundError` is raised.

    Raises:
        DataError: as `read_json`, it holds another value, or there is no such file.
    """
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        if missing is None:
            raise
        raise DataError(missing) from error
    except DataError as error:
        raise DataError(f"{error} {mend}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, got {short(content)}. {mend}")
    return content


def parse_json(text: str, source: str) -> Any:
    """The value of a JSON text. NaN and Infinity, which JSON does not have, and numbers beyond 64 bits are refused.

    Args:
        text: what to parse.
        source: where it stands, for the message.

    Raises:
        DataError: it is not JSON, or nested too deeply.

    Examples:
        >>> parse_json('{"a": [1]}', "example")
        {'a': [1]}
        >>> parse_json("[NaN]", "example")
        Traceback (most recent call last):
        ...
        prvr.errors.DataError: example: not valid JSON (NaN is not a JSON number).
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole)
    except RecursionError as error:
        raise DataError(f"{source}: not valid JSON (nested too deeply).") from error
    except ValueError as error:
        raise DataError(f"{source}: not valid JSON ({error}).") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _whole(digits: str) -> int:
    if len(digits) > 20:  # more than 64 bits: no array has such a size, and torch and numpy fail each in its own way
        raise ValueError(f"{digits[:20]}... is larger than any number here")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is larger than any number here")
    return value


def parse_record(kind: type[_T], values: Any, source: str, *, file_names: bool = False) -> _T:
    """A dataclass from the value of a JSON file. Keys that it does not know are ignored, types are strict.

    Args:
        kind: the dataclass; its fields may be dataclasses, tuples and mappings of those.
        values: what `read_json` gave.
        source: where it stands, for the message.
        file_names: strings may hold the lone surrogates that stand for bytes of a file name that are not UTF-8.

    Raises:
        DataError: a field is missing, or of another type.

    Examples:
        >>> from prvr.data.layout import Caption
        >>> parse_record(Caption, {"id": "v#0", "video_id": 1, "text": "x"}, "example")
        Traceback (most recent call last):
        ...
        prvr.errors.DataError: example: video_id: Input should be a valid string.
    """
    from pydantic import ValidationError

    try:
        content = json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogateescape" if file_names else "strict")
        text = content.decode("utf-8", "replace")
        record = _adapter(kind).validate_json(text, strict=True)
        # The JSON of pydantic has no lone surrogates: their types have been checked in their place.
        return record if text.encode() == content else _adapter(kind).validate_python(values)
    except (ValidationError, RecursionError, ValueError, TypeError) as error:
        if not isinstance(error, ValidationError):
            raise DataError(f"{source}: {error}.") from error
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "its content"
        raise DataError(f"{source}: {key}: {first['msg']}.") from error


@lru_cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
