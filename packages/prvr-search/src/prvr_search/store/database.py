"""The SQLite file of a library: its tables in every version, and transactions that other processes may wait for."""

import logging
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from prvr.errors import DISK_FULL, DataError
from prvr.reading import printable
from prvr_search.films.listing import prefix_of

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
FILE = "library.sqlite"
BELOW = "path >= ? AND path < ?"
"""The condition of all paths below a folder, whose values are `bounds(folder)`."""
CONTENT = "lines_content"
"""The table of the virtual table `lines`, whose columns are id, c0 (text), c1 (language), c2 (start) and c3 (stop)."""
_PATIENCE = 3.0  # seconds to wait for the transaction of another process, which lasts milliseconds
_RESPITE = 10.0  # seconds after waiting in vain in which nothing waits
_POLL = 200  # milliseconds that SQLite waits by itself inside a transaction, deaf to Ctrl-C
_BLOCK, _MOST_STEPS = 1_000_000, 300_000_000  # steps of SQLite, of which it takes 100 million a second
_MOST_VERSIONS = 1000  # a larger number is no version, but damage
_JOURNALS = ("-journal", "-wal", "-shm")
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")  # ends a journal that names the journal of several databases
_DAMAGE = (
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG,
)  # fmt: skip
_DAMAGED_TABLE = re.compile("vtable constructor failed|invalid fts5 file format")  # errors without a code of their own
_TABLE = re.compile(r"CREATE (VIRTUAL )?TABLE |CREATE (UNIQUE )?INDEX ", re.IGNORECASE)
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
    return _CHARACTER.sub(lambda match: f"{SPACE}{match[0]}{SPACE}", text.replace(SPACE, ""))


class LibraryUnwritable(DataError):
    """The library cannot be written: the disk is full, or it is read-only."""


class _Damaged(sqlite3.DatabaseError):
    """The file is not one that this module has written."""


class Database:
    """The SQLite file of a library.

    The file is believed as little as any other: it has to hold the tables of its version, no view and no trigger.
    While another program holds it locked, it is read all the same where that is sound, see `read`.

    Args:
        home: the folder of the library; it is made when the first thing is written.

    Attributes:
        damages: how often the file was found to be damaged, and put aside.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.damages = home, 0
        self._gave_up, self._opened = float("-inf"), threading.local()

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
        """The rows of a statement; none where there is no file, or it is damaged and was put aside.

        Where another program holds the file locked, but there is no journal, no page of the file is being changed: it
        is read as it stands, and what was read counts if the file is the same afterwards.

        Raises:
            DataError: the file cannot be read, or was written by a newer version of prvr.
        """
        try:
            return self._patiently(lambda: self._rows(statement, values))
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                reason, remedy = _explained(error, "read")
                raise DataError(
                    f"{self.file}: {reason}. {remedy}, or choose another library with --library."
                ) from error
            self._put_aside(error)
            return []

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which ends with the `with` statement.

        Raises:
            LibraryUnwritable: the file cannot be written, or it is damaged and was put aside.
        """
        with self.writable():
            self.home.mkdir(parents=True, exist_ok=True)
            with closing(self._patiently(self._connect_to_write)) as connection:
                try:
                    yield connection
                except BaseException as error:
                    connection.rollback()  # closing would not do while a statement is open
                    if isinstance(error, OverflowError):  # a number in the file is as large as no other
                        raise _Damaged(str(error)) from error
                    raise
                self._patiently(connection.commit)

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Explains why the library cannot be written."""
        try:
            yield
        except (OSError, sqlite3.DatabaseError) as error:
            if isinstance(error, sqlite3.DatabaseError) and _is_damage(error):
                self._put_aside(error)
                raise LibraryUnwritable(f"{self.file}: was damaged ({error}). Run the command again.") from error
            reason, remedy = _explained(error, "written")
            raise LibraryUnwritable(
                f"{self.home}: {reason}. Finished videos are kept. {remedy}, or choose another folder with --library."
            ) from error

    def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if not self.file.is_file():
            return []
        try:
            with closing(self._connect()) as connection, _limited(connection, _MOST_STEPS):
                return connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            before = self._unchanging() if _is_locked(error) else None
            if before is not None:
                with suppress(sqlite3.DatabaseError), closing(_read_only(self.file, "&immutable=1")) as connection:
                    if _check(connection, self.file) == len(_TABLES):
                        rows = connection.execute(statement, values).fetchall()
                        if self._unchanging() == before:
                            return rows
            raise

    def _unchanging(self) -> object:
        """The state of the file; None where a transaction may be changing it, or has just done so.

        The file is not opened: closing it would drop the locks that SQLite holds for this process.
        """
        file = self.file.resolve()
        with suppress(OSError):
            status = file.stat()
            if not any(_beside(file, end).exists() for end in _JOURNALS) and time.time() - status.st_mtime > 0.1:
                return status.st_mtime_ns, status.st_size, status.st_ino
        return None

    def _patiently(self, act: Callable[[], _T]) -> _T:
        """What a function gives, which is tried for some seconds while another program holds the file locked.

        Where that was in vain, the next calls do not wait.
        """
        begin, is_logged = time.monotonic(), False
        patience = _PATIENCE if begin - self._gave_up > _RESPITE else 0.0
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                now = time.monotonic()
                if not _is_locked(error):
                    raise
                if now - begin >= patience:
                    self._gave_up = now
                    raise
                if now - begin > _PATIENCE / 3 and not is_logged:
                    logger.warning("%s: locked by another program; waiting", self.file)
                    is_logged = True
                time.sleep(0.02)

    def _connect_to_write(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA busy_timeout = {_POLL}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> sqlite3.Connection:
        with suppress(OSError):
            self._opened.number = self.file.stat().st_ino
        _refuse_journal(self.file)
        connection = _configured(sqlite3.connect(self.file, timeout=0))
        try:
            if _check(connection, self.file) < len(_TABLES):
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    version = _check(connection, self.file)
                    _add_tables(connection, version, len(_TABLES))
        except BaseException:
            connection.close()
            raise
        return connection

    def _put_aside(self, error: Exception) -> None:
        """Renames the damaged file and its journals. What matters can be read from the features again."""
        self.damages += 1
        aside = f".damaged-{time.time_ns()}"
        with self.writable(), suppress(FileNotFoundError):
            if self.file.stat().st_ino != getattr(self._opened, "number", None):
                return  # another process has put it aside
            logger.warning(
                "%s: damaged (%s). Renamed to %s; rebuilding it from the features.",
                self.file, error, FILE + aside,
            )  # fmt: skip
            self.file.rename(_beside(self.file, aside))
            for end in _JOURNALS:
                with suppress(FileNotFoundError):
                    _beside(self.file, end).rename(_beside(self.file, aside + end))


class OtherDatabase:
    """The SQLite file of another library, in which, and beside which, nothing is changed.

    A context manager.

    Args:
        file: the file.

    Attributes:
        version: of its tables.

    Raises:
        DataError: it is no library, is damaged, is held by another program, or was left amid a transaction.
    """

    def __init__(self, file: Path) -> None:
        self.file, self._is_endless = file, False
        nothing = f"{file.parent}: no library found, there is no {FILE}. Pass a folder given to --library."
        if not file.is_file() or not file.stat().st_size:
            raise DataError(nothing)
        with self._opening():
            _refuse_journal(file)
            with file.open("rb") as opened:
                has_log = opened.read(20)[18:] != b"\x01\x01"
            for end in _JOURNALS:
                if has_log and _beside(file, end).exists():
                    raise _Damaged(f"{_beside(file, end).name} lies beside it")
            # A file that has a write-ahead log would get one again, also to be read.
            self._connection = _read_only(file, "&immutable=1" if has_log else "")
            try:
                self.version = _check(self._connection, file)
                if not self.version:
                    raise DataError(nothing)
            except BaseException:
                self._connection.close()
                raise

    def read(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement, up to the first that is damaged; none after one that would not end."""
        if self._is_endless:
            return
        try:
            with _limited(self._connection, _MOST_STEPS // 30):
                yield from self._connection.execute(statement, values)
        except sqlite3.DatabaseError as error:
            self._is_endless = _code(error) == sqlite3.SQLITE_INTERRUPT
            logger.warning("%s: damaged (%s). Not all of it could be read.", self.file, error)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.DatabaseError) as error:
            is_damaged = isinstance(error, sqlite3.DatabaseError) and _is_damage(error)
            if is_damaged or (_beside(self.file, "-journal").exists() and not _is_locked(error)):
                reason, remedy = f"damaged ({error})", "Search with it once (--library), which mends it, then import it"
            else:
                reason, remedy = _explained(error, "read")
            raise DataError(f"{self.file}: {reason}. {remedy}.") from error

    def __enter__(self) -> "OtherDatabase":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _beside(file: Path, end: str) -> Path:
    return file.with_name(file.name + end)


def _read_only(file: Path, options: str) -> sqlite3.Connection:
    return _configured(sqlite3.connect(f"{file.as_uri()}?mode=ro{options}", uri=True, timeout=_PATIENCE))


def _configured(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.create_function("spaced", 1, spaced, deterministic=True)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _check(connection: sqlite3.Connection, file: Path) -> int:
    """The version of a file, whose tables have to be those of that version."""
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        objects = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
    except UnicodeDecodeError as error:  # of the message of SQLite, which quotes what it has read
        raise _Damaged("its tables cannot be read") from error
    schema = dict(objects)
    expected = _schema(min(max(version, 0), len(_TABLES)))
    if schema and not _schema(len(_TABLES)).keys() & schema.keys():
        raise DataError(f"{file}: the database of another program. Choose another folder with --library.")
    if len(_TABLES) < version <= _MOST_VERSIONS:
        raise DataError(
            f"{file}: written by a newer version of prvr (format {version}, this version reads {len(_TABLES)}). "
            "Update prvr, or choose another folder with --library."
        )
    wrong = [name for name, sql in expected.items() if schema.get(name) != sql]
    wrong += [str(name) for name, sql in objects if not _TABLE.match(str(sql)) or sql != expected.get(name, sql)]
    if wrong or not 0 <= version <= len(_TABLES) or (schema and not version):
        raise _Damaged(f"its {', '.join(map(printable, wrong[:3])) or 'version'} is not as prvr writes it")
    return version


@cache
def _schema(version: int) -> dict[str, str]:
    """The tables of a version: their names, and the statements that make them."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("spaced", 1, spaced)
        _add_tables(connection, 0, version)
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL"))
    return {name: sql for name, sql in tables.items() if name == CONTENT or not name.startswith("lines_")}


def _add_tables(connection: sqlite3.Connection, version: int, target: int) -> None:
    for statement in "".join(_TABLES[version:target]).split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {target}")


def _refuse_journal(file: Path) -> None:
    """Refuses a journal that names another one: SQLite would delete the file of that name, wherever it lies."""
    path = _beside(file.resolve(), "-journal")
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as journal:
            if stat.S_ISREG(os.fstat(journal.fileno()).st_mode):
                journal.seek(-len(_NAMES_ANOTHER), os.SEEK_END)
                if journal.read() != _NAMES_ANOTHER:
                    return
    except OSError:  # there is none, or it is shorter
        return
    raise _Damaged(f"its journal, {path.name}, is not as prvr writes it")


@contextmanager
def _limited(connection: sqlite3.Connection, steps: int) -> Iterator[None]:
    """Ends what takes more steps of SQLite than any library needs; Ctrl-C, which SQLite would ignore, ends it too."""
    blocks = 0

    def count() -> bool:
        nonlocal blocks
        blocks += 1
        return blocks * _BLOCK > steps

    connection.set_progress_handler(count, _BLOCK)
    try:
        yield
    except sqlite3.OperationalError as error:
        if _code(error) == sqlite3.SQLITE_INTERRUPT and blocks * _BLOCK <= steps:
            raise KeyboardInterrupt from error
        raise
    finally:
        connection.set_progress_handler(None, 0)


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_locked(error: Exception) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return isinstance(error, _Damaged) or _code(error) in _DAMAGE or bool(_DAMAGED_TABLE.match(str(error)))


def _explained(error: OSError | sqlite3.DatabaseError, verb: str) -> tuple[str, str]:
    """Why a file cannot be read or written, and what to do."""
    if (isinstance(error, OSError) and error.errno in DISK_FULL) or _code(error) == sqlite3.SQLITE_FULL:
        return "the disk is full", "Free space on the disk"
    if _is_locked(error):
        return "locked by another program", "Close that program and run again"
    if _code(error) == sqlite3.SQLITE_IOERR:
        return f"cannot be {verb} ({error})", "Check the disk"
    if _code(error) == sqlite3.SQLITE_INTERRUPT:
        return f"cannot be {verb}: timed out", "Check where it comes from"
    return f"cannot be {verb} ({error})", "Fix its permissions"


def bounds(folder: Path) -> tuple[bytes, bytes]:
    """The bounds of all paths below a folder, for `BELOW`."""
    start = os.fsencode(prefix_of(folder))
    return start, start[:-1] + bytes([start[-1] + 1])
