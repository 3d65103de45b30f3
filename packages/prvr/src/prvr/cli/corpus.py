"""`prvr data make`: the embedded corpus as files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from prvr.cli.console import leaf, stdout

NAME = "data"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf(
        "prvr data make OUT [--size tiny] [--seed 0]",
        "Write the embedded corpus (simulated, no download) into OUT/embedded, in the public layout.",
    )
    parser.add_argument("out", metavar="OUT", help="folder that holds collections")
    parser.add_argument("--size", default="tiny", help="how large (default: tiny, 60/20/20 videos)")
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    group = ArgumentParser(exit_on_error=False, usage="prvr data make OUT", description="Make data.")
    subcommands.add_subcommand(NAME, group, help="make the embedded corpus")  # the outer level first
    group.add_subcommands(dest="command", metavar="COMMAND").add_subcommand("make", parser, help="the embedded corpus")
    return {(NAME, "make"): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    from prvr.data import write_corpus

    corpus = write_corpus(Path(args.out), size=args.size, seed=args.seed)
    video_dim, query_dim = corpus.dims()
    stdout().print(
        f"{corpus.folder}: splits {', '.join(corpus.splits)}; frame features {video_dim} wide, words {query_dim}.\n"
        f"Train on it: prvr train --preset hybrid-embedded --data-root {args.out}",
        markup=False,
        soft_wrap=True,
    )
