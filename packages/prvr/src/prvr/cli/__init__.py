"""The command line: one module for each command of `prvr`, which `prvr --help` lists.

Building the parser imports no torch: each command imports what it needs when it runs.
"""

import os
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from prvr.cli import compare, convert, data, demo, evaluate, extract, index, plot, presets, search, serve, train
from prvr.cli.console import complain, explain_usage, logged

__all__ = ["build_parser", "main"]

_NOBODY_READS = 141  # as a shell reports SIGPIPE
_COMMANDS = (demo, train, evaluate, compare, plot, extract, index, search, serve, convert, presets, data)


def build_parser() -> tuple[ArgumentParser, dict[tuple[str, ...], Callable[[Any], int | None]]]:
    """The parser of all commands, and the function behind each."""
    from prvr import __version__

    parser = ArgumentParser(
        prog="prvr",
        exit_on_error=False,
        version=__version__,
        description="Partially relevant video retrieval: train, evaluate and compare the models of one family.",
        usage="prvr COMMAND ... (prvr COMMAND --help explains one)",
    )
    subcommands = parser.add_subcommands(dest="command", metavar="COMMAND")
    runs: dict[tuple[str, ...], Callable[[Any], int | None]] = {}
    for module in _COMMANDS:
        runs |= module.register(subcommands)
    return parser, runs


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: what stands after `prvr`; default: that of the process.

    Returns:
        the exit code: 0, 2 for a mistake in the arguments, the configuration or the data, 1 for a fault of prvr
        itself or an index in which `prvr index verify` found damage, 130 when interrupted, 141 when nobody reads what
        it prints (`prvr presets | head`), 143 when terminated (SIGTERM) while it trained, which is saved then. Mistakes
        are explained on standard error.
    """
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # here, and not at the end of Python, which would complain
    except BrokenPipeError:
        _silence_stdout()
        return _NOBODY_READS


def _run(words: Sequence[str]) -> int:
    parser, runs = build_parser()
    if not words:
        parser.print_help()
        return 2
    try:
        parsed = parser.parse_args(words)
    except ArgumentError as error:
        return explain_usage(str(error), words, runs)
    path, args = [], parsed
    while "command" in args:
        path.append(args.command)
        args = args[args.command]
    with logged(args.verbose, args.quiet):
        try:
            return runs[tuple(path)](args) or 0
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted\n")
            return 130
        except SystemExit as end:  # training ends so after SIGTERM
            return end.code if isinstance(end.code, int) else 1
        except Exception as error:
            if args.verbose >= 2:
                raise
            return complain(error)


def _silence_stdout() -> None:
    """What is still to be written goes nowhere, so that Python does not complain of it at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a program that embeds the command has put something else there
        sys.stdout = StringIO()
