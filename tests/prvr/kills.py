"""Processes of tests, and how they are killed: at a write (half of it, all of it, or renamed), or at any time."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

START = "fork" if sys.platform == "linux" else "spawn"
"""How `multiprocessing` starts processes of tests: forks need not import torch anew; elsewhere they are not safe."""

POINTS = ("half written", "written", "renamed")
"""Inside a write: half of a file is there; all of it, under its temporary name; it has its name, no more."""


def die() -> None:
    """As `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_write(number: int, point: str) -> Callable[[], None]:
    """Dies at the n-th write, from 1."""

    def prepare() -> None:
        left, replace, rename = [number], Path.replace, Path.rename

        def now() -> bool:
            left[0] -= 1
            return left[0] == 0

        def moved(real: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
            def move(path: Path, target: Path) -> Path:
                if point != "renamed" and path.is_file() and now():
                    if point == "half written":
                        os.truncate(path, path.stat().st_size // 2)
                    die()
                found = real(path, target)
                if point == "renamed" and now():
                    die()
                return found

            return move

        Path.replace, Path.rename = moved(replace), moved(rename)  # type: ignore[method-assign]

    return prepare


def killed(act: Callable[[], object], prepare: Callable[[], None] | None = None, after: float | None = None) -> bool:
    """Whether a process of its own was killed before it had acted.

    Args:
        act: what the process does.
        prepare: called there before, `at_write(...)` for example.
        after: seconds until it is killed from outside.
    """
    if (child := os.fork()) == 0:
        signal.alarm(300)  # or else a test that hangs would leave it behind
        try:
            if prepare is not None:
                prepare()
            act()
        finally:
            os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def growth(act: Callable[[], object]) -> int:
    """By how many bytes the peak of memory grows in a process of its own, on Linux."""

    def peak() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])

    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            before = peak()
            act()
            os.write(writer, str(peak() - before).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return int(file.read())  # nothing if it has failed


def free_ports(count: int) -> list[str]:
    with ExitStack() as sockets:
        free = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in free:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in free]


def become(rank: int, port: str) -> None:
    """One of two processes that train together, as torchrun starts them."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
