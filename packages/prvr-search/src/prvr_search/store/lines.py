"""The lines of subtitles in a library, by video and file, and the search in them (FTS5 of SQLite)."""

import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from prvr_search.films.listing import VideoPath
from prvr_search.films.subtitles import SubtitleLine
from prvr_search.store.database import BELOW, CONTENT, SPACE, Database, bounds, spaced

_LINES = 1 << 20  # of a subtitle file: line i of file n has the number n * _LINES + i
_MATCHES = 1000  # lines that a search looks at


class Lines:
    """The lines of subtitles in a library.

    Args:
        database: of the library.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def files(self, folder: Path) -> dict[tuple[str, Path], tuple[int, int]]:
        """Size and time of change of the subtitle files below a folder, by the sha256 of the video and the path."""
        rows = self._database.read(f"SELECT sha256, path, size, mtime_ns FROM subtitles WHERE {BELOW}", bounds(folder))
        return {(sha256, Path(os.fsdecode(path))): (size, mtime) for sha256, path, size, mtime in rows}

    def videos(self) -> set[str]:
        """The sha256 of the videos that have lines, or had subtitle files that hold none."""
        return {row[0] for row in self._database.read("SELECT sha256 FROM subtitles")}

    def of(self, sha256: str) -> list[SubtitleLine]:
        """All lines of a video, in order of time."""
        return lines_of(self._database.read, sha256)

    def find(self, words: str, shas: Iterable[str], *, any_word: bool = False) -> list[tuple[str, float, SubtitleLine]]:
        """The lines with all words of a text, by BM25, best first.

        Upper and lower case and accents do not differ; nothing in the text is an operator. Neighbouring Chinese or
        Japanese characters are found wherever they follow each other.

        Args:
            words: the text.
            shas: the videos whose lines are searched, by sha256.
            any_word: whether one of the words is enough.

        Returns:
            The sha256 of the video, the score, which is higher for a better match, and the line.
        """
        quoted = ['"{}"'.format(spaced(word).replace('"', '""')) for word in words.replace("\0", " ").split()]
        if not quoted:
            return []
        rows = self._database.read(
            "SELECT sha256, -bm25(lines), start, stop, text, language FROM lines JOIN subtitles "
            f"ON number = lines.rowid / {_LINES} WHERE lines MATCH ? AND sha256 IN (SELECT value FROM json_each(?)) "
            f"ORDER BY bm25(lines), lines.rowid LIMIT {_MATCHES}",
            ((" OR " if any_word else " AND ").join(quoted), json.dumps([*shas])),
        )
        return [(sha256, score, _line(*line)) for sha256, score, *line in rows if _is_line(*line)]

    def add(self, sha256: str, lines: Sequence[SubtitleLine], file: VideoPath | None = None) -> None:
        """Replaces the lines of a video that come from a file beside it, or from its own text tracks."""
        source = (b"", 0, 0) if file is None else (os.fsencode(file.path), file.size, file.mtime_ns)
        with self._database.write() as connection:
            drop_lines(connection, "sha256 = ? AND path = ?", (sha256, source[0]))
            number = connection.execute(
                "INSERT INTO subtitles (sha256, path, size, mtime_ns) VALUES (?, ?, ?, ?)", (sha256, *source)
            ).lastrowid
            rows = enumerate(lines[:_LINES], (number or 0) * _LINES)
            connection.executemany(
                "INSERT INTO lines (rowid, text, language, start, stop) VALUES (?, ?, ?, ?, ?)",
                ((row, spaced(line.text), line.language, line.start, line.end) for row, line in rows),
            )

    def drop(self, files: Iterable[tuple[str, Path]]) -> None:
        """Forgets the lines of files, by the sha256 of the video and the path."""
        with self._database.write() as connection:
            for sha256, path in files:
                drop_lines(connection, "sha256 = ? AND path = ?", (sha256, os.fsencode(path)))


def lines_of(read: Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]], sha256: str) -> list[SubtitleLine]:
    """All lines of a video, in order of time.

    Args:
        read: gives the rows of a statement with values, from the SQLite file of a library. Only plain tables are read.
        sha256: of the video.
    """
    rows = read(
        f"SELECT c2, c3, c0, c1 FROM subtitles JOIN {CONTENT} "
        f"ON id BETWEEN number * {_LINES} AND number * {_LINES} + {_LINES - 1} WHERE sha256 = ?",
        (sha256,),
    )
    return sorted((_line(*row) for row in rows if _is_line(*row)), key=lambda line: (line.start, line.end))


def _line(start: float, end: float, text: str, language: str) -> SubtitleLine:
    return SubtitleLine(start, end, text.replace(SPACE, ""), language)


def _is_line(start: object, end: object, *texts: object) -> bool:
    """Whether columns are those of a line, which damage may have changed, or another library made up."""
    return all(isinstance(t, float) and math.isfinite(t) for t in (start, end)) and all(
        isinstance(t, str) for t in texts
    )


def drop_lines(connection: sqlite3.Connection, condition: str, values: Sequence[Any]) -> None:
    """Deletes the lines of the files that meet a condition, inside a transaction."""
    for (number,) in connection.execute(f"SELECT number FROM subtitles WHERE {condition}", values).fetchall():
        bounds = (number * _LINES, number * _LINES + _LINES - 1)
        connection.execute("DELETE FROM lines WHERE rowid BETWEEN ? AND ?", bounds)
        connection.execute("DELETE FROM subtitles WHERE number = ?", (number,))
