"""`prvr presets`: which there are, and what one says."""

from collections.abc import Callable
from importlib import resources
from itertools import takewhile
from typing import Any

from jsonargparse import Namespace

from prvr.cli.console import leaf, stdout
from prvr.config import load_config, preset_names

NAME = "presets"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf("prvr presets [NAME]", "List the presets that ship with prvr, or print one.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one")
    subcommands.add_subcommand(NAME, parser, help="list the presets, or print one")
    return {(NAME,): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    console = stdout()
    if args.name is not None:
        load_config(args.name)  # an unknown name is explained with the closest ones
        console.print(_text(args.name), markup=False, soft_wrap=True, end="")
        return
    for name in preset_names():
        console.print(name, style="bold", markup=False)
        for line in _header(name)[1:]:  # the first is the command
            console.print(f"    {line}", markup=False, soft_wrap=True)


def _text(name: str) -> str:
    return (resources.files("prvr") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


def _header(name: str) -> list[str]:
    return [line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), _text(name).splitlines())]
