"""Search results as JSON for programs and as CSV for spreadsheets. A file appears whole or not at all.

The name `-` stands for standard output.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prvr.data.atomic import write_output
from prvr.encoders import VideoEntry
from prvr.reading import is_unicode, printable
from prvr_search.ranking.results import SearchResult

FORMAT = 3
"""Version of the JSON: since 2 a hit holds its video as an object of its own, since 3 it has no confidence."""
Place = Callable[[VideoEntry], str]
"""Where a video lies, for another program."""
_FORMULA = "=+-@\t\r\n＝＋－＠"  # the wide ones too: some programs take them for the narrow


def write_json(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes results as one JSON file, ASCII only: every field of every hit, with its rank; times in seconds.

    Names that are not UTF-8 are written as `printable` shows them, and `path_bytes` is the path, percent-encoded.

    Raises:
        prvr.data.DataError: the file cannot be written.
    """
    rows = [_readable(asdict(result)) for result in results]
    for row in rows:
        row["hits"] = [{"rank": rank, **hit} for rank, hit in enumerate(row["hits"], 1)]
    write_text(path, json.dumps({"format": FORMAT, "results": rows}, indent=1, allow_nan=False) + "\n")


def write_csv(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes the table of `csv_table`.

    Raises:
        prvr.data.DataError: the file cannot be written.
    """
    write_text(path, csv_table(results))


def csv_table(results: Sequence[SearchResult], place: Place = lambda video: video.path) -> str:
    """A line for each hit, UTF-8: query, rank, video, score, start, end, duration (seconds), path, the
    videos that were folded into it, with `; ` between them, the line that matches best, when it was
    filmed and what says so.

    A text that a spreadsheet would take for a formula, because it begins with `=`, `+`, `-`, `@`, a tab or a line end,
    gets a `'` before it. Control characters in names are written as escapes.

    Args:
        results: of searches.
        place: gives the path of a video.
    """
    content = io.StringIO(newline="")
    writer = csv.writer(content)
    names = "query,rank,video,score,start,end,duration,path,alike,line,filmed,filmed_by"
    writer.writerow(names.split(","))
    for result in results:
        for rank, hit in enumerate(result.hits, 1):
            video, line = hit.video, hit.lines[0].text if hit.lines else ""
            times = [f"{value:.3f}" for value in (hit.start, hit.end, video.duration)]
            texts = map(cell, (place(video), "; ".join(other.id for other in hit.alike), line))
            first = cell(result.query), rank, cell(video.id), f"{hit.score:.6f}"
            writer.writerow([*first, *times, *texts, video.filmed, video.filmed_by])
    return content.getvalue()


def _readable(value: Any) -> Any:
    """A value whose texts every program can read that reads JSON: Unicode has no lone surrogates."""
    if isinstance(value, str):
        return value if is_unicode(value) else printable(value)
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    if not isinstance(value, dict):
        return value
    readable = {key: _readable(item) for key, item in value.items()}
    path = value.get("path", "")
    return readable if is_unicode(path) else readable | {"path_bytes": quote(os.fsencode(path))}


def cell(text: str) -> str:
    """A text that no spreadsheet runs.

    Examples:
        >>> cell("=1+1"), cell("a = b"), cell("\\t=1+1")
        ("'=1+1", 'a = b', "'\\\\t=1+1")
    """
    return ("'" if text.lstrip(" ")[:1] in tuple(_FORMULA) else "") + printable(text)


def write_text(path: Path | str, text: str) -> None:
    """Writes a file as UTF-8, its line ends as they are; what stood there stays until it is complete.

    Args:
        path: the file; `-` is standard output.
        text: its content.

    Raises:
        DataError: the file cannot be written.
    """
    if str(path) == "-":
        write_stdout(text.encode("utf-8"))
        return
    write_output(Path(path).expanduser(), text.encode("utf-8"))


def write_stdout(content: bytes) -> None:
    """Writes bytes to standard output, or what stands for it, as they are, whatever its encoding and line ends."""
    sys.stdout.flush()
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # a program that embeds the command has put a file of text there
        sys.stdout.write(content.decode("utf-8", "surrogateescape"))
        return
    binary.write(content)
    binary.flush()
