"""The command line: a module for each command of `prvr`, or for a few that belong together.

Building the parser imports no torch: each command imports what it needs when it runs.
"""

import os
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from io import StringIO

from prvr.cli.console import CommandError, complain, logged
from prvr.cli.options import Parser

__all__ = ["build_parser", "main"]

_NOBODY_READS = 141  # as a shell reports SIGPIPE
_COMMANDS = (
    *("demo", "train", "evaluate", "pipeline", "plot", "papers", "extract", "index", "search", "clip"),
    *("serve", "where", "convert", "presets", "data"),
)
"""The modules of this package that register commands, in the order of the help."""
_DESCRIPTION = "Train, evaluate and search with models for partially relevant video retrieval."
_EXIT_CODES = """\
Run `prvr COMMAND --help` for the options of a command.

exit codes:
  0    success
  1    an error in prvr itself, or damage that `prvr index verify` found
  2    an error in the arguments, the configuration or the data; the message says how to fix it
  130  interrupted (Ctrl-C)
  141  the reader of the output went away (`prvr presets | head`)
  143  terminated (SIGTERM) during training, which saved its state first
"""


def build_parser() -> Parser:
    """The parser of all commands."""
    from prvr import __version__

    parser = Parser(
        prog="prvr",
        usage="prvr COMMAND [OPTIONS]",
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__, help="show the version and exit")
    for name in _COMMANDS:
        import_module(f"prvr.cli.{name}").register(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the words after `prvr`; by default, those of the process.

    Returns:
        The exit code, see `prvr --help`. Errors are explained on standard error.
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
    parser = build_parser()
    if not words:
        parser.print_help()
        return 2
    try:
        args = parser.parse(words)
    except CommandError as error:
        return complain(error)
    except SystemExit:  # after --help and --version
        return 0
    with logged(args.verbose, args.quiet):
        try:
            return args.execute(args) or 0
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
    """Discards what is still to be written, so that Python does not complain about it when it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a program that embeds the command has put something else there
        sys.stdout = StringIO()
