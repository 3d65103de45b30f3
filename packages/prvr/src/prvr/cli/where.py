"""`prvr where`, and the options that `prvr search` and `prvr serve` share: a folder of videos, or an index."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from prvr.cli.console import CommandError, progress_bar, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import VIDEOS, Device, Download, app

if TYPE_CHECKING:
    from prvr.search import Library, LibraryReport, VideoIndex

logger = logging.getLogger(__name__)
T = TypeVar("T")
_SHOWN = 5  # videos that are named in a message

Folder = Annotated[Path, Parameter(help="a folder of videos, or an index made by `prvr index add`")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LibraryOptions:
    """The options of a command that searches a folder of videos or an index.

    Args:
        encoder: for a folder: a CLIP, SigLIP or another joint model, by its name on the Hugging Face hub or its folder;
            `toy` for the toy corpus; or your own encoder, as MODULE:CLASS or by the short name of an installed one. For
            an index: the new folder of the encoder of the sentences, if it was moved, or MODULE:CLASS
        model: for a folder: a trained model or pipeline, or `toy-world`, which ships with prvr for the toy corpus
            (default: the encoder alone, zero-shot)
        no_update: for a folder: search the saved index without looking for changes
        backend: the search backend: exact, faiss, milvus or milvus:ADDRESS; auto chooses by size
    """

    encoder: Annotated[str | None, Parameter(metavar="NAME")] = None
    model: Annotated[str | None, Parameter(metavar="NAME")] = None
    no_update: bool = False
    download: Download = False
    backend: Annotated[str, Parameter(metavar="NAME")] = "auto"
    device: Device = "auto"


@contextmanager
def opened_index(folder: Path, args: LibraryOptions) -> Iterator["VideoIndex"]:
    """The index that a command searches; the library of a folder of videos is updated first.

    Raises:
        CommandError: options that only apply to a folder of videos.
        prvr.PrvrError: as `prvr.search.Library.update` and `prvr.search.VideoIndex.open`.
    """
    from prvr.search import Library, VideoIndex
    from prvr.video import open_featurizer

    folder, device = folder.expanduser(), device_of(args.device)
    if (folder / "index.json").exists():
        if args.model is not None or args.no_update:
            raise CommandError(
                f"{folder} is an index; --model and --no-update can only be used with a folder of videos."
            )
        text, name = None, args.encoder
        if name is not None:
            text = with_consent(lambda download: open_featurizer(name, device, download=download), args.download)
        with VideoIndex.open(folder, device=device, text=text, backend=args.backend) as index:
            yield index
        return

    def open_library(download: bool) -> Library:
        model = {} if args.model is None else {"model": args.model}
        library = Library(folder, encoder=args.encoder, device=device, download=download, backend=args.backend, **model)
        if not args.no_update:
            _update(library)
        return library

    with with_consent(open_library, args.download) as library:
        yield library.index


def with_consent(open_: Callable[[bool], T], download: bool) -> T:
    """The result of a function that may have to download a model; asks for confirmation in a terminal.

    Args:
        open_: called with whether downloads are allowed.
        download: whether they were allowed on the command line.

    Raises:
        CommandError: there is no terminal.
        prvr.video.DownloadNeeded: the answer was no, or the name may be misspelt.
    """
    from prvr.video import DownloadNeeded, HubUnreachable, download_size

    try:
        return open_(download)
    except DownloadNeeded as needed:
        if needed.close:
            raise
        try:
            size = f"{download_size(needed.name) / 1e6:,.0f} MB"
        except HubUnreachable as error:
            size = f"size unknown: the hub cannot be reached ({error.reason})"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandError(
                f"prvr needs an encoder once: {needed.name}, {size}. Run again with --download, or --encoder FOLDER."
            ) from needed
        from rich.console import Console
        from rich.prompt import Confirm

        question = f"{needed.name} is not on this computer. Download it from the Hugging Face hub ({size})?"
        if not Confirm.ask(question, console=Console(stderr=True), default=False):
            raise
        return open_(True)


@app.command(name="where", group=VIDEOS)
def run(folder: Path, /) -> None:
    """Show where a folder's library is stored.

    Show where the features and the index of a folder of videos are stored, which encoder was used, and which videos
    cannot be read. Delete that location to remove the library; your videos are not changed.

    Args:
        folder: a folder of videos
    """
    from rich.table import Table
    from rich.text import Text

    from prvr.reading import printable
    from prvr.search import Library

    library = Library(folder)
    console, size = stdout(), sum(path.stat().st_size for path in library.state.rglob("*") if path.is_file())
    table = Table(show_header=False)
    rows = {"stored in": str(library.state), "size": f"{size / 1e6:,.1f} MB"}
    if library.place is None:
        rows["videos"] = "none indexed yet; prvr search creates the index"
    else:
        info = library.index.info()
        encoder = library.index.source.manifest.encoder.encoder
        rows |= {"videos": f"{info.videos} ({info.seconds / 3600:.2f} hours)", "encoder": str(encoder)}
    for name, value in rows.items():
        table.add_row(name, Text(printable(value), overflow="fold"))
    console.print(table)
    for file in library.unreadable:
        console.print(Text(printable(f"cannot be read: {file.id}: {file.reason}. {file.remedy}")))


def _update(library: "Library") -> None:
    from prvr.search import LibraryBusy

    try:
        with progress_bar("looking for videos", "bytes") as bar:
            report = library.update(bar)
    except LibraryBusy as busy:
        if library.place is None:
            raise
        logger.warning("%s Using the saved index.", busy)
        return
    _report_changes(library, report)


def _report_changes(library: "Library", report: "LibraryReport") -> None:
    """Logs what has changed since the last update, and which videos cannot be read."""
    if report.away:
        logger.warning("%s: offline; using the saved index.", library.folder)
        return
    changes = {"encoded": report.encoded, "renamed, moved or copied": report.reused, "removed": report.forgotten}
    counts = [f"{len(videos)} {change}" for change, videos in changes.items() if videos]
    if counts:
        logger.info("videos: %s", ", ".join(counts))
    if report.unreadable:
        names = ", ".join(file.id for file in report.unreadable[:_SHOWN])
        more = ", ..." if len(report.unreadable) > _SHOWN else ""
        count = "1 video" if len(report.unreadable) == 1 else f"{len(report.unreadable)} videos"
        logger.warning("%s cannot be read (%s%s); prvr where %s shows why", count, names, more, library.folder)
