"""`prvr search`: the videos of an index that answer a sentence, and where in them."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from prvr.cli.console import CommandError, stdout
from prvr.cli.library import add_place, opened_index
from prvr.cli.options import Parser

if TYPE_CHECKING:
    from prvr.search import SearchResult

_MOST = 10_000  # queries of a file


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "search",
        run,
        "Find videos and moments by a sentence",
        "FOLDER QUERY [--encoder NAME] [-k 10] [--json FILE] [--csv FILE] [--html FILE] [OPTIONS]",
        "Find the films of a folder that answer a sentence best, and the moment in each. New films are extracted and "
        "indexed first, renamed ones are recognised, and those that are gone are forgotten. The time line shows how "
        "well each part of a film matches. An index of `prvr index add` is searched as it is.",
    )
    add_place(parser)
    parser.add_argument("query", metavar="QUERY", nargs="?", help="a sentence")
    parser.add_argument("--file", metavar="FILE", help="a text file with one sentence on each line, instead of QUERY")
    parser.option("-k", "--top", default=10, metavar="K", help="videos for each sentence")
    parser.option("--moments", metavar="N", default=3, help="the most moments of each video, in files")
    parser.add_argument("--json", metavar="FILE", help="write everything, for programs")
    parser.add_argument("--csv", metavar="FILE", help="write one line for each video found")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures, in one file")


def run(args: Namespace) -> None:
    """Searches, prints the results and writes the files that were asked for."""
    queries = _queries(args)
    with opened_index(args) as index:
        results = index.search_many(queries, args.top, moments=args.moments)
    console = stdout()
    _show(console, results)
    _write(console, args, results)


def _queries(args: Namespace) -> list[str]:
    if (args.query is None) == (args.file is None):
        raise CommandError(
            'search takes a sentence, or --file with one a line: prvr search FOLDER "a dog catches a ball".'
        )
    if args.file is None:
        return [args.query]
    path = Path(args.file).expanduser()
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise CommandError(f"--file {path}: not UTF-8 ({error.reason}). Save it as UTF-8.") from error
    except OSError as error:
        raise CommandError(f"--file {path}: cannot be read ({error.strerror}). Name a text file.") from error
    queries = [line.strip() for line in lines if line.strip()]
    if not 1 <= len(queries) <= _MOST:
        raise CommandError(f"--file {path}: {len(queries):,} sentences, expected 1 to {_MOST:,}, one a line.")
    return queries


def _show(console: Console, results: "Sequence[SearchResult]") -> None:
    from prvr.search.output import result_table

    plain = "utf" not in console.encoding.lower()
    for number, result in enumerate(results):
        if number:
            console.print()
        console.print(result_table(result, width=console.width, plain=plain))


def _write(console: Console, args: Namespace, results: "Sequence[SearchResult]") -> None:
    from prvr.search.output import write_csv, write_html, write_json

    for path, write in ((args.json, write_json), (args.csv, write_csv), (args.html, write_html)):
        if path is not None:
            write(path, results)
            print(f"{path}: written")
