"""`prvr where`, and what `prvr search` and `prvr serve` have in common: a folder of films, or an index."""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from prvr.cli.console import CommandError, progress_bar, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import Parser

if TYPE_CHECKING:
    from prvr.search import Library, LibraryReport, VideoIndex

logger = logging.getLogger(__name__)
T = TypeVar("T")
_SHOWN = 5  # films that are named in a note


def register(prvr: Parser) -> None:
    """Adds `prvr where`."""
    parser = prvr.command(
        "where",
        run_where,
        "Show what is kept of a folder of films, and where",
        "FOLDER",
        "Show where the features and the index of a folder of films are kept, which encoder made them, and which films "
        "cannot be read. Delete that folder to forget everything about these films; the films themselves stay.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="a folder of films")


def add_place(parser: Parser) -> None:
    """Adds the arguments of a command that searches a folder of films or an index."""
    parser.add_argument("place", metavar="FOLDER", help="a folder of films, or an index of `prvr index add`")
    parser.shared(
        "--encoder",
        help="for films: a CLIP, SigLIP or another joint model, by its name on the Hugging Face hub or its folder; "
        "`toy` for films that prvr has drawn; or an encoder of your own, MODULE:CLASS or the short name of an "
        "installed one. For an index: where the encoder of the sentences is now, if it was moved, or MODULE:CLASS",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="for films: a trained model or pipeline, or `toy-world`, which ships with prvr and knows films that "
        "prvr draws; by default, the encoder alone (zero-shot)",
    )
    parser.add_argument(
        "--no-update", action="store_true", help="for films: search what is known, without looking for changes"
    )
    parser.shared("--download", "--backend", "--device")


@contextmanager
def opened_index(args: Namespace) -> Iterator["VideoIndex"]:
    """The index that a command searches; the library of a folder of films is brought up to date before.

    Raises:
        CommandError: options that the place does not have.
        prvr.PrvrError: as `prvr.search.Library.update` and `prvr.search.VideoIndex.open`.
    """
    from prvr.search import Library, VideoIndex
    from prvr.video import open_featurizer

    place, device = Path(args.place).expanduser(), device_of(args.device)
    if (place / "index.json").exists():
        if args.model is not None or args.no_update:
            raise CommandError(
                f"{place}: is an index; --model and --no-update are for a folder of films. Leave them out."
            )
        text = None
        if args.encoder is not None:
            text = with_consent(
                lambda download: open_featurizer(args.encoder, device, download=download), args.download
            )
        with VideoIndex.open(place, device=device, text=text, backend=args.backend) as index:
            yield index
        return

    def brought(download: bool) -> Library:
        model = {} if args.model is None else {"model": args.model}
        library = Library(place, encoder=args.encoder, device=device, download=download, backend=args.backend, **model)
        if not args.no_update:
            _update(library, args.quiet)
        return library

    with with_consent(brought, args.download) as library:
        yield library.index


def with_consent(open_: Callable[[bool], T], download: bool) -> T:
    """What a function gives that may have to download a model; asks before, where there is somebody to be asked.

    Args:
        open_: called with whether downloads are allowed.
        download: whether they were allowed on the command line.

    Raises:
        prvr.video.DownloadNeeded: the answer was no, or nobody could be asked.
    """
    from prvr.video import DownloadNeeded, download_size

    try:
        return open_(download)
    except DownloadNeeded as needed:
        if needed.close or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        from rich.console import Console
        from rich.prompt import Confirm

        size = download_size(needed.name)
        about = "of unknown size: the hub cannot be reached" if size is None else f"{size / 1e6:,.0f} MB"
        question = f"{needed.name} is not on this computer. Download it from the Hugging Face hub ({about})?"
        if not Confirm.ask(question, console=Console(stderr=True), default=False):
            raise
        return open_(True)


def run_where(args: Namespace) -> None:
    """Prints what is kept of a folder."""
    from rich.table import Table
    from rich.text import Text

    from prvr.reading import printable
    from prvr.search import Library

    library = Library(args.folder)
    console, size = stdout(), sum(path.stat().st_size for path in library.state.rglob("*") if path.is_file())
    table = Table(show_header=False)
    rows = {"kept in": str(library.state), "size": f"{size / 1e6:,.1f} MB"}
    if library.place is None:
        rows["films"] = "nothing is known yet; prvr search makes it"
    else:
        known = library.index.info()
        encoder = library.index.source.manifest.encoder.encoder
        rows |= {"films": f"{known.videos} ({known.seconds / 3600:.2f} hours)", "encoder": str(encoder)}
    for name, value in rows.items():
        table.add_row(name, Text(printable(value), overflow="fold"))
    console.print(table)
    for one in library.unreadable:
        console.print(Text(printable(f"cannot be read: {one.id}: {one.reason}. {one.remedy}")))


def _update(library: "Library", quiet: bool) -> None:
    from prvr.search import LibraryBusy

    try:
        with progress_bar("looking for films", quiet, "bytes") as bar:
            report = library.update(bar)
    except LibraryBusy as busy:
        if library.place is None:
            raise
        logger.warning("%s Searching what is known so far.", busy)
        return
    _tell(library, report)


def _tell(library: "Library", report: "LibraryReport") -> None:
    """What has changed since the last time, and what cannot be searched."""
    if report.away:
        logger.warning("%s: away, nothing is forgotten. Searching what is known of it.", library.folder)
        return
    counts = {"encoded": report.encoded, "renamed, moved or copied": report.reused, "forgotten": report.forgotten}
    said = [f"{len(films)} {what}" for what, films in counts.items() if films]
    if said:
        logger.info("films: %s", ", ".join(said))
    if report.unreadable:
        some = ", ".join(one.id for one in report.unreadable[:_SHOWN])
        more = ", ..." if len(report.unreadable) > _SHOWN else ""
        count = "1 film" if len(report.unreadable) == 1 else f"{len(report.unreadable)} films"
        logger.warning("%s cannot be read (%s%s); prvr where %s says why", count, some, more, library.folder)
