"""The output of commands: tables and results on standard output, progress and errors on standard error."""

import gc
import logging
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module

from rich.console import Console

from prvr import __version__
from prvr.errors import DISK_FULL, NAMED, PrvrError
from prvr.extensions import SIBLING
from prvr.reading import printable

Progress = Callable[..., None]
logger = logging.getLogger(__name__)
EVERY = 30.0
"""Seconds between two lines about progress, where there is no terminal."""
imported: list[str] = []
"""The modules of parts that this command has imported, by the names they were asked for."""
_LOGGERS = ("prvr", SIBLING, "regdiff", "lorentz")


class CommandError(PrvrError):
    """A command that cannot run; the message says why and what to do."""


class _Printable(logging.Formatter):
    """Messages may hold the names of files, which the terminal is not to obey."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


@contextmanager
def logged(verbose: int, quiet: bool) -> Iterator[None]:
    """Shows the log of our packages on standard error for the length of a command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(asctime)s %(name)s: %(message)s" if verbose else "%(message)s"))
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


def load(module: str) -> None:
    """Imports a module that imports torch; the garbage collector is off meanwhile, because it only takes time.

    It leaves out from then on what is there: a collection would go through some 300,000 objects of modules.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


def stdout() -> Console:
    """The console that results go to; 80 columns where it is no terminal."""
    console = _Output(highlight=False)
    return console if console.is_terminal else _Output(highlight=False, width=max(console.width, 80))


class _Output(Console):
    def on_broken_pipe(self) -> None:  # rich would exit with 1, which stands for a bug in prvr
        raise BrokenPipeError


@contextmanager
def printing_to_stderr(active: bool = True) -> Iterator[None]:
    """For as long, all that is printed goes to standard error, by C code too: other people's code is no result.

    Args:
        active: False changes nothing.
    """
    if not active:
        yield
        return
    before = sys.stdout
    before.flush()
    try:
        results = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # closed
        results = None
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        before.flush()  # what was printed to it by name
        if results is not None:
            os.dup2(results, 1)
            os.close(results)


def show_next(*command: object) -> None:
    """Prints the command to type next, quoted for a shell, as the last line of the output.

    It imports what this command imported, since what this one wrote may be made of it.

    Examples:
        >>> show_next("prvr", "search", "my films", "a dog")
        <BLANKLINE>
        Next:
        prvr search 'my films' 'a dog'
    """
    print(f"\nNext:\n{shlex.join(map(str, (*command, *import_options())))}")


def import_options() -> list[str]:
    """The options by which another command imports what this one has imported."""
    return [word for module in dict.fromkeys(imported) for word in ("--import", module)]


def is_quiet() -> bool:
    """Whether `--quiet` was given: only results, warnings and errors are shown."""
    return not logger.isEnabledFor(logging.INFO)


@contextmanager
def progress_bar(title: str, unit: str = "videos") -> Iterator[Progress]:
    """Shows on standard error how much is done and how long the rest takes; without a terminal, a line every 30 s.

    Args:
        title: what is being done.
        unit: what is counted; "bytes" are shown as a percentage.

    Yields:
        A function to call with how much is done, how much there is in all, and what is being worked on.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if is_quiet() or not console.is_terminal:
        last = time.monotonic()

        def announce(done: int | float, total: int | float, name: str = "") -> None:
            nonlocal last
            if done == 1 and unit != "bytes":
                logger.info("%s: %d %s", title, total, unit)
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                amount = f"{done / max(total, 1):.0%}" if unit == "bytes" else f"{done} of {total} {unit}"
                logger.info("%s: %s", title, " ".join((amount, printable(name))).strip())

        yield announce
        return
    counts = TaskProgressColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), counts, TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int | float, total: int | float, name: str = "") -> None:
            bar.update(task, description=printable(name)[-40:] or title, completed=done, total=total)

        yield report


def complain(error: Exception) -> int:
    """Prints why a command failed to standard error, and returns its exit code.

    An error that the user can correct takes one paragraph; a bug is shown with its traceback.
    """
    message = _user_error(error)
    if message is not None:
        sys.stderr.write(f"prvr: error: {printable(' '.join(message.split()))}\n")
        return 2
    traceback.print_exception(error)
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    roots = [name for name in (module.partition(".")[0] for module in modules) if name in {*NAMED, "prvr", SIBLING}]
    bug = f"prvr {__version__}: this is a bug in prvr. Please report it, with the lines above and the command."
    own = NAMED.intersection(roots[-1:])  # where it was raised, or what called the library that raised it
    sys.stderr.write(f"prvr: error: {own.pop()} failed, see the lines above.\n" if own else f"{bug}\n")
    return 1


def _user_error(error: Exception) -> str | None:
    """The message for an error that the user can correct; None for a bug."""
    if isinstance(error, PrvrError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return "The disk is full. Free space, then run the command again."
    out_of_memory = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and re.search(r"out of memory|can't allocate memory", str(error))
    )
    if out_of_memory:
        detail = f" ({str(error).splitlines()[0]})" if str(error) else ""
        return f"Not enough memory{detail}. Use smaller batches or a smaller model, or close other programs."
    return None
