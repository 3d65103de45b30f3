"""The process that `prvr search --stay` leaves behind so that the next search starts at once.

That process has imported what a search needs. It forks for each search; the fork takes over the words, environment,
folder and files of the command and runs it as the command itself would have, so that it sees every change of the
videos. A command that finds the process imports nothing else. Both sides ask the system whose process the other one
is; the socket lies in a folder that only its owner can enter, and is named by all that must be equal: files of the
packages, installed packages, Python and environment. Linux only: elsewhere, commands run as ever.
"""

import gc
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import prvr

_VARIES = {"COLUMNS", "LINES", "OLDPWD", "PWD", "PRVR_STAY", "SHLVL", "TERM", "WINDOWID", "_"}
"""Variables that a search reads anew, or not at all."""
_LONGEST = 107  # bytes of the path of a socket
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SERVER = "import sys; from prvr.cli import main; from prvr_search import resident; resident.serve(main, *sys.argv[1:])"
_began: dict[str, Any] = {}
"""How this command began: its `environment` before anything was imported, and the `path` of its socket or None."""


def start(words: Sequence[str]) -> int | None:
    """Runs a search in the resident process and returns its exit code; None for other commands, or without one."""
    _began.update(environment=dict(os.environ), path=None)
    if words[:1] == ["search"] and sys.platform == "linux":
        new = "PRVR_STAY" in os.environ or any(word.startswith("--stay") for word in words)
        _began["path"] = path = _socket_path(_began["environment"], new)
        return None if path is None else _ask(path, words)
    return None


def stay(seconds: float) -> bool:
    """Leaves a process behind that ends after so many seconds without a search, or ends it now (0).

    Returns:
        Whether it can be done: on Linux, by the command `prvr`, where a folder for the socket can be made.
    """
    if (path := _began.get("path")) is None:
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)
        connection.sendall(b"S" + struct.pack("d", seconds))
        return True
    if seconds:
        words = [sys.executable, "-P", "-c", _SERVER, path, str(seconds)]
        files: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(
            words, cwd="/", env=_began["environment"], start_new_session=True, text=True, **files
        )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write("\n".join(sys.modules))
    return True


def serve(main: Callable[[Sequence[str]], int], path: str, seconds: str) -> None:
    """Imports the modules that standard input names, and forks for each search until none has come for some time.

    Args:
        main: runs a command.
        path: where the socket is made; what lies there is replaced.
        seconds: how long to wait for a search.
    """
    for module in sys.stdin.read().split():
        with suppress(Exception):
            import_module(module)
    own = f"{path}.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    os.umask(0o177)
    listener.bind(own)
    listener.listen()
    number = os.lstat(own).st_ino
    Path(own).rename(path)  # one that waits there still is found no more, and ends in its time
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    patience, last = float(seconds), time.monotonic()
    while (left := last + patience - time.monotonic()) > 0:
        listener.settimeout(left)
        with suppress(OSError), listener.accept()[0] as connection:
            connection.settimeout(5)
            if not _is_own(connection):
                continue
            kind = connection.recv(1, socket.MSG_PEEK)
            if kind == b"S":
                patience = struct.unpack("d", connection.recv(9)[1:])[0]
            elif kind == b"R" and os.fork() == 0:
                listener.close()
                _run(main, connection)
            last = time.monotonic()
    with suppress(OSError):
        if os.lstat(path).st_ino == number:
            Path(path).unlink()


def _socket_path(environment: Mapping[str, str], new: bool) -> str | None:
    """Where the process of commands like this one listens; None where no folder is safe for it.

    With `new`, the folder is made if it is missing. Without, a missing or empty folder means that there is no process,
    and nothing else is read.
    """
    import platformdirs

    runtime = environment.get("XDG_RUNTIME_DIR", "")
    cache = platformdirs.user_cache_path("prvr", appauthor=False) / "resident"
    folder = Path(runtime, "prvr") if Path(runtime).is_absolute() else cache
    try:
        if new:
            folder.mkdir(0o700, parents=True, exist_ok=True)
        elif not any(folder.iterdir()):
            return None
        about = folder.lstat()
        packages = [Path(package).parent for package in (prvr.__file__, __file__)]
        files = sorted(file for package in packages for file in package.rglob("*.py"))
        sources = [(str(file), file.stat().st_mtime_ns) for file in files]
        installed = [(place, Path(place).stat().st_mtime_ns) for place in sys.path[1:] if Path(place).is_dir()]
    except OSError:
        return None
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        return None
    variables = sorted(item for item in environment.items() if item[0] not in _VARIES)
    facts = (sys.version, sys.executable, sources, installed, variables)
    path = str(folder / sha256(repr(facts).encode()).hexdigest()[:24])
    return path if len(os.fsencode(path)) + 12 <= _LONGEST else None


def _is_own(connection: socket.socket) -> bool:
    """Whether the process on the other side is of the same user."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", peer)[1] == os.getuid()


def _ask(path: str, words: Sequence[str]) -> int | None:
    """The exit code of a command that the resident process has run; None where it has not begun."""
    received: list[int] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until they can be passed on
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            if not _is_own(connection):
                return None
            folder = os.open(".", os.O_RDONLY)
            os.umask(mask := os.umask(0o077))
            socket.send_fds(connection, [b"R"], [0, 1, 2, folder])
            request = {"words": words, "environment": _began["environment"], "umask": mask, "path": path}
            connection.sendall(json.dumps(request).encode() + b"\n")
            if not (process := int.from_bytes(connection.recv(4))):
                return None

            def pass_on(number: int, _: object) -> None:
                received.append(number)
                with suppress(ProcessLookupError):
                    os.kill(process, number)

            before = [signal.signal(number, pass_on) for number in _SIGNALS]
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            code = connection.recv(1)
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, handler)
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if code:
        return code[0]
    if signal.SIGTERM in received:
        os.kill(os.getpid(), signal.SIGTERM)
    sys.stderr.write("prvr: error: the process of the search was ended.\n")
    return 137


def _run(main: Callable[[Sequence[str]], int], connection: socket.socket) -> None:
    """Runs a command in this fork as if it had been started; never returns."""
    code = 1
    try:
        connection.settimeout(None)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        files = socket.recv_fds(connection, 1, 4)[1]
        stream = connection.makefile("rb")
        request = json.loads(stream.readline())
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        os.fchdir(files[3])
        for file in files:
            os.close(file)
        os.umask(request["umask"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _began.update(environment=request["environment"], path=request["path"])
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            old, mode = getattr(sys, name), "w" if number else "r"
            lines = 1 if number == 2 or os.isatty(number) else -1
            setattr(sys, name, open(number, mode, lines, old.encoding, old.errors, closefd=False))  # noqa: SIM115
        sys.argv = ["prvr", *request["words"]]

        def end_with_the_command() -> None:
            if not stream.read(1):
                os.kill(os.getpid(), signal.SIGTERM)

        connection.sendall(os.getpid().to_bytes(4))
        threading.Thread(target=end_with_the_command, daemon=True).start()
        code = main(request["words"])
        sys.stderr.flush()
        connection.sendall(bytes([code]))
    finally:
        os._exit(code)
