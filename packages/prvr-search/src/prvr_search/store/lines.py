"""The lines of subtitles and recognisers of a library and the search in them, by FTS5 of SQLite in memory.

The image of the tables lies in the user's cache and proves itself; it is made again from the files of the library and
those beside the videos.
"""

import json
import logging
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from prvr.errors import DataError
from prvr_search.films import Film, Listing, VideoPath
from prvr_search.films.listing import below
from prvr_search.films.subtitles import SUBTITLE_BYTES, SubtitleLine, parse_subtitles
from prvr_search.store.proof import read_now, read_proven, stamp_at, write_cached

logger = logging.getLogger(__name__)
_MATCHES = 1000  # lines that a search looks at
_SPACE = "\u200b"  # of no width
_CHARACTER = re.compile("[\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]")
_LINES = 1 << 20  # of a source: line i of source n has the number n * _LINES + i
_OF_SOURCE = f"lines.rowid BETWEEN number * {_LINES} AND number * {_LINES} + {_LINES - 1}"
_COLUMNS = "start, stop, text, language, kind"  # in the order of `SubtitleLine`
_TABLES = """
CREATE TABLE sources (number INTEGER PRIMARY KEY, sha256 TEXT, path TEXT, state TEXT, UNIQUE (sha256, path));
CREATE VIRTUAL TABLE lines USING fts5 (text, language UNINDEXED, kind UNINDEXED, start UNINDEXED, stop UNINDEXED,
    tokenize = 'unicode61 remove_diacritics 2');
"""


class Lines:
    """The lines of subtitles in a library; it can be used by several threads.

    Args:
        file: gives the file of the image.
    """

    def __init__(self, file: Callable[[], Path]) -> None:
        self._file, self._lock = file, threading.RLock()
        self._connection, self._stamp = _new(), None

    def videos(self) -> set[str]:
        """The sha256 of the videos that have lines, or had subtitle files that hold none."""
        with self._lock:
            return {row[0] for row in self._tables().execute("SELECT sha256 FROM sources")}

    def of(self, sha256: str) -> list[SubtitleLine]:
        """All lines of a video, in order of time."""
        with self._lock:
            rows = self._tables().execute(
                f"SELECT {_COLUMNS} FROM sources JOIN lines ON {_OF_SOURCE} WHERE sha256 = ?",
                (sha256,),
            )
            return sorted(map(_line, rows), key=lambda line: (line.start, line.end))

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
        quoted = ['"{}"'.format(_spaced(word).replace('"', '""')) for word in words.replace("\0", " ").split()]
        if not quoted:
            return []
        with self._lock:
            rows = self._tables().execute(
                f"SELECT sha256, -bm25(lines), {_COLUMNS} FROM lines JOIN sources "
                f"ON number = lines.rowid / {_LINES} "
                "WHERE lines MATCH ? AND sha256 IN (SELECT value FROM json_each(?)) "
                f"ORDER BY bm25(lines), sha256, start, stop, text LIMIT {_MATCHES}",
                ((" OR " if any_word else " AND ").join(quoted), json.dumps([*shas])),
            )
            return [(sha256, score, _line(line)) for sha256, score, *line in rows]

    def follow(
        self,
        folder: Path,
        listing: Listing,
        videos: Sequence[VideoPath],
        films: Mapping[str, Mapping[str, Film]],
        read: Callable[[Film], Sequence[SubtitleLine]],
    ) -> None:
        """Takes in the lines of videos that are new or have changed, and forgets those whose files are gone.

        Args:
            folder: the folder of the videos.
            listing: what lies there now; nothing, if it is away.
            videos: the videos, with their sha256 where it is known.
            films: what is kept of videos, see `Store.with_lines`.
            read: gives the lines that the file of a film holds.
        """
        sources = dict[tuple[str, str], tuple[str, Callable[[], Sequence[SubtitleLine]]]]()
        for video in videos:
            for key, of_key in films.items():
                film = of_key.get(video.sha256)
                if film is not None and film.lines:
                    sources[video.sha256, key] = film.digest, partial(read, film)
            for file, language in listing.subtitles.get(video.id, ()) if video.sha256 else ():
                state = f"{file.size} {file.mtime_ns} {file.inode} {file.changed_ns}"
                sources[video.sha256, file.file] = state, partial(_parsed, file, language)
        with self._lock:
            rows = self._tables().execute("SELECT sha256, path, state FROM sources").fetchall()
            states = {(sha256, path): state for sha256, path, state in rows}
            for source, (state, lines_of) in sources.items():
                if states.get(source) == state:
                    continue
                try:
                    lines = lines_of()
                except (OSError, DataError) as error:  # it may be read the next time
                    logger.warning("%s", error)
                    continue
                self._replace(source, lines, state)
            listed = {path for _, path in sources}
            for sha256, name in states.keys() - sources.keys():
                path = Path(name)
                if path.is_absolute():
                    is_gone = bool(listing.videos) and below(path, [folder]) and not below(path, [*listing.unlisted])
                    is_gone = name in listed or (is_gone and not path.exists())
                else:  # a file of the library
                    is_gone = sha256 not in films.get(name, {})
                if is_gone:
                    self._replace((sha256, name), None)
            self._save()

    def forget(self, shas: Iterable[str]) -> None:
        """Forgets the lines of some videos."""
        with self._lock:
            forgotten, rows = {*shas}, self._tables().execute("SELECT sha256, path FROM sources").fetchall()
            for source in rows:
                if source[0] in forgotten:
                    self._replace(source, None)
            self._save()

    def _replace(self, source: tuple[str, str], lines: Sequence[SubtitleLine] | None, state: str = "") -> None:
        """Replaces the lines of a source; None: there is no such source any more."""
        tables = self._connection
        for (number,) in tables.execute("SELECT number FROM sources WHERE sha256 = ? AND path = ?", source).fetchall():
            bounds = number * _LINES, (number + 1) * _LINES - 1
            tables.execute("DELETE FROM lines WHERE rowid BETWEEN ? AND ?", bounds)
            tables.execute("DELETE FROM sources WHERE number = ?", (number,))
        if lines is not None:
            insert = "INSERT INTO sources (sha256, path, state) VALUES (?, ?, ?)"
            first = (tables.execute(insert, (*source, state)).lastrowid or 0) * _LINES
            lines = lines[:_LINES]
            rows = ((first + i, x.start, x.end, _spaced(x.text), x.language, x.kind) for i, x in enumerate(lines))
            tables.executemany(f"INSERT INTO lines (rowid, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _tables(self) -> sqlite3.Connection:
        """The tables, read again where another process has written them."""
        path = self._file()
        stamp = stamp_at(path)
        if stamp is not None and stamp != self._stamp:
            self._stamp, connection = stamp, _new()
            try:
                connection.deserialize(bytes(read_proven(path)[0]))
                connection.execute(f"SELECT sha256, path, state, {_COLUMNS} FROM sources JOIN lines")
            except (DataError, OSError, sqlite3.DatabaseError) as error:
                logger.info("%s: made again (%s)", path, error)
                connection = _new()
            self._connection = connection
        return self._connection

    def _save(self) -> None:
        """Writes the image, if it has changed; what cannot be written is made again by the next process."""
        if self._connection.in_transaction:
            self._connection.commit()
            write_cached(self._file(), [self._connection.serialize()])
            self._stamp = stamp_at(self._file())


def _new() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript(_TABLES)
    return connection


def _parsed(file: VideoPath, language: str) -> Sequence[SubtitleLine]:
    """The lines of a subtitle file; none where it is no such file, with a warning.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        return parse_subtitles(read_now(file.path, SUBTITLE_BYTES), file.id, language)
    except DataError as error:
        logger.warning("%s", error)
        return []


def _spaced(text: str) -> str:
    """A text in which each Chinese or Japanese character is a word for SQLite."""
    return _CHARACTER.sub(lambda match: f"{_SPACE}{match[0]}{_SPACE}", text.replace(_SPACE, ""))


def _line(row: Sequence[object]) -> SubtitleLine:
    start, end, text, *rest = row
    return SubtitleLine(float(start), float(end), str(text).replace(_SPACE, ""), *rest)  # pyright: ignore[reportArgumentType]
