"""The page `cli.md` of the documentation: what `prvr COMMAND --help` prints, for every command.

MkDocs calls `on_files` when it builds the site (`hooks` in mkdocs.yml); the page is in no other place.
`python scripts/cli_reference.py` prints it.
"""

import contextlib
import io
import os
import re
from collections.abc import Iterator
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from prvr.cli import main

_INTRODUCTION = """\
# Command line

What `prvr COMMAND --help` prints. Words in capitals stand for values of your own; what is in brackets may be left out.
"""


def help_text(command: list[str]) -> str:
    """What `prvr COMMAND --help` prints, in 100 columns."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, {"COLUMNS": "100"}):
        main([*command, "--help"])
    return out.getvalue().strip()


def commands(group: list[str] | None = None) -> Iterator[list[str]]:
    """Every command in the order of `prvr --help`, a group before its members."""
    names = re.search(r"^commands:\n  COMMAND\n((?:    .*\n?)+)", help_text(group or []), flags=re.MULTILINE)
    for name in re.findall(r"^    (\w+)", names[1], flags=re.MULTILINE) if names else []:
        command = [*(group or []), name]
        yield command
        yield from commands(command)


def page() -> str:
    """The whole page in Markdown."""
    sections = [_INTRODUCTION, f"```text\n{help_text([])}\n```\n"]
    for command in commands():
        sections.append(f"## prvr {' '.join(command)}\n\n```text\n{help_text(command)}\n```\n")
    return "\n".join(sections)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page to the site."""
    files.append(File.generated(config, "cli.md", content=page()))
    return files


if __name__ == "__main__":
    print(page())
