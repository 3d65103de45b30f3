"""The command `prvr`: what another distribution can run faster runs there, everything else on the command line."""

import os
import sys
from importlib import import_module
from pathlib import Path

from prvr.extensions import extensions


def command() -> int:
    """Runs `prvr` with the words of the process, and returns its exit code."""
    open_streams()
    start = next(extensions("start", others=False), None)
    code = None if start is None else start(sys.argv[1:])
    return import_module("prvr.cli").main() if code is None else code


def open_streams() -> None:
    """Opens standard streams that were closed, as empty ones, before any other file gets their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w" if number else "r", encoding="utf-8"))  # noqa: SIM115
