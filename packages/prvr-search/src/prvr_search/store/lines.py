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
from typing import Any

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
_TABLES = f"""
CREATE TABLE IF NOT EXISTS sources (number INTEGER PRIMARY KEY, sha256 TEXT, path TEXT, state TEXT,
    UNIQUE (sha256, path));
CREATE VIRTUAL TABLE IF NOT EXISTS lines USING fts5 (text, language UNINDEXED, kind UNINDEXED, start UNINDEXED,
    stop UNINDEXED, tokenize = 'unicode61 remove_diacritics 2');
CREATE TRIGGER IF NOT EXISTS forget AFTER DELETE ON sources BEGIN
    DELETE FROM lines WHERE rowid BETWEEN old.number * {_LINES} AND old.number * {_LINES} + {_LINES - 1};
END;
"""
_FORGET = "DELETE FROM sources WHERE sha256 = ? AND path = ?"


class Lines:
    """The lines of subtitles in a library; it can be used by several threads.

    Args:
        file: gives the file of the image.
    """

    def __init__(self, file: Callable[[], Path]) -> None:
        self._file, self._lock = file, threading.RLock()
        self._connection, self._stamp = _opened(), None

    def videos(self) -> set[str]:
        """The sha256 of the videos that have lines, or had subtitle files that hold none."""
        with self._lock:
            return {row[0] for row in self._tables().execute("SELECT sha256 FROM sources")}

    def of(self, sha256: str) -> list[SubtitleLine]:
        """All lines of a video, in order of time."""
        with self._lock:
            rows = self._tables().execute(
                f"SELECT {_COLUMNS} FROM sources JOIN lines ON {_OF_SOURCE} WHERE sha256 = ? ORDER BY start, stop",
                (sha256,),
            )
            return [_line(*row) for row in rows]

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
            return [(sha256, score, _line(*line)) for sha256, score, *line in rows]

    def follow(
        self,
        folder: Path,
        listing: Listing,
        videos: Sequence[VideoPath],
        films: Mapping[tuple[str, str], Film],
        read: Callable[[Film], Sequence[SubtitleLine]],
    ) -> None:
        """Takes in the lines of videos that are new or have changed, and forgets those whose files are gone.

        Args:
            folder: the folder of the videos.
            listing: what lies there now; nothing, if it is away.
            videos: the videos, with their sha256 where it is known.
            films: what is kept of videos with lines, see `Store.with_lines`.
            read: gives the lines that the file of a film holds.
        """
        shas = {video.sha256 for video in videos}
        sources = {key: (film.digest, partial(read, film)) for key, film in films.items() if key[0] in shas}
        for video in videos:
            for file, language in listing.subtitles.get(video.id, ()) if video.sha256 else ():
                state = f"{file.size} {file.mtime_ns} {file.inode} {file.changed_ns}"
                name = file.file.encode("utf-8", "backslashreplace").decode()  # SQLite takes no other text
                sources[video.sha256, name] = state, partial(_parsed, file, language)
        with self._lock:
            tables = self._tables()
            rows = tables.execute("SELECT sha256, path, state FROM sources")
            states = {(sha256, path): state for sha256, path, state in rows}
            for source, (state, lines_of) in sources.items():
                if states.get(source) == state:
                    continue
                try:
                    lines = lines_of()[:_LINES]
                except (OSError, DataError) as error:  # it may be read the next time
                    logger.warning("%s", error)
                    continue
                tables.execute(_FORGET, source)
                insert = "INSERT INTO sources (sha256, path, state) VALUES (?, ?, ?)"
                first = (tables.execute(insert, (*source, state)).lastrowid or 0) * _LINES
                rows = ((first + i, x.start, x.end, _spaced(x.text), x.language, x.kind) for i, x in enumerate(lines))
                tables.executemany(f"INSERT INTO lines (rowid, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", rows)
            listed = {path for _, path in sources}
            for sha256, name in states.keys() - sources.keys():
                path = Path(name)
                if path.is_absolute():
                    is_gone = bool(listing.videos) and below(path, [folder]) and not below(path, [*listing.unlisted])
                    is_gone = name in listed or (is_gone and not path.exists())
                else:  # a file of the library
                    is_gone = (sha256, name) not in films
                if is_gone:
                    tables.execute(_FORGET, (sha256, name))
            self._save()

    def forget(self, shas: Iterable[str]) -> None:
        """Forgets the lines of some videos."""
        with self._lock:
            self._tables().executemany("DELETE FROM sources WHERE sha256 = ?", [(sha256,) for sha256 in shas])
            self._save()

    def _tables(self) -> sqlite3.Connection:
        """The tables, read again where another process has written them."""
        path = self._file()
        stamp = stamp_at(path)
        if stamp is not None and stamp != self._stamp:
            self._stamp = stamp
            try:
                self._connection = _opened(bytes(read_proven(path)[0]))
            except (DataError, OSError, sqlite3.DatabaseError) as error:
                logger.info("%s: not read (%s)", path, error)  # what was read earlier is whole
        return self._connection

    def _save(self) -> None:
        """Writes the image, if it has changed; what cannot be written is made again by the next process."""
        if self._connection.in_transaction:
            self._connection.commit()
            write_cached(self._file(), [self._connection.serialize()])
            self._stamp = stamp_at(self._file())


def _opened(image: bytes = b"") -> sqlite3.Connection:
    """The tables of an image, or empty ones.

    Raises:
        sqlite3.DatabaseError: the image is of an earlier version.
    """
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    if image:
        connection.deserialize(image)
    connection.executescript(_TABLES)
    connection.execute(f"SELECT sha256, path, state, {_COLUMNS} FROM sources JOIN lines")
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


def _line(start: float, end: float, text: str, *rest: Any) -> SubtitleLine:
    return SubtitleLine(start, end, text.replace(_SPACE, ""), *rest)
