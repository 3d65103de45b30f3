"""`prvr presets`: which there are, and what one says."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from jsonargparse import Namespace

from prvr.cli.console import CommandError, leaf, stdout
from prvr.config import dump_config, load_config, preset_names, preset_text

NAME = "presets"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf("prvr presets [NAME]", "List the presets that ship with prvr, or print one.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="print what this one changes of its base")
    parser.add_argument("--resolved", action="store_true", help="print every key of it, the defaults included")
    subcommands.add_subcommand(NAME, parser, help="list the presets, or print one")
    return {(NAME,): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    console = stdout()
    if args.name is not None:
        text = dump_config(load_config(args.name)) if args.resolved else preset_text(args.name)
        console.print(text, markup=False, soft_wrap=True, end="")
        return
    if args.resolved:
        raise CommandError("--resolved: name the preset to print.")
    for name in preset_names():
        console.print(name, style="bold", markup=False)
        for line in _header(name)[1:]:  # the first is the command
            console.print(f"    {line}", markup=False, soft_wrap=True)


def _header(name: str) -> list[str]:
    return [line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), preset_text(name).splitlines())]
