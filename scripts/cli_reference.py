"""Writes docs/cli.md, the reference of the command line, from the parser of `prvr`.

    python scripts/cli_reference.py

Run it after a change of an option or of its help; a test compares the page with the parser.
"""

from argparse import Action
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prvr.cli import build_parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
_INTRODUCTION = """\
# Command line

`python scripts/cli_reference.py` writes this page from the texts that `prvr COMMAND --help` prints; change those.
Words in capitals stand for values of your own. What stands in square brackets may be left out, and three dots mean
that more may follow. Options may stand before or after the other arguments, and cannot be abbreviated.
`prvr --version` prints the version.
"""
_OF_EVERY_COMMAND = ("-h", "-v", "-q")  # they stand once, at the top
_HEAD = ["| argument | |", "|---|---|"]


def page() -> str:
    """The whole page in Markdown."""
    root: Any = build_parser()
    commands = list(_commands(root))
    shared = [action for action in commands[0][1]._actions if _is_shared(action)]
    index = [f"| [`{parser.prog}`](#{parser.prog.replace(' ', '-')}) | {_cell(text)} |" for text, parser in commands]
    parts = [_INTRODUCTION, "\n".join(["| command | |", "|---|---|", *index, ""])]
    parts += ["Every command has these options:\n", _table(root, shared)]
    for _, parser in commands:
        parts += _section(parser)
    codes = [line.strip().partition(" ") for line in root.epilog.partition("exit codes:\n")[2].splitlines()]
    rows = [f"| {code} | {_cell(text)} |" for code, _, text in codes]
    return "\n".join([*parts, "## Exit codes\n", "\n".join(["| code | |", "|---|---|", *rows, ""])])


def _commands(parser: Any) -> Iterator[tuple[str, Any]]:
    """The summary and the parser of every command, those of groups included, in the order of `prvr --help`."""
    for action in parser._actions:
        for choice in getattr(action, "_choices_actions", ()):
            child = action.choices[choice.dest]
            yield from list(_commands(child)) or [(choice.help, child)]


def _section(parser: Any) -> list[str]:
    """The heading, the usage, the description and the arguments of one command."""
    usage = "\n".join(line.strip() for line in parser.usage.splitlines())
    parts = [f"## {parser.prog}\n", f"```text\n{usage}\n```\n", f"{parser.description}\n"]
    explained = [action for action in parser._actions if action.help and not _is_shared(action)]
    if explained:
        parts.append(_table(parser, explained))
    for group in parser._action_groups:
        keys = [action for action in group._group_actions if not action.help]
        if keys:  # of the configuration: their names say what they are
            lines = "\n".join(f"{key.option_strings[-1]} {_value(key)}" for key in keys)
            parts += [f"{group.title[0].upper()}{group.title[1:]}:\n", f"```text\n{lines}\n```\n"]
    return parts


def _is_shared(action: Action) -> bool:
    return bool(action.option_strings) and action.option_strings[0] in _OF_EVERY_COMMAND


def _table(parser: Any, actions: Sequence[Action]) -> str:
    formatter = parser._get_formatter()
    rows = list[str]()
    for action in actions:
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        value = f"`{_value(action)}`" if action.nargs != 0 else ""
        needed = "; required" if action.option_strings and action.required else ""
        text = formatter._expand_help(action)
        rows.append(f"| {_cell(f'{names} {value}')} | {_cell(text + needed)} |")
    return "\n".join([*_HEAD, *rows, ""])


def _value(action: Action) -> str:
    """What stands for the value of an argument."""
    name = str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))
    return f"[{name}]" if action.nargs == "?" else f"{name}..." if action.nargs in ("+", "*") else name


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
    print(f"{PAGE}: written")
