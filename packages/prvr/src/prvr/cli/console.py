"""What a command says: tables and results on standard output, progress and mistakes on standard error."""

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prvr import __version__
from prvr.errors import DISK_FULL, PrvrError

if TYPE_CHECKING:
    from rich.console import Console

    from prvr.evaluation.report import EvaluationReport

__all__ = [
    "CommandError",
    "complain",
    "device_of",
    "logged",
    "show_report",
    "stdout",
    "threads",
]

_LOGGERS = ("prvr", "regdiff", "lorentz")


class CommandError(PrvrError):
    """A command that cannot be carried out; the message says what was found and what to do."""


@contextmanager
def logged(verbose: int, quiet: bool) -> Iterator[None]:
    """Shows the log of our packages on standard error for the length of a command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s" if verbose else "%(message)s"))
    level = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(old)


def stdout() -> "Console":
    """The console that results go to; 80 columns where it is no terminal."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:  # rich would exit with 1, which stands for a fault of prvr
            raise BrokenPipeError

    console = Output(highlight=False)
    return console if console.is_terminal else Output(highlight=False, width=max(console.width, 80))


def show_report(console: "Console", report: "EvaluationReport", *, text_to_video: bool = False) -> None:
    """Prints the tables of an evaluation; `text_to_video`: that of papers on text-to-video retrieval comes first."""
    from prvr.evaluation.tables import groups_table, metrics_table, tags_table, text_video_table

    first = text_video_table(report) if text_to_video else metrics_table(report)
    for table in (first, groups_table(report), tags_table(report)):
        if table is not None:
            console.print()
            console.print(table)


def complain(error: Exception) -> int:
    """Explains a failed command on standard error; gives its exit code.

    What the user can mend takes one paragraph; a fault of the program is shown with its traceback.
    """
    sentence = _mendable(error)
    if sentence is not None:
        sys.stderr.write(f"prvr: error: {' '.join(sentence.split())}\n")
        return 2
    traceback.print_exception(error)
    sys.stderr.write(
        f"prvr: this is a fault of prvr {__version__}, not yours. Please report it, with the lines above and the "
        "command.\n"
    )
    return 1


def _mendable(error: Exception) -> str | None:
    """What to tell the user; None for a fault of the program."""
    if isinstance(error, PrvrError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:  # it names a file
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return "The disk is full. Free space, then run the command again."
    out_of_memory = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and re.search(r"out of memory|can't allocate memory", str(error))
    )
    if out_of_memory:
        return (
            f"Out of memory ({str(error).splitlines()[0] if str(error) else 'no more is to be had'}). Use smaller "
            "batches or a smaller model, or close other programs."
        )
    return None


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Lets torch compute on so many threads for a while; None leaves its choice, one per core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(wanted: str) -> Any:
    """The torch device that `cpu`, `cuda` or `auto` stands for.

    Raises:
        CommandError: cuda, where there is none.
    """
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise CommandError("--device cuda: torch sees no CUDA device here. Use --device cpu or auto.")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return torch.device(wanted)
