"""The page `cli.md` of the documentation: the help of every command.

MkDocs calls `on_files` when it builds the site (`hooks` in mkdocs.yml); the page is in no other place.
`python scripts/cli_reference.py` prints it.
"""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from prvr.cli import add_commands, app
from prvr.cli.options import keys_help


def page() -> str:
    """The whole page in Markdown."""
    add_commands()
    text = app.generate_docs(flatten_commands=True)
    return f"{text.replace('# prvr', '# Command line', 1)}\n\n## Configuration\n\n{keys_help()}\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page to the site."""
    files.append(File.generated(config, "cli.md", content=page()))
    return files


if __name__ == "__main__":
    print(page())
