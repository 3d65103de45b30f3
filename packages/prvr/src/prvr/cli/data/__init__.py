"""`prvr data make | show`: the corpus that prvr makes itself."""

from prvr.cli.data import make, show
from prvr.cli.options import Parser


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group(
        "data",
        "Make and view the embedded corpus",
        "Make and view the embedded corpus: videos that prvr draws itself, so that nothing has to be downloaded.",
    )
    make.register(group)
    show.register(group)
