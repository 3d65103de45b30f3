"""Parts of a file over HTTP: one range of bytes, as players ask for."""

import re
from collections.abc import Iterator
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse

from prvr.errors import InputError

__all__ = ["file_response", "parse_range"]

_CHUNK = 256 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None for the whole file.

    What is no single range of bytes is not understood and gives the whole file, as HTTP allows.

    Raises:
        ValueError: the range lies outside of the file.

    Example:
        >>> parse_range("bytes=10-19", 100), parse_range("bytes=-5", 100), parse_range("bytes=90-", 100)
        ((10, 20), (95, 100), (90, 100))
    """
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None or found.group(0) == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= stop:
        raise InputError(f"bytes {start} and on of {size}")
    return start, stop


def file_response(
    file: BinaryIO, size: int, media_type: str, tag: str, wanted: str | None, unless: str | None, head: bool
) -> Response:
    """A file or a part of it; the file is closed when it is sent.

    Args:
        file: open, at its start.
        size: of it in bytes.
        media_type: of it.
        tag: told by its content.
        wanted: the header Range.
        unless: the header If-Range: a part is only sent if the tag still agrees.
        head: only headers.
    """
    headers = {"Accept-Ranges": "bytes", "ETag": tag, "Cache-Control": "private, no-cache"}
    try:
        part = parse_range(wanted, size) if unless in (None, tag) else None
    except ValueError:
        file.close()
        return Response(status_code=416, headers=headers | {"Content-Range": f"bytes */{size}"})
    start, stop = part or (0, size)
    headers["Content-Length"] = str(stop - start)
    if part:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    status = 206 if part else 200
    if head:
        file.close()
        return Response(status_code=status, headers=headers, media_type=media_type)
    return StreamingResponse(_pieces(file, start, stop), status, headers, media_type)


def _pieces(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    with file:
        file.seek(start)
        while start < stop and (piece := file.read(min(_CHUNK, stop - start))):
            start += len(piece)
            yield piece
