"""`prvr search`: the videos of an index that answer a sentence, a picture or a moment, and where in them."""

import logging
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from prvr.cli.clip import add_clip_options, moment
from prvr.cli.console import CommandError, load, stdout
from prvr.cli.options import Parser, date, seconds
from prvr.cli.where import add_place, opened_index
from prvr.reading import printable

if TYPE_CHECKING:
    from prvr.search import Query, SearchFilter, SearchResult, VideoIndex

logger = logging.getLogger(__name__)
_MOST = 10_000  # queries of a file


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "search",
        run,
        "Find videos and moments by a sentence, a picture or a moment",
        "FOLDER QUERY [--encoder NAME] [-k 10] [--json FILE] [--csv FILE] [--html FILE] [--paths] [--open]\n"
        "FOLDER [QUERY] [--with SENTENCE] [--without SENTENCE] [--image PICTURE] [--like FILM@12:30] [OPTIONS]\n"
        "FOLDER QUERY [--in FOLDER] [--name GLOB] [--after DATE] [--before DATE] [--save FOLDER] [OPTIONS]",
        "Find the films of a folder that answer a sentence best, and the moment in each. New films are extracted and "
        "indexed first, renamed ones are recognised, and those that are gone are forgotten. The time line shows how "
        "well each part of a film matches. An index of `prvr index add` is searched as it is.",
    )
    add_place(parser)
    parser.add_argument("query", metavar="QUERY", nargs="?", help="a sentence")
    parser.add_argument("--file", metavar="FILE", help="a text file with one sentence on each line, instead of QUERY")
    _add_parts(parser)
    parser.option("-k", "--top", default=10, metavar="K", help="videos for each sentence")
    parser.option("--moments", metavar="N", default=3, help="the most moments of each video, in files")
    parser.option("--min-confidence", metavar="X", default=0.0, help="leave out hits below this confidence, 0 to 1")
    parser.add_argument("--json", metavar="FILE", help="write everything, for programs; `-` is standard output")
    parser.add_argument("--csv", metavar="FILE", help="write one line for each video found; `-` is standard output")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures, in one file")
    parser.add_argument("--paths", action="store_true", help="print the paths of the videos found and nothing else")
    parser.add_argument("--print0", action="store_true", help="like --paths, with a NUL after each, for `xargs -0`")
    parser.add_argument("--open", action="store_true", help="open the best video in a player, at its moment if it can")
    parser.add_argument("--save", metavar="FOLDER", help="write the best moment of each video found as a clip")
    add_clip_options(parser)
    _add_filters(parser)


def _add_parts(parser: Parser) -> None:
    group = parser.add_argument_group("more than a sentence: everything that is named is looked for at once")
    group.add_argument(
        "--with", dest="more", action="append", default=[], metavar="SENTENCE", help="also this; repeat it for more"
    )
    group.add_argument(
        "--without", action="append", default=[], metavar="SENTENCE", help="rather not this; repeat it for more"
    )
    group.add_argument("--image", metavar="PICTURE", help="what a picture shows: a JPEG, PNG, WebP, GIF or BMP file")
    group.add_argument(
        "--like",
        type=passage,
        metavar="FILM@TIME",
        help="what a film of the index shows at a time, or from a time to another: beach.mp4@12:30, "
        "beach.mp4@12:30-12:45. The film itself is left out",
    )


def passage(text: str) -> tuple[str, float, float | None]:
    """The type of an argument that takes a moment of a film, FILM@TIME or FILM@START-END.

    Raises:
        ArgumentTypeError: the text is something else.

    Examples:
        >>> passage("day 1/beach.mp4@12:30"), passage("me@home.mp4@90-95.5")
        (('day 1/beach.mp4', 750.0, None), ('me@home.mp4', 90.0, 95.5))
    """
    film, at, time = text.rpartition("@")
    if not at or not film:
        raise ArgumentTypeError(
            f"expected FILM@TIME, for example beach.mp4@12:30 or beach.mp4@12:30-12:45, got {text!r}"
        )
    return (film, *moment(time)) if "-" in time else (film, seconds(time), None)


def _add_filters(parser: Parser) -> None:
    group = parser.add_argument_group("filters: only videos that meet all of them are searched")
    group.add_argument(
        "--in",
        dest="folders",
        action="append",
        default=[],
        metavar="FOLDER",
        help="videos below this folder, as it stands in their names; or a pattern of names, such as 'holiday*'. "
        "Repeat it for more folders",
    )
    group.add_argument(
        "--name",
        dest="names",
        action="append",
        default=[],
        metavar="GLOB",
        help="file names of this pattern, such as '*.mkv'; repeat it for more",
    )
    group.add_argument("--after", type=date, metavar="DATE", help="files last changed on this date or later")
    group.add_argument("--before", type=date, metavar="DATE", help="files last changed before this date")
    group.add_argument("--longer", type=seconds, metavar="SECONDS", help="videos of this duration or a longer one")
    group.add_argument("--shorter", type=seconds, metavar="SECONDS", help="videos of this duration or a shorter one")


def run(args: Namespace) -> None:
    """Searches, prints the results, and writes and opens what was asked for."""
    sentences, piped = _sentences(args), _piped(args)
    load("prvr.search")
    where = _filter(args)
    if (args.exact or args.force) and args.save is None:
        raise CommandError("--exact and --force are for clips: name their folder with --save FOLDER.")
    with opened_index(args) as index:
        results = index.search_many(
            _queries(args, sentences, index),
            args.top,
            moments=args.moments,
            where=where,
            min_confidence=args.min_confidence,
        )
    if where is not None and results[0].videos and not any(result.hits for result in results):
        logger.warning("none of %d videos meets the filters", results[0].videos)
    if not piped:
        _show(stdout(), results)
    say = partial(print, file=sys.stderr if piped else sys.stdout, flush=True)
    _write(args, results, say)
    if args.paths or args.print0:
        _print_paths(results, b"\0" if args.print0 else b"\n")
    if args.save is not None:
        _save(args, results, say)
    if args.open:
        _open(results, say)


def _filter(args: Namespace) -> "SearchFilter | None":
    """The filter of the command line; None if every video is searched."""
    from prvr.search import SearchFilter

    found = SearchFilter(args.folders, args.names, args.after, args.before, args.longer, args.shorter)
    return None if found == SearchFilter([], []) else found


def _piped(args: Namespace) -> bool:
    """Whether standard output holds one result for a program, and nothing for people.

    Raises:
        CommandError: two results are to go there.
    """
    wanted = [f"--{name} -" for name in ("json", "csv", "html") if getattr(args, name) == "-"]
    wanted += ["--print0" if args.print0 else "--paths"] if args.paths or args.print0 else []
    if len(wanted) > 1:
        raise CommandError(f"{' and '.join(wanted)}: only one of them can be standard output. Name files for the rest.")
    return bool(wanted)


def _queries(args: Namespace, sentences: "Sequence[str | None]", index: "VideoIndex") -> "list[Query]":
    """A query for each sentence, with what else is asked for; None is no sentence."""
    from prvr.search import Query

    like = args.like and (_film(args.like[0], index), *args.like[1:])
    return [Query([*([] if one is None else [one]), *args.more], args.without, args.image, like) for one in sentences]


def _film(name: str, index: "VideoIndex") -> str:
    """The id of the film that is named by its id or its path; other names as they are, for the index to refuse."""
    if name in index or not Path(name).expanduser().exists():
        return name
    path = Path(name).expanduser()
    names = {str(path.absolute()), str(path.resolve())}
    return next((video for video in index.video_ids if index.video(video).path in names), name)


def _sentences(args: Namespace) -> list[str | None]:
    other = bool(args.more or args.image is not None or args.like is not None)
    if (args.query is None) == (args.file is None) and (args.query is not None or not other):
        raise CommandError(
            'search takes a sentence, or --file with one a line: prvr search FOLDER "a dog catches a ball". '
            "--image PICTURE and --like FILM@TIME need none."
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
    return [*queries]


def _show(console: Console, results: "Sequence[SearchResult]") -> None:
    from prvr.search.output import result_table

    plain = "utf" not in console.encoding.lower()
    for number, result in enumerate(results):
        if number:
            console.print()
        console.print(result_table(result, width=console.width, plain=plain))


def _write(args: Namespace, results: "Sequence[SearchResult]", say: Callable[[str], None]) -> None:
    from prvr.search.output import write_csv, write_html, write_json

    for path, write in ((args.json, write_json), (args.csv, write_csv), (args.html, write_html)):
        if path is not None:
            write(path, results)
            if path != "-":
                say(f"{path}: written")


def _print_paths(results: "Sequence[SearchResult]", end: bytes) -> None:
    """Writes the path of each video found to standard output, once, as the bytes that the file system has."""
    from prvr.search.output.files import write_stdout

    paths = dict.fromkeys(hit.video.path for result in results for hit in result.hits)
    write_stdout(b"".join(os.fsencode(path) + end for path in paths))


def _save(args: Namespace, results: "Sequence[SearchResult]", say: Callable[[str], None]) -> None:
    """Writes the best moment of each hit into a folder; a film that cannot be read is named, and the others go on."""
    from prvr.cli.clip import told
    from prvr.video import VideoError, clip_name, write_clip

    hits = [(n, rank, hit) for n, result in enumerate(results, 1) for rank, hit in enumerate(result.hits, 1)]
    failed: VideoError | None = None
    written = 0
    for number, rank, hit in hits:
        place = f"{rank:02}" if len(results) == 1 else f"{number:02}-{rank:02}"
        target = Path(args.save) / f"{place} {clip_name(hit.video.path, hit.start, hit.end)}"
        try:
            clip = write_clip(hit.video.path, hit.start, hit.end, target, exact=args.exact, force=args.force)
        except VideoError as error:
            failed = error
            logger.warning("no clip: %s", printable(str(error)))
        else:
            written += 1
            say(told(clip, hit.start, args.exact))
    if failed is not None and not written:
        raise CommandError(f"--save {args.save}: no clip could be made of {len(hits)} videos found.")


def _open(results: "Sequence[SearchResult]", say: Callable[[str], None]) -> None:
    """Opens the best video of the first sentence that has one."""
    from prvr.cli.player import open_film

    best = next((result.hits[0] for result in results if result.hits), None)
    if best is None:
        raise CommandError("--open: no video was found, so there is none to open.")
    say(printable(open_film(Path(best.video.path), best.start)))
