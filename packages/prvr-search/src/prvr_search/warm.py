"""Searches that a running `prvr serve` of the same folder answers: how both find and trust each other.

The server listens at a free port of this machine and writes the port and a random token into a file of the library
that only its user can read. The port alone proves nothing: after a server was killed, another program may listen there.
So the server first shows that it has the token, by the HMAC of a number that the client chose, and the client does the
same for what it asks. The token itself is never sent.

Every command imports this module, so it imports nothing that takes long.
"""

import hmac
import json
import os
import secrets
import socket
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import prvr
from prvr.reading import printable

_VALUES = {"--with", "--without", "--subtitles", "--top", "-k", "--moments", "--library"}
_VALUES |= {"--in", "--name", "--after", "--before", "--longer", "--shorter"}
_FLAGS = {"--paths", "--print0", "--no-update"}
_QUIET, _VERBOSE = {"-q", "--quiet"}, {"-v", "--verbose"}

ADDRESS = "127.0.0.1"
LINE = 64 * 1024  # bytes of what is asked
GREETING_SECONDS, SECONDS = 3.0, 40.0
"""Time limits: for a line of the other side's proof, and for the answer that the client waits for."""
_ANSWER = 2**26  # bytes
_RECORD = 4096  # bytes
_PACKAGES = ("prvr", "prvr_search", "lorentz", "regdiff")
_SHOWN = ("COLORTERM", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables that decide how a table looks."""
_DECISIVE = ("CUDA_VISIBLE_DEVICES", "TZ")
"""Variables that decide what a search computes."""


class Record(NamedTuple):
    """The address and the token of a server, as its file holds them.

    Args:
        version: of the package.
        stamp: see `stamp`.
        port: where it listens.
        token: what it proves to have.
    """

    version: str
    stamp: str
    port: int
    token: str


def record_file(home: Path, folder: Path) -> Path:
    """The file in which the server of a folder writes its address.

    Args:
        home: of the library.
        folder: of videos, resolved.
    """
    return home / f"server-{sha256(os.fsencode(folder)).hexdigest()[:16]}.json"


def stamp() -> str:
    """A hash that two processes share if they run the same code: the packages' files, installed packages, Python."""
    specs = filter(None, map(find_spec, _PACKAGES))
    files = sorted(file for spec in specs if spec.origin for file in Path(spec.origin).parent.rglob("*.py"))
    places = [place for place in sys.path[not sys.flags.safe_path :] if Path(place).is_dir()]
    states = [(str(path), path.stat().st_mtime_ns) for path in (*files, *map(Path, places))]
    facts = (sys.version, sys.prefix, states, [os.environ.get(name) for name in _DECISIVE])
    return sha256(repr(facts).encode()).hexdigest()


def proof(token: str, side: str, *messages: bytes) -> bytes:
    """The HMAC by which one side proves that it has the token, of the messages of both sides."""
    return hmac.digest(token.encode(), b"\n".join((side.encode(), *messages)), "sha256").hex().encode()


def read_record(path: Path) -> Record:
    """Read the file of a server.

    Raises:
        OSError: it cannot be opened, or is a link.
        ValueError: another user could have written or read it, or it is not such a file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        is_own = not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o077)
        if not stat.S_ISREG(status.st_mode) or not is_own:
            raise ValueError("its file is not private to this user")
        return Record(**json.loads(file.read(_RECORD)))


class PlainSearch(NamedTuple):
    """A search that needs nothing but the open library: words, subtitles and filters; a table or paths.

    Args:
        words: those of the command without what concerns its log.
        folder: of videos.
        library: where the library lies; None: where that of the user does.
        is_quiet, is_verbose: how much of the log is shown.
    """

    words: list[str]
    folder: str
    library: str | None
    is_quiet: bool
    is_verbose: bool


def plain_search(words: Sequence[str]) -> PlainSearch | None:
    """The search that the words after `prvr` stand for; None for all others, and where that is not certain.

    Examples:
        >>> plain_search(["search", "films", "a dog", "--paths", "-q"]).words
        ['search', 'films', 'a dog', '--paths']
        >>> plain_search(["search", "films", "a dog", "--json", "-"])
    """
    rest = iter(words[1:])
    plain = [*words[:1]]
    places = list[str]()
    options = dict[str, str]()
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            places.append(word)
        elif word in _QUIET | _VERBOSE:
            options[word] = ""
            continue
        elif name in _VALUES:
            if not equals:
                plain.append(word)
                word = value = next(rest, "-")
            if value.startswith("-"):
                return None
            options[name] = value
        elif word not in _FLAGS:
            return None
        plain.append(word)
    if plain[:1] != ["search"] or not 1 <= len(places) <= 2:
        return None
    quiet = bool(_QUIET & options.keys())
    verbose = bool(_VERBOSE & options.keys())
    return PlainSearch(plain, places[0], options.get("--library"), quiet, verbose)


def start(words: Sequence[str]) -> int | None:
    """Lets a running server answer a search, and returns its exit code; None if the command has to run."""
    search = plain_search(words)
    return None if search is None else _ask(search)


def _ask(search: PlainSearch) -> int | None:
    """Prints what the server of a folder answers and gives the exit code; None, without a word, if it does not.

    With `--verbose` a line says why, and the command searches itself in any case, because its log is wanted.
    """
    try:
        from prvr_search.store.home import library_home

        home = library_home() if search.library is None else Path(search.library).expanduser().absolute()
        path = record_file(home, Path(search.folder).expanduser().resolve())
        if not path.is_file():
            return None
        reply = _reply(read_record(path), search)
        sys.stderr.write(reply["err"])
        sys.stdout.buffer.write(reply["out"].encode("latin-1"))
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 130
    except Exception as error:  # whatever it is, the command can do without a server
        if search.is_verbose:
            sys.stderr.write(f"prvr serve does not answer this search: {printable(str(error))}\n")
        return None
    return 0


def _reply(record: Record, search: PlainSearch) -> dict[str, str]:
    """The output of a search.

    Raises:
        OSError: nobody listens, or says nothing for too long.
        ValueError: it is another version, somebody else, or cannot answer this search.
    """
    if (record.version, record.stamp) != (prvr.__version__, stamp()):
        raise ValueError("its code, packages or settings differ")
    with socket.create_connection((ADDRESS, record.port), GREETING_SECONDS) as connection:
        own = secrets.token_hex(16).encode()
        connection.sendall(own + b"\n")
        other, _, proved = _line(connection, 256, GREETING_SECONDS).rstrip().partition(b" ")
        if not hmac.compare_digest(proved, proof(record.token, "server", own, other)):
            raise ValueError("another program listens on its port")
        if search.is_verbose:
            raise ValueError("--verbose shows the log of this process")
        request = json.dumps({"words": search.words, "quiet": search.is_quiet, **_terminal()}).encode()
        connection.sendall(proof(record.token, "client", own, other, request) + b" " + request + b"\n")
        reply = json.loads(_line(connection, _ANSWER, SECONDS))
    if "out" not in reply:
        raise ValueError(reply["problem"])
    return reply


def _line(connection: socket.socket, most: int, seconds: float) -> bytes:
    """Receive a line, within a time limit for the whole line."""
    line, until = bytearray(), time.monotonic() + seconds
    while not line.endswith(b"\n") and len(line) < most:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        if not (part := connection.recv(LINE)):
            break
        line += part
    return bytes(line)


def _terminal() -> dict[str, Any]:
    """The settings of the terminal that the server renders the output for."""
    environment = {name: os.environ[name] for name in _SHOWN if name in os.environ}
    if not environment.get("COLUMNS", "").isdigit():
        columns = 0
        for number in range(sys.platform == "win32", 3):
            with suppress(OSError, ValueError):
                columns = columns or os.get_terminal_size(number).columns
        environment["COLUMNS"] = str(columns or 80)
    return {"environment": environment, "terminal": sys.stdout.isatty(), "encoding": sys.stdout.encoding}
