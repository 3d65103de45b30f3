"""`prvr search`: the videos of an index that answer a sentence, and where in them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from prvr.cli.console import CommandError, device_of, leaf, stdout

if TYPE_CHECKING:
    from rich.console import Console

    from prvr.search import SearchResult

NAME = "search"
_MOST = 10_000  # queries of a file


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], None]]:
    """Adds the command."""
    parser = leaf(
        'prvr search INDEX "a person opens the fridge" [-k 10] [--json FILE] [--csv FILE] [--html FILE]',
        "Find the videos of an index that answer a sentence best, and the moment in each. The time line shows how well "
        "each part of a video fits.",
    )
    parser.add_argument("index", metavar="INDEX", help="of `prvr index`")
    parser.add_argument("query", metavar="QUERY", nargs="?", help="a sentence")
    parser.add_argument("--file", metavar="FILE", help="a text file with a sentence a line, instead of QUERY")
    parser.add_argument("-k", "--top", type=int, default=10, metavar="K", help="videos for each sentence")
    parser.add_argument("--moments", type=int, default=3, help="at most, of each video, in the files")
    parser.add_argument("--json", metavar="FILE", help="everything, for programs")
    parser.add_argument("--csv", metavar="FILE", help="a line for each video found")
    parser.add_argument("--html", metavar="FILE", help="a page with pictures, in one file")
    parser.add_argument(
        "--backend", default="auto", metavar="NAME", help="exact, faiss, milvus or milvus:ADDRESS; auto chooses by size"
    )
    parser.add_argument("--text", metavar="ENCODER", help="what reads the sentence, if it was moved: name or folder")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="of the text model")
    subcommands.add_subcommand(NAME, parser, help="find videos and moments by a sentence")
    return {(NAME,): run}


def run(args: Namespace) -> None:
    """Carries it out."""
    queries = _queries(args)
    from prvr.search import VideoIndex
    from prvr.video import open_featurizer

    device = device_of(args.device)
    text = None if args.text is None else open_featurizer(args.text, device)
    with VideoIndex.open(args.index, device=device, text=text, backend=args.backend) as index:
        results = index.search_many(queries, args.top, moments=args.moments)
    console = stdout()
    _show(console, results)
    _write(console, args, results)


def _queries(args: Namespace) -> list[str]:
    if (args.query is None) == (args.file is None):
        raise CommandError(
            'search takes a sentence, or --file with one a line: prvr search INDEX "a dog catches a ball".'
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


def _show(console: "Console", results: "Sequence[SearchResult]") -> None:
    from prvr.search.output import result_table

    plain = "utf" not in console.encoding.lower()
    for number, result in enumerate(results):
        if number:
            console.print()
        console.print(result_table(result, width=console.width, plain=plain))


def _write(console: "Console", args: Namespace, results: "Sequence[SearchResult]") -> None:
    from prvr.search.output import write_csv, write_html, write_json

    for path, write in ((args.json, write_json), (args.csv, write_csv), (args.html, write_html)):
        if path is not None:
            write(path, results)
            console.print(f"{path}: written", markup=False, soft_wrap=True)
