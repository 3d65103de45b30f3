"""A process that dies at a chosen write: half of it written, all of it, or renamed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from prvr.data import files


def die() -> None:
    """As `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


def at_write(number: int, point: str) -> Callable[[], None]:
    """Dies at the n-th write, from 1."""

    def prepare() -> None:
        left, sync, replace, rename = [number], os.fsync, Path.replace, Path.rename

        def now() -> bool:
            left[0] -= 1
            return left[0] == 0

        def fsync(file: int) -> None:
            sync(file)
            if point == "half written" and now():
                os.truncate(file, os.fstat(file).st_size // 2)
                die()
            if point == "written" and now():
                die()

        def moved(real: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
            def move(path: Path, target: Path) -> Path:
                found = real(path, target)
                if point == "renamed" and now():
                    die()
                return found

            return move

        files.os.fsync, Path.replace, Path.rename = fsync, moved(replace), moved(rename)  # type: ignore[method-assign]

    return prepare
