"""`prvr presets`: the presets that ship with prvr."""

from argparse import Namespace
from itertools import takewhile

from prvr.cli.console import CommandError
from prvr.cli.options import Parser
from prvr.config import dump_config, load_config, preset_names, preset_text


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command("presets", run, "List the presets, or print one", "[NAME] [--resolved]")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the preset to print: what it changes of its base, which it names"
    )
    parser.add_argument("--resolved", action="store_true", help="print every key of it, with the defaults")


def run(args: Namespace) -> None:
    """Prints the list, or the preset."""
    if args.name is not None:
        text = dump_config(load_config(args.name)) if args.resolved else preset_text(args.name)
        print(text, end="")
        return
    if args.resolved:
        raise CommandError("--resolved: name the preset to print.")
    for name in preset_names():
        print(name)
        for line in _header(name)[1:]:  # the first is the command
            print(f"    {line}")


def _header(name: str) -> list[str]:
    return [line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), preset_text(name).splitlines())]
