"""The command line: a module for each command of `prvr`, or for a few that belong together; others bring more commands.

Every module of this package is imported for its commands, which are functions under `@app.command`; that of a group of
commands is imported when it is used. None of them imports torch: a command imports what it needs when it runs.
"""

import os
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

from cyclopts import CycloptsError, Parameter

from prvr.cli.console import CommandError, complain, imported, logged, stdout
from prvr.cli.options import CORPORA, EVERYWHERE, app, bind, import_parts, usage_error
from prvr.errors import DISK_FULL
from prvr.extensions import extensions, missing

__all__ = ["add_commands", "app", "main"]

_PIPE_CLOSED = 141  # as a shell reports SIGPIPE
_OF_SEARCH = ("clip", "demo", "export", "library", "search", "serve", "teach")

app.command(
    "prvr.cli.convert:group",
    name="convert",
    group=CORPORA,
    help="Convert released checkpoints, your own captions or public benchmarks.",
)
for _module in pkgutil.iter_modules(__path__):
    if _module.name != "convert" and not _module.name.startswith("_"):
        import_module(f"prvr.cli.{_module.name}")


def add_commands(name: str = "") -> None:
    """Adds the commands of leaves and of other distributions, see `prvr.extensions`.

    Args:
        name: only until there is a command of this name; empty: those of all.

    Raises:
        MissingExtraError: it is a command of prvr-search, which is not installed.
    """
    if name in app:
        return
    for _ in extensions("commands"):  # importing a module adds its commands
        if name in app:
            return
    if name in _OF_SEARCH:
        raise missing(f"prvr {name}")


app.meta.help_flags = ()  # modules of `--import` come before help


@app.meta.default
def launch(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    verbose: Annotated[
        int, Parameter(name=("--verbose", "-v"), count=True, allow_repeating=None, show_default=False, group=EVERYWHERE)
    ] = 0,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), group=EVERYWHERE)] = False,
    imports: Annotated[list[str], Parameter(name="--import", metavar="MODULE", group=EVERYWHERE)] = [],
) -> int:
    """Runs one command.

    Args:
        verbose: print debug messages; -vv also prints tracebacks
        quiet: print only results, warnings and errors
        imports: import this Python module first, for example one that registers a loss; can be repeated. Modules
            listed under `imports` in the file of `--config` or a table of `prvr papers` are imported too
    """
    with logged(verbose, quiet):
        try:
            add_commands(words[0] if words and not words[0].startswith("-") else "")
            if imports and _has_import(words[0] if words else ""):
                words, imports = (*words, *(f"--import={name}" for name in imports)), []
            if imports:
                import_parts(imports)
                imported.extend(imports)
                for update in extensions("imported"):
                    update()
            if words:
                return bind(words)() or 0
            app.help_print([], console=stdout())
            return 2
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted\n")
            return 130
        except SystemExit as end:  # training ends so after SIGTERM
            return end.code if isinstance(end.code, int) else 1
        except Exception as error:
            if verbose >= 2:
                raise
            return complain(error)
        finally:
            imported.clear()


def _has_import(name: str) -> bool:
    """Whether a command has an option `--import` of its own, such as that of another library."""
    if name not in app or app[name].default_command is None:  # unknown, or a group of commands
        return False
    return any("--import" in argument.names for argument in app[name].assemble_argument_collection())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the words after `prvr`; by default, those of the process.

    Returns:
        The exit code, see `prvr --help`. Errors are printed to standard error.
    """
    _open_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of names that are no UTF-8, or on an ASCII terminal
    options: dict[str, Any] = {"exit_on_error": False, "print_error": False, "result_action": "return_value"}
    try:
        code = app.meta(list(sys.argv[1:] if argv is None else argv), console=stdout(), **options) or 0
    except CycloptsError as error:
        code = complain(usage_error(error))
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except OSError as error:
        if error.filename is not None or error.errno not in DISK_FULL:
            raise
        code = complain(error)
    try:
        sys.stdout.flush()  # here, and not at the end of Python, which would complain
    except OSError as error:
        _silence_stdout()
        if not isinstance(error, BrokenPipeError):
            return complain(CommandError(f"Standard output cannot be written ({error.strerror})."))
        code = _PIPE_CLOSED
    if argv is None:
        with suppress(OSError):
            os.dup2(2, 1)  # what libraries print while the process ends is no result
    return code


def _open_streams() -> None:
    """Opens standard streams that were closed, as empty ones, before any other file gets their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def _silence_stdout() -> None:
    """Discards the rest of the output, so that Python does not complain about it at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a program that embeds the command has replaced stdout
        sys.stdout = StringIO()
