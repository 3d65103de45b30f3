"""`prvr search`: the videos that match a sentence, a picture or a moment, and where in them."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from prvr.cli.console import CommandError, complain, load, printing_to_stderr, stdout
from prvr.cli.options import Count, app, parsed_by
from prvr.errors import InputError, require
from prvr.reading import read_text
from prvr_search.cli.clip import VIDEOS, Date, Exact, File, Force, Place, Seconds, Sentence, clip_line, moment, seconds
from prvr_search.cli.libraries import Folder, SearchOptions, joined, opened_libraries
from prvr_search.ranking.filters import CONDITIONS, SearchFilter

if TYPE_CHECKING:
    from prvr_search import Query, SearchResult

logger = logging.getLogger(__name__)
_MAX_QUERIES = 10_000  # of a file
_EXAMPLE = 'prvr search FOLDER "a dog catches a ball"'


def passage(text: str) -> tuple[str, float, float | None]:
    """A moment of a video, VIDEO@TIME or VIDEO@START-END.

    Raises:
        ValueError: the text is something else.

    Examples:
        >>> passage("day 1/beach.mp4@12:30"), passage("me@home.mp4@90-95.5")
        (('day 1/beach.mp4', 750.0, None), ('me@home.mp4', 90.0, 95.5))
    """
    video, at, time = text.rpartition("@")
    if not at or not video:
        raise ValueError(f"expected VIDEO@TIME, for example beach.mp4@12:30 or beach.mp4@12:30-12:45, got {text!r}")
    return (video, *moment(time)) if "-" in time else (video, seconds(time), None)


@Parameter(name="*", group=Group("Query options (combined)", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """The parts of a query other than its sentence.

    Args:
        file: a text file with one sentence per line, instead of QUERY
        more: another sentence that must match; can be repeated
        without: exclude matches for this sentence; can be repeated
        image: a picture: a JPEG, PNG, WebP, GIF or BMP file
        like: a time or an interval of a video of the folder: beach.mp4@12:30 or beach.mp4@12:30-12:45. That video is
            excluded from the results
        then: a sentence about a second moment, which follows the moment of the rest of the query
        within: with --then: maximum number of seconds between the starts of the two moments (default: 30)
        subtitles: words of the subtitles; without a sentence, only lines of subtitles are searched
    """

    file: Annotated[Path | None, Parameter(metavar="FILE")] = None
    more: Annotated[list[str], Parameter(name="--with", metavar="SENTENCE")] = field(default_factory=list)
    without: Annotated[list[str], Parameter(metavar="SENTENCE")] = field(default_factory=list)
    image: Annotated[str | None, Parameter(metavar="PICTURE")] = None
    like: Annotated[tuple[str, float, float | None] | None, parsed_by(passage, "VIDEO@TIME")] = None
    then: Sentence = ""
    within: Seconds | None = None
    subtitles: Annotated[str, Parameter(metavar="TEXT", show_default=False)] = ""

    def query(self, *sentences: str) -> "Query":
        """The query for sentences, with the other parts."""
        from prvr_search import Query

        texts, within = [*sentences, *self.more], 30.0 if self.within is None else self.within
        return Query(texts, self.without, self.image, self.like, self.subtitles, self.then, within)


Patterns = Annotated[list[str], Parameter(metavar="PATTERN")]
Time = Date | None
Duration = Seconds | None


def _filter_options() -> type:
    """A dataclass with an option for every condition of a search."""
    kinds: dict[str, Any] = {"patterns": Patterns, "time": Time, "seconds": Duration}
    options = []
    for name, condition in CONDITIONS.items():
        several = condition.kind == "patterns"
        repeat = "; can be repeated" if several else ""
        parameter = Parameter(name=f"--{condition.name}", help=condition.help + repeat)
        options.append((name, Annotated[kinds[condition.kind], parameter], () if several else None))
    module = {"__module__": __name__}  # cyclopts takes no classes of the standard library apart
    return make_dataclass("FilterOptions", options, frozen=True, kw_only=True, namespace=module)


FILTERS = Group("Filters (combined)", sort_key=3)
FilterOptions = _filter_options()
Output = Annotated[str | None, Parameter(metavar="FILE|-")]


@Parameter(name="*", group=Group("Output", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The output of a search.

    Args:
        json: write all results as JSON; - is standard output
        csv: write one CSV row per result
        html: write one HTML page with pictures
        otio: write the moments as clips of a timeline: .otio, .edl, .fcpxml or .xml (Final Cut Pro 7, Premiere)
        chapters: write the moments of the best result as chapters: .vtt, or .txt for FFmpeg
        paths: print only the paths of the results
        print0: like --paths, with a NUL after each, for `xargs -0`
        save: save the best moment of each result as a clip
    """

    json: Output = None
    csv: Output = None
    html: Output = None
    otio: File = None
    chapters: File = None
    paths: bool = False
    print0: bool = False
    save: Place = None
    exact: Exact = None
    force: Force = False


@app.command(name="search", group=VIDEOS)
def run(
    folder: Folder,
    query: str | None = None,
    /,
    *,
    also: Annotated[list[Path], Parameter(metavar="FOLDER")] = [],
    library: SearchOptions = SearchOptions(),
    parts: QueryOptions = QueryOptions(),
    filters: Annotated[FilterOptions, Parameter(name="*", group=FILTERS)] = FilterOptions(),  # pyright: ignore[reportInvalidTypeForm]
    args: OutputOptions = OutputOptions(),
    top: Annotated[Count, Parameter(name=("--top", "-k"))] = 10,
    moments: Count = 3,
) -> None:
    """Find videos and moments by a sentence, a picture or a moment.

    Find the videos of a folder that match a sentence best, and the best moment in each. New videos are encoded first;
    a video that is moved or copied is not encoded again. The time line shows how well each part of a video matches.
    The first search needs an encoder: unless one is named or found on this computer, prvr asks whether to download
    google/siglip-base-patch16-224 (0.8 GB).
    Without a query, sentences are asked for one after another, or read from standard input, until Ctrl-D.

    Args:
        query: a sentence
        also: a further folder to search, with the encoder of the first one; can be repeated
        top: number of results per sentence
        moments: maximum number of moments per video in exported files
    """
    sentences, piped = _sentences(query, parts), _piped(args)
    asks = not sentences and parts == QueryOptions(without=parts.without, then=parts.then, within=parts.within)
    if asks and args != OutputOptions():
        raise CommandError(f"The options of the output need a sentence or --file: {_EXAMPLE}.")
    load("prvr_search.library")
    from prvr_search.output import WRITERS
    from prvr_search.output.files import CHAPTERS, TIMELINES, kind_of, write_stdout

    where = SearchFilter(**vars(filters))
    if parts.within is not None and not parts.then:
        raise CommandError("--within can only be used with --then SENTENCE.")
    if (args.exact is not None or args.force) and args.save is None:
        raise CommandError("--exact and --force can only be used with --save FOLDER.")
    if args.chapters is not None:  # before anything is encoded
        kind_of(args.chapters, CHAPTERS)
    if args.otio is not None:
        kind_of(args.otio, TIMELINES)
        require("opentimelineio", "prvr-search[otio]", "--otio")
    queries = [] if asks else [*map(parts.query, sentences)] or [parts.query()]
    lines_alone = bool(queries) and not queries[0].shows and not also
    with printing_to_stderr(piped), ExitStack() as stack:
        opened, *others = opened_libraries(stack, [folder, *also], library, lines_alone=lines_alone)
        index = None if lines_alone else joined(opened, others)

        def search(queries: "Sequence[Query]") -> "Sequence[SearchResult]":
            if index is None:
                results = (opened.search(queries[0], top, moments=moments, where=where, update=False),)
            else:
                results = index.search_many(queries, top, moments=moments, where=where)
            if where and results[0].videos and not any(result.hits for result in results):
                logger.warning("no videos match the filters")
            return results

        if asks:
            _ask(lambda sentence: search([parts.query(sentence)]))
            return
        results = search(queries)
    if not piped:
        show(results)
    say = partial(print, file=sys.stderr if piped else sys.stdout, flush=True)
    for name, write in WRITERS.items():
        if (path := getattr(args, name)) is not None:
            write(path, results)
            if path != "-":
                say(f"{path}: written")
    if args.paths or args.print0:
        paths = dict.fromkeys(hit.video.path for result in results for hit in result.hits)
        write_stdout(b"".join(os.fsencode(path) + (b"\0" if args.print0 else b"\n") for path in paths))
    if args.save is not None:
        _save(args, results, say)


def _piped(args: OutputOptions) -> bool:
    """Whether standard output holds one result for a program, and no text for people.

    Raises:
        CommandError: two results would go there.
    """
    options = [f"--{name} -" for name in ("json", "csv", "html") if getattr(args, name) == "-"]
    options += ["--print0" if args.print0 else "--paths"] if args.paths or args.print0 else []
    if len(options) > 1:
        raise CommandError(
            f"Only one of {' and '.join(options)} can write to standard output. Use files for the others."
        )
    return bool(options)


def _sentences(query: str | None, args: QueryOptions) -> list[str]:
    """The sentence, or those of the file."""
    if query is not None and args.file is not None:
        raise CommandError(f"Expected either a sentence or --file, for example: {_EXAMPLE}.")
    if query is not None and (query.startswith(("/", "./", "../", "~")) or query.endswith(("/", os.sep))):
        raise CommandError(f"{query}: expected a sentence, got a folder. Search further ones with --also.")
    if args.file is None:
        return [] if query is None else [query]
    queries = [line.strip() for line in read_text(args.file.expanduser()).splitlines() if line.strip()]
    if not 1 <= len(queries) <= _MAX_QUERIES:
        raise CommandError(
            f"--file {args.file}: expected 1 to {_MAX_QUERIES:,} sentences, one per line, got {len(queries):,}."
        )
    return queries


def _ask(search: "Callable[[str], Sequence[SearchResult]]") -> None:
    """Answers each line of standard input, until its end or Ctrl-C; where that is a terminal, it can be edited."""
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        with suppress(ImportError):  # of Windows
            import_module("readline")
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # what is not UTF-8 is refused as that of an argument
    while True:
        try:
            sentence = input("search: " * asks).strip()
        except (EOFError, KeyboardInterrupt):
            print(end="\n" * asks)
            return
        try:
            if sentence:
                show(search(sentence))
        except InputError as error:
            complain(error)


def show(results: "Sequence[SearchResult]") -> None:
    """Prints a table for each query."""
    from prvr_search.output import result_table

    console = stdout()
    plain = "utf" not in console.encoding.lower()
    for number, result in enumerate(results):
        if number:
            console.print()
        console.print(result_table(result, width=console.width, plain=plain))


def _save(args: OutputOptions, results: "Sequence[SearchResult]", say: Callable[[str], None]) -> None:
    """Writes the best moment of each result into a folder; videos that cannot be read are skipped with a warning."""
    from prvr_search.films import VideoError, clip_name, write_clip

    hits = [(n, rank, hit) for n, result in enumerate(results, 1) for rank, hit in enumerate(result.hits, 1)]
    folder, written = args.save or Path(), 0
    for number, rank, hit in hits:
        place = f"{rank:02}" if len(results) == 1 else f"{number:02}-{rank:02}"
        target = folder / f"{place} {clip_name(hit.video.path, hit.start, hit.end)}"
        try:
            clip = write_clip(hit.video.path, hit.start, hit.end, target, exact=args.exact, force=args.force)
        except VideoError as error:
            logger.warning("no clip: %s", error)
        else:
            written += 1
            say(clip_line(clip, hit.start))
    if hits and not written:
        raise CommandError(f"--save {folder}: none of {len(hits)} clips could be written.")
