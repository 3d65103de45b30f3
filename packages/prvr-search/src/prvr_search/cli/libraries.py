"""`prvr library` and `prvr export`, and the options that every command on a folder of videos shares."""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from prvr.cli.console import CommandError, Progress, load, progress_bar, show_next, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import Device, app, import_parts, parsed_by
from prvr.errors import DataError
from prvr.reading import printable
from prvr_search.cli.clip import VIDEOS, Name, Place

if TYPE_CHECKING:
    from prvr.encoders import FeatureSpec
    from prvr_search import Library, VideoIndex
    from prvr_search.store.encoding import Update

logger = logging.getLogger(__name__)
T = TypeVar("T")
_SHOWN = 5  # videos that are named in a message

Folder = Annotated[Path, Parameter(help="a folder of videos")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LibraryOptions:
    """The options of a command on a folder of videos.

    Args:
        encoder: a CLIP, SigLIP or another joint model, by its name on the Hugging Face hub or its folder; `toy` for the
            toy corpus; or your own encoder, as MODULE:CLASS or by its entry point (default: the folder's last encoder)
        exclude: skip files and folders whose name or path matches this pattern; can be repeated
        library: the folder of the library (default: prvr/library in your data folder)
        rate: frames per second to encode (default: the folder's last rate, or 2)
        download: download missing models from the Hugging Face hub without asking for confirmation
    """

    encoder: Name = None
    exclude: Annotated[list[str], Parameter(metavar="GLOB")] = field(default_factory=list)
    library: Place = None
    rate: float | None = None
    download: bool = False
    device: Device = "auto"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchOptions(LibraryOptions):
    """The options of a command that searches a folder of videos.

    Args:
        model: a trained retriever; `toy-world`, which ships with prvr for the toy corpus; `zero-shot`, the
            encoder alone, by frames and their means; `training-free`, the same by moments; or `taught`, zero-shot
            with the map of prvr teach (default: taught if significantly better, else zero-shot)
        no_update: search the encoded videos without looking for new ones
        backend: the search backend: exact, milvus, or milvus:ADDRESS for a server; auto is exact
    """

    model: Name = None
    no_update: bool = False
    backend: Annotated[str, Parameter(metavar="NAME")] = "auto"


def opened_library(
    folder: Path,
    args: LibraryOptions,
    *,
    update: bool,
    prepare: bool = False,
    remember: bool = True,
    lines_alone: bool = False,
) -> "Library":
    """The library of a folder, brought up to date, or its lines of subtitles alone, or at least with an encoder.

    A model that is missing is downloaded, if the user agrees.

    Raises:
        CommandError: a model is missing, and there is no terminal to ask for confirmation.
        prvr.PrvrError: as `prvr_search.Library.update`; `prvr.encoders.DownloadNeeded` if the answer was no.
    """
    from prvr_search import Library

    options: dict[str, Any] = vars(args) | {"home": args.library, "device": device_of(args.device)}
    for name in {"library", "download", "no_update"} & options.keys():
        del options[name]

    def opened(download: bool) -> Library:
        library = Library(folder, download=download, **options)
        library.remembers = remember
        if prepare:
            library.prepare()
        if update:
            act = partial(library.update, lines_only=lines_alone)
            _reported(library.folder, act, "reading" if lines_alone else "encoding")
        return library

    return _with_consent(opened, args.download)


def _with_consent(act: Callable[..., T], download: bool) -> T:
    """What a function gives that takes `download`, whether a model may be; it is asked for once one is missing.

    Raises:
        CommandError: there is no terminal to ask.
        prvr.encoders.DownloadNeeded: the answer was no, or the name may be misspelt.
    """
    from prvr.encoders import DownloadNeeded, HubUnreachable, download_size

    try:
        return act(download=download)
    except DownloadNeeded as needed:
        if needed.close:
            raise
        try:
            size = f"{download_size(needed.name) / 1e6:,.0f} MB"
        except HubUnreachable as error:
            size = f"size unknown: the hub cannot be reached ({error.reason})"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandError(
                f"prvr needs a model once: {needed.name}, {size}. Run again with --download, or name the folder of one."
            ) from needed
        from rich.console import Console
        from rich.prompt import Confirm

        question = f"{needed.name} is not on this computer. Download it from the Hugging Face hub ({size})?"
        if not Confirm.ask(question, console=Console(stderr=True), default=False):
            raise
    return act(download=True)


def opened_libraries(
    stack: ExitStack, folders: Sequence[Path], args: SearchOptions, *, lines_alone: bool
) -> list["Library"]:
    """The libraries of several folders, open and up to date; one that is new gets the encoder of the first.

    Raises:
        CommandError, prvr.PrvrError: as `opened_library`.
    """
    from prvr_search import Library

    opened: list[Library] = []
    for folder in folders:
        own, first = args, opened[0].spec if opened else None
        if first is not None and args.encoder is None and Library(folder, home=args.library).spec is None:
            own = replace(args, encoder=first.encoder.name)
        opening = opened_library(folder, own, update=not args.no_update, lines_alone=lines_alone)
        opened.append(stack.enter_context(opening))
    return opened


def joined(library: "Library", others: "Sequence[Library]") -> "VideoIndex":
    """The index of a library, with the videos of others in it; their ids begin with the name of their folder.

    Raises:
        CommandError: they have features of different encoders.
        DataError: nothing is encoded.
    """
    from prvr.encoders import VideoFeatures
    from prvr_search.store.features import encoder_key

    index = library.index
    if not others:
        return index
    own = library.features()
    entries = dict(own.entries)
    for other in others:
        features = other.features()
        if encoder_key(features.spec) != encoder_key(own.spec):
            raise CommandError(
                f"{other.folder}: encoded with {_encoder(features.spec)}; {library.folder}: with {_encoder(own.spec)}. "
                "Pass --encoder and --rate for both."
            )
        paths = {entry.path for entry in entries.values()}
        for name, entry in features.entries.items():
            if entry.path in paths:  # one folder lies in the other
                continue
            named = f"{other.folder.name}/{name}"
            named = f"{other.folder}/{name}" if named in entries else named
            entries[named] = replace(entry, id=named)
    rows_of = partial(library.store.rows_of, encoder_key(own.spec))  # all lie in one place
    index.update(VideoFeatures(own.spec, entries, rows_of, library.folder))
    return index


def _reported(
    folder: Path, act: "Callable[[Progress], Update]", title: str = "encoding", done: str = "encoded"
) -> bool:
    """Updates a folder behind a progress bar, logs what was done and could not be; whether the library can be written.

    Args:
        folder: the folder, for messages.
        act: does it, and calls what it is given with how much is done.
        title, done: what is done to the videos, and what they are then.
    """
    with progress_bar(title, "bytes") as bar:
        report = act(bar)
    if not report.listing.videos:
        logger.warning("%s: offline; searching its stored features", folder)
    for path, reason in report.unlisted.items():
        logger.warning("%s: cannot be listed (%s); skipped", path, reason)
    if report.problem:
        logger.warning("%s", report.problem)
    elif report.waiting:
        logger.warning("%s being %s by another process", _videos(len(report.waiting)), done)
    changes = {done: report.encoded, "renamed, moved or copied": report.moved}
    counts = [f"{len(videos)} {change}" for change, videos in changes.items() if videos]
    if counts:
        logger.info("videos: %s", ", ".join(counts))
    is_told = report.searchable or done != "encoded"  # a search says itself why nothing can be searched
    new = [video for video in report.unreadable if video.is_new and is_told]
    for video in new[:_SHOWN]:
        logger.warning("%s: %s. %s", video.id, video.reason, video.remedy)
    if more := new[_SHOWN:]:
        logger.warning("%s more cannot be read; prvr library %s shows why", _videos(len(more)), folder)
    return not report.problem


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    return int(part), int(parts)


def _is_module(name: str) -> bool:
    """Whether `--import` names a Python module, and no folder."""
    root = name.partition(".")[0]
    may_be = root.isidentifier() and not Path(name).is_dir()
    return may_be and (Path(f"{root}.py").is_file() or find_spec(root) is not None)


@app.command(name="library", group=VIDEOS)
def run(
    folder: Folder,
    /,
    *,
    args: LibraryOptions = LibraryOptions(),
    update: bool = False,
    recognise: Annotated[list[str], Parameter(metavar="NAME")] = [],
    shard: Annotated[tuple[int, int] | None, parsed_by(_shard, "I/N")] = None,
    verify: bool = False,
    prune: bool = False,
    import_: Annotated[list[str], Parameter(name="--import", metavar="LIBRARY")] = [],
    move: Place = None,
    drop: Name = None,
) -> int:
    """Show or maintain the library of a folder.

    Show how many videos of FOLDER are encoded, with which encoder, how many were recognised, where the library is
    stored, and which videos cannot be read. One library in your data folder serves all folders; features are kept until
    you prune them. The exit code is 1 if the library could not be written.

    Args:
        update: encode new videos
        recognise: find what is said (`speech`, by Whisper openai/whisper-base, 0.3 GB; or `speech:MODEL`) or written
            in the pictures (`text`, by RapidOCR), or what your own recogniser gives; can be repeated
        shard: with --update: encode only part I of N, so that N computers can share the work
        verify: check the features of these videos against their hashes; the exit code is 1 if any are damaged
        prune: delete the features of videos that were removed from FOLDER; not of those on an offline disk
        import_: import the features of another library, for example from another computer; or, as with other commands,
            a Python module; can be repeated
        move: move the whole library, of all folders, to another place
        drop: delete what a recogniser, or an encoder that no folder is searched with any more, has made
    """
    if shard is not None and not update:
        raise CommandError("--shard can only be used with --update.")
    load("prvr_search.library")
    from prvr_search.store.features import encoder_key
    from prvr_search.store.upkeep import drop_encoder, import_from
    from prvr_search.store.upkeep import move as move_library

    others = [name for name in import_ if not _is_module(name)]
    import_parts(name for name in import_ if name not in others)
    is_whole = True
    with opened_library(folder, args, update=False) as library:
        for other in others:
            with library.store.in_use():
                count, skipped = import_from(library.store, Path(other))
            print(
                f"imported: {_videos(count)}"
                + (f"; {skipped:,} skipped (features missing, damaged or invalid)" if skipped else "")
            )
        if update:
            is_whole &= _reported(library.folder, partial(library.update, shard=shard or (1, 1)))
        for name in recognise:

            def recognised(download: bool, name: str = name) -> bool:
                act = partial(library.recognise, name, download=download)
                return _reported(folder, act, "recognising", "recognised")

            is_whole &= _with_consent(recognised, args.download)
        if verify:
            problems = library.verify()
            is_whole &= not problems
            for problem in problems:
                print(printable(problem))
            again = "; the next search, or --recognise, makes them again" if problems else ""
            print(f"damaged: {_videos(len(problems))}{again}")
        if prune:
            deleted, remaining = library.prune()
            unreachable = f"; {_videos(remaining)} not deleted: on an offline disk, or in a folder that cannot be read"
            print(f"pruned: {_videos(deleted)}" + (unreachable if remaining else ""))
        if drop is not None:
            deleted = drop_encoder(library.store, drop, encoder_key(library.spec))
            print(f"{drop}: features of {_videos(deleted)} deleted")
        if move is not None:
            move_library(library.store, move)
        _show(library)
    return int(not is_whole)


@app.command(name="export", group=VIDEOS)
def export(
    folder: Folder, /, *, output: Annotated[Path, Parameter(metavar="ROOT")], args: LibraryOptions = LibraryOptions()
) -> None:
    """Write the features of a folder of videos in the public layout, for training.

    Encode what is new, then write one HDF5 file of features with a row set for each video.

    Args:
        output: a new folder
    """
    from prvr.corpora.exported import export_features

    with opened_library(folder, args, update=True, remember=False) as library:
        count = export_features(library.features(), output)
    print(f"{output}: features of {_videos(count)} written")
    show_next("prvr", "convert", "captions", "CAPTIONS.csv", "--features", folder, "--output", "data")


def _show(library: "Library") -> None:
    """Prints the state of the library of a folder."""
    from rich.table import Table
    from rich.text import Text

    state = library.state()
    try:
        taught = str(library.taught() or "")
    except DataError as error:
        taught = str(error)
    table, films, counts = Table(show_header=False), state.films, state.other_features.items()
    hours, sizes = sum(film.duration for film in films) / 3600, {film.sha256: film.stamp[1] for film in films}
    rows = {
        "videos": f"{len(films)} of {state.videos} encoded ({hours:.2f} hours)",
        "missing": f"{state.missing} (features kept; delete with --prune)" if state.missing else "",
        "encoder": "" if state.spec is None else _encoder(state.spec),
        "taught": taught,
        "features": f"{sum(sizes.values()) / 1e6:,.1f} MB",
        "other encoders": "; ".join(sorted(f"{_encoder(x)}: {_videos(n)}" for x, n in counts if x.dim)),
        "recognised": "; ".join(sorted(f"{x.encoder.name}: {_videos(n)}" for x, n in counts if not x.dim)),
        "library": str(library.store.home),
        "other files": f"{state.others:,}" if state.others else "",
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(printable(value), overflow="fold"))
    stdout().print(table)
    for video in state.unreadable:
        print(printable(f"cannot be read: {video.id}: {video.reason}. {video.remedy}"))


def _encoder(spec: "FeatureSpec") -> str:
    """What features are made by, and how many of what a second has."""
    rows = "clips" if "; clips of " in spec.encoder.preprocessing else "frames"
    return f"{spec.encoder.name}, {spec.rate:g} {rows} per second"


def _videos(count: int) -> str:
    """A number of videos in words."""
    return "1 video" if count == 1 else f"{count:,} videos"
