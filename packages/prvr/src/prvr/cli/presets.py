"""`prvr presets`: the presets that ship with prvr."""

from argparse import Namespace
from itertools import takewhile

from prvr.cli.console import CommandError
from prvr.cli.options import Parser
from prvr.config import config_to_dict, dump_config, load_config, preset_names, preset_text


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
        print(_resolved(args.name) if args.resolved else preset_text(args.name), end="")
        return
    if args.resolved:
        raise CommandError("--resolved: name the preset to print.")
    for name in [*preset_names(), *preset_names("rerankers")]:
        print(name)
        for line in _header(name)[1:]:  # the first is the command
            print(f"    {line}")


def _resolved(name: str) -> str:
    if name not in preset_names("rerankers"):
        return dump_config(load_config(name))
    from prvr.training import read_reranker_config

    values = config_to_dict(read_reranker_config(name, width=1))
    del values["reranker"]["width"]  # its retriever has one
    return dump_config(values)


def _header(name: str) -> list[str]:
    return [line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), preset_text(name).splitlines())]
