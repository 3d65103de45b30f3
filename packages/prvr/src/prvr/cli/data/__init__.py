"""`prvr data make | show`: the corpus that prvr makes itself."""

from collections.abc import Callable
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from prvr.cli.data import make, show

NAME = "data"
_COMMANDS = (make, show)


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the commands."""
    group = ArgumentParser(
        exit_on_error=False,
        usage="prvr data COMMAND ... (prvr data COMMAND --help explains one)",
        description="The embedded corpus: videos that prvr draws itself, so that nothing has to be downloaded.",
    )
    subcommands.add_subcommand(NAME, group, help="make and look at the embedded corpus")  # the outer level first
    own = group.add_subcommands(dest="command", metavar="COMMAND")
    runs: dict[tuple[str, ...], Callable[[Namespace], None]] = {}
    for module in _COMMANDS:
        own.add_subcommand(module.NAME, module.parser(), help=module.HELP)
        runs[NAME, module.NAME] = module.run
    return runs
