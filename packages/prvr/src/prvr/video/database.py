"""The SQLite file of a library: its tables in every version, and transactions that other processes may wait for."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from prvr.errors import DISK_FULL, DataError
from prvr.video.listing import prefix_of

FILE = "library.sqlite"
BELOW = "path >= ? AND path < ?"
"""The condition of all paths below a folder, whose values are `bounds(folder)`."""
_PATIENCE = 30.0  # seconds to wait for the transaction of another process, which lasts milliseconds
_TABLES = (
    """
CREATE TABLE encoders (key TEXT PRIMARY KEY, spec TEXT NOT NULL);
CREATE TABLE videos (sha256 TEXT PRIMARY KEY, about TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE features (sha256 TEXT, encoder TEXT, frames INTEGER NOT NULL, hash TEXT NOT NULL,
    PRIMARY KEY (sha256, encoder));
CREATE TABLE faults (sha256 TEXT, encoder TEXT, reason TEXT NOT NULL, remedy TEXT NOT NULL,
    PRIMARY KEY (sha256, encoder));
CREATE TABLE places (path BLOB, size INTEGER, mtime_ns INTEGER, volume TEXT NOT NULL, seen REAL NOT NULL,
    sha256 TEXT NOT NULL, PRIMARY KEY (path, size, mtime_ns));
CREATE TABLE folders (path BLOB PRIMARY KEY, encoder TEXT NOT NULL, named INTEGER NOT NULL);
""",
    """
CREATE TABLE subtitles (number INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, path BLOB NOT NULL, size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, UNIQUE (sha256, path));
CREATE VIRTUAL TABLE lines USING fts5 (text, language UNINDEXED, start UNINDEXED, stop UNINDEXED,
    tokenize = 'unicode61 remove_diacritics 2');
""",
    "UPDATE lines SET text = spaced(text) WHERE text != spaced(text);",
)  # what each version of the file adds to the one before

SPACE = "\u200b"  # of no width
_CHARACTER = re.compile("[\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]")


def spaced(text: str) -> str:
    """A text as lines are stored, in which SQLite takes each Chinese or Japanese character for a word.

    Examples:
        >>> spaced("Tokyo 東京").replace(SPACE, "|")
        'Tokyo |東||京|'
    """
    return _CHARACTER.sub(lambda found: f"{SPACE}{found[0]}{SPACE}", text.replace(SPACE, ""))


class LibraryUnwritable(DataError):
    """The library cannot be written: the disk is full, or it is read-only."""


class Database:
    """The SQLite file of a library.

    Args:
        home: the folder of the library; it is made when the first thing is written.
        rebuild: called with the error where the file is damaged, to put it aside and begin another one.
    """

    def __init__(self, home: Path, rebuild: Callable[[Exception], None]) -> None:
        self.home, self._rebuild = home, rebuild

    @property
    def file(self) -> Path:
        """Its path."""
        return self.home / FILE

    @property
    def version(self) -> tuple[int, int]:
        """Changes when something is written; cheap to read."""
        try:
            status = self.file.stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_size

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement; none where there is no file.

        Raises:
            DataError: the file cannot be read, or was written by a newer version of prvr.
        """
        if not self.file.is_file():
            return []
        try:
            with closing(self._connect()) as connection:
                return connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:  # no permission, say
                raise DataError(
                    f"{self.file}: cannot be read ({error}). Fix its permissions, or choose another library with "
                    "--library."
                ) from error
            self._rebuild(error)
            return self.read(statement, values)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which ends with the `with` statement.

        Raises:
            LibraryUnwritable: the file cannot be written.
        """
        with self.writable():
            self.home.mkdir(parents=True, exist_ok=True)
            with closing(self._connect_to_write()) as connection, connection:
                yield connection

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Explains why the library cannot be written."""
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            full = (isinstance(error, OSError) and error.errno in DISK_FULL) or "full" in str(error)
            remedy = "Free space on the disk" if full else "Fix its permissions"
            reason = "the disk is full" if full else f"cannot be written ({error})"
            raise LibraryUnwritable(
                f"{self.home}: {reason}. Finished videos are kept. {remedy}, or choose another folder with --library."
            ) from error

    def _connect_to_write(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file, timeout=_PATIENCE)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version < len(_TABLES):
                connection.create_function("spaced", 1, spaced)
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    version = connection.execute("PRAGMA user_version").fetchone()[0]
                    for statement in "".join(_TABLES[version:]).split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {max(version, len(_TABLES))}")
            elif version > len(_TABLES):
                raise DataError(
                    f"{self.file}: written by a newer version of prvr (format {version}, this version reads "
                    f"{len(_TABLES)}). Update prvr, or choose another folder with --library."
                )
        except BaseException:
            connection.close()
            raise
        return connection


def bounds(folder: Path) -> tuple[bytes, bytes]:
    """The bounds of all paths below a folder, for `BELOW`."""
    start = os.fsencode(prefix_of(folder))
    return start, start[:-1] + bytes([start[-1] + 1])
