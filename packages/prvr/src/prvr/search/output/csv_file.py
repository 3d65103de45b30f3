"""Results as CSV, for spreadsheets."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from prvr.reading import printable
from prvr.search.hits import SearchResult
from prvr.search.output.files import write_text

__all__ = ["write_csv"]

COLUMNS = ("query", "rank", "video", "score", "start", "end", "duration", "path")
_FORMULA = "=+-@\t\r\n＝＋－＠"  # the wide ones too: some programs take them for the narrow


def write_csv(path: Path | str, results: Sequence[SearchResult]) -> None:
    """Writes a line for each hit, UTF-8: query, rank, video, score, start, end, duration (seconds), path.

    A text that a spreadsheet would take for a formula, because it begins with `=`, `+`, `-`, `@`, a tab or a line end,
    gets a `'` before it. Control characters in names are written as escapes.

    Raises:
        prvr.data.DataError: it cannot be written.
    """
    content = io.StringIO(newline="")
    writer = csv.writer(content)
    writer.writerow(COLUMNS)
    for result in results:
        for rank, hit in enumerate(result.hits, 1):
            times = [f"{value:.3f}" for value in (hit.start, hit.end, hit.duration)]
            names = (cell(text) for text in (result.query, hit.video_id, hit.path))
            query, video, file = names
            writer.writerow([query, rank, video, f"{hit.score:.6f}", *times, file])
    write_text(path, content.getvalue())


def cell(text: str) -> str:
    """A text that no spreadsheet runs.

    Example:
        >>> cell("=1+1"), cell("a = b"), cell("\\t=1+1")
        ("'=1+1", 'a = b', "'\\\\t=1+1")
    """
    return ("'" if text.lstrip(" ")[:1] in tuple(_FORMULA) else "") + printable(text)
