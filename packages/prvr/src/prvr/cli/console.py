"""What a command says: tables and results on standard output, progress and mistakes on standard error."""

import logging
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser

from prvr import __version__
from prvr.errors import DISK_FULL, PrvrError

if TYPE_CHECKING:
    from rich.console import Console

    from prvr.evaluation.report import EvaluationReport

__all__ = [
    "CommandError",
    "complain",
    "device_of",
    "explain_usage",
    "leaf",
    "logged",
    "show_report",
    "stdout",
    "threads",
]

_LOGGERS = ("prvr", "regdiff", "lorentz")


class CommandError(PrvrError):
    """A command that cannot be carried out; the message says what was found and what to do."""


def leaf(usage: str, description: str) -> ArgumentParser:
    """A parser of one command, with the options that every command has."""
    parser = ArgumentParser(exit_on_error=False, usage=usage, description=description)
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="say more; -vv also shows the traceback of an error"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="only results, warnings and errors")
    return parser


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


def explain_usage(message: str, words: Sequence[str], commands: Iterable[tuple[str, ...]]) -> int:
    """One paragraph on standard error for arguments that cannot be read; gives the exit code.

    Args:
        message: of jsonargparse.
        words: what stands after `prvr`.
        commands: all there are.
    """
    from prvr.config import Config, config_leaves

    text = " ".join(message.split()).rstrip(".")
    if text.startswith("the following arguments are required"):  # jsonargparse says evaluate.run for RUN
        head, _, names = text.partition(": ")
        text = f"{head}: {', '.join(n if n.startswith('-') else n.split('.')[-1].upper() for n in names.split(', '))}"
    kind = re.fullmatch(
        r"""Parser key "([\w.]+)"(?: element \d+)?: Expected a <class '(\w+)'>\. Got value: ?(.*)""", text
    )
    if kind is not None:
        text = f"--{kind[1]}: expected {_KINDS.get(kind[2], kind[2])}, got {kind[3]!r}"
    if text.startswith("unrecognized arguments"):
        named = ["preset", "config", "data-root", "output", "resume", "size", "seed", "seeds", "quick"]
        options = [f"--{name}" for name in (*named, *config_leaves(Config))]
        for unknown in re.findall(r"--[\w.-]+", text):
            close = get_close_matches(unknown, options, n=2)
            text += f"; did you mean {' or '.join(close)}?" if close else ""
    stop = "" if text.endswith("?") else "."
    sys.stderr.write(f"prvr: error: {text}{stop} See {' '.join(['prvr', *_known(words, commands)])} --help.\n")
    return 2


_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def _known(words: Sequence[str], commands: Iterable[tuple[str, ...]]) -> Sequence[str]:
    """As many of the first words as name a command or a group of commands."""
    known = {path[:n] for path in commands for n in range(1, len(path) + 1)}
    return next((words[:n] for n in (2, 1) if tuple(words[:n]) in known), ())


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
