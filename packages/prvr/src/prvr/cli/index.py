"""`prvr index add | update | remove | info | verify`: an index of one's own videos."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from prvr.cli.console import CommandError, device_of, leaf, stdout

if TYPE_CHECKING:
    from prvr.search import IndexReport, VideoIndex

NAME = "index"


def register(subcommands: Any) -> dict[tuple[str, ...], Callable[[Namespace], int | None]]:
    """Adds the command."""
    parser = ArgumentParser(
        exit_on_error=False,
        usage="prvr index add | update | remove | info | verify INDEX ...",
        description="Vectors of videos, to be searched by sentences: make them, keep them in step, check them.",
    )
    subcommands.add_subcommand(NAME, parser, help="make and keep an index of one's own videos")
    parts = parser.add_subcommands(dest="command", metavar="COMMAND")
    parts.add_subcommand("add", _add_parser(), help="put videos of a store into an index")
    parts.add_subcommand("update", _update_parser(), help="bring an index in step with a store")
    parts.add_subcommand("remove", _remove_parser(), help="take videos out of an index")
    parts.add_subcommand("info", _info_parser(), help="what is in an index")
    parts.add_subcommand("verify", _verify_parser(), help="read all of an index and compare hashes")
    runs = {"add": run_add, "update": run_update, "remove": run_remove, "info": run_info, "verify": run_verify}
    return {(NAME, command): run for command, run in runs.items()}


def _add_parser() -> ArgumentParser:
    parser = leaf(
        "prvr index add INDEX --store STORE [--model RUN|zero-shot] [--dtype float16] [--window 120] [--stride 60]",
        "Put the videos of STORE that are not in INDEX into it; make INDEX, with a copy of the model, if there is "
        "none. Run it again to go on after an interruption.",
    )
    _add_folders(parser)
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="of a new index: a run of `prvr train`, a folder of save_pretrained, or zero-shot, the encoder alone",
    )
    parser.add_argument("--text", metavar="NAME", help="of a new index: what reads queries (default: the encoder)")
    parser.add_argument(
        "--dtype", choices=["float16", "int8", "float32"], help="of a new index: of vectors on disk (default: float16)"
    )
    parser.add_argument(
        "--window", type=float, help="of a new index: longer videos are cut to so many seconds (120; 0: not cut)"
    )
    parser.add_argument("--stride", type=float, help="of a new index: seconds between starts (half the window)")
    return parser


def _update_parser() -> ArgumentParser:
    parser = leaf(
        "prvr index update INDEX --store STORE",
        "Put new videos of STORE into INDEX, embed those whose file has changed or moved again, and take out those "
        "that STORE has not.",
    )
    _add_folders(parser)
    return parser


def _remove_parser() -> ArgumentParser:
    parser = leaf("prvr index remove INDEX VIDEO...", "Take videos out of INDEX; all of those that are named, or none.")
    parser.add_argument("index", metavar="INDEX", help="folder of the index")
    parser.add_argument("videos", metavar="VIDEO", nargs="+", help="ids, as `prvr index info --videos` shows them")
    return parser


def _info_parser() -> ArgumentParser:
    parser = leaf("prvr index info INDEX [--videos]", "What is in INDEX, and what made it.")
    parser.add_argument("index", metavar="INDEX", help="folder of the index")
    parser.add_argument("--videos", action="store_true", help="every video too")
    return parser


def _verify_parser() -> ArgumentParser:
    parser = leaf(
        "prvr index verify INDEX", "Read all of INDEX and compare hashes. Exit code 1 where something is wrong."
    )
    parser.add_argument("index", metavar="INDEX", help="folder of the index")
    return parser


def _add_folders(parser: ArgumentParser) -> None:
    parser.add_argument("index", metavar="INDEX", help="folder of the index")
    parser.add_argument("--store", required=True, metavar="STORE", help="features, of `prvr extract`")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="where to encode")


def run_add(args: Namespace) -> None:
    """Carries it out."""
    from prvr.search import VideoIndex
    from prvr.video import VideoStore

    folder, store = Path(args.index).expanduser(), VideoStore(args.store)
    given = [name for name in ("model", "text", "dtype", "window", "stride") if args[name] is not None]
    if (folder / "index.json").exists():
        if given:
            raise CommandError(
                f"{folder}: is there already; --{', --'.join(given)} can only be chosen for a new index. Leave "
                "them out, or name another folder."
            )
        index = VideoIndex.open(folder, device=device_of(args.device))
    else:
        index = _made(folder, store, args)
    with index, _bar(args.quiet) as progress:
        report = index.add(store, progress)
    _show(index, report)


def run_update(args: Namespace) -> None:
    """Carries it out."""
    from prvr.search import VideoIndex
    from prvr.video import VideoStore

    store = VideoStore(args.store)
    with VideoIndex.open(args.index, device=device_of(args.device)) as index, _bar(args.quiet) as progress:
        report = index.update(store, progress)
    _show(index, report)


def run_remove(args: Namespace) -> None:
    """Carries it out."""
    from prvr.search import VideoIndex

    with VideoIndex.open(args.index) as index:
        _show(index, index.remove(args.videos))


def run_info(args: Namespace) -> None:
    """Carries it out."""
    from rich.table import Table

    from prvr.search import VideoIndex
    from prvr.video.gathering import printable

    with VideoIndex.open(args.index) as index:
        console, about = stdout(), index.info()
        table = Table(show_header=False, title=printable(str(index.folder)), title_justify="left")
        cut = "not cut" if about.window is None else f"{about.window:g} s, every {about.stride:g} s"
        for name, value in (
            ("videos", f"{about.videos} ({about.seconds / 3600:.2f} hours)"),
            ("windows", f"{about.windows} ({cut})"),
            ("vectors", f"{about.clips} clips, {about.frames} frames, {about.dim} wide, {about.dtype}"),
            ("size", f"{about.bytes / 1e6:.1f} MB, {about.bytes_per_video:.0f} bytes per video"),
            ("segments", f"{about.segments} ({about.removed} removed videos still in them)"),
            ("model", about.model),
            ("encoder", f"{about.encoder}, {about.rate:g} frames per second"),
        ):
            table.add_row(name, printable(value))
        console.print(table)
        if args.videos:
            videos = Table("video", "seconds", "windows", "file")
            for one in map(index.video, index.video_ids):
                videos.add_row(printable(one.id), f"{one.duration:.1f}", str(one.windows), printable(one.path))
            console.print(videos)


def run_verify(args: Namespace) -> int:
    """Carries it out."""
    from prvr.search import verify_index
    from prvr.video.gathering import printable

    said, console = verify_index(args.index), stdout()
    for one in said:
        console.print(printable(one), markup=False, soft_wrap=True)
    if said:
        console.print(f"{len(said)} found. Put back copies of these files, or make the index anew.", markup=False)
        return 1
    console.print(f"{printable(str(args.index))}: all is well", markup=False, soft_wrap=True)
    return 0


def _made(folder: Path, store: Any, args: Namespace) -> "VideoIndex":
    from prvr.search import VideoIndex, open_model
    from prvr.video import open_featurizer

    if args.model is None:
        raise CommandError(
            f"{folder}: is to be made. Say with which model: --model RUN, a run of `prvr train`, or --model zero-shot."
        )
    device = device_of(args.device)
    text = None if args.text is None else open_featurizer(args.text, device)
    window = 120.0 if args.window is None else args.window or None
    stride = args.stride if args.stride is not None else window and window / 2
    model = open_model(args.model, store.header, device, text)
    return VideoIndex.create(folder, model, store.header, dtype=args.dtype or "float16", window=window, stride=stride)


def _show(index: "VideoIndex", report: "IndexReport") -> None:
    """What was done, and what could not be."""
    from rich.table import Table

    from prvr.video.gathering import printable

    console = stdout()
    table = Table("", "videos", title=printable(str(index.folder)), title_justify="left")
    counts = {"added": report.added, "embedded again": report.changed, "removed": report.removed}
    counts |= {"unchanged": report.unchanged, "changed since, left": report.stale}
    for name, videos in counts.items():
        if videos or name in ("added", "unchanged"):
            table.add_row(name, str(len(videos)))
    table.add_section()
    table.add_row("in the index", str(len(index)))
    console.print(table)
    if report.stale:
        console.print("`prvr index update` embeds videos that have changed again.", markup=False)


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """How many videos are done, and the time left, on standard error; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from prvr.video.gathering import printable

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("looking", total=None)

        def report(video: str, done: int, total: int) -> None:
            progress.update(task, description=printable(video)[-40:], completed=done, total=total)

        yield report
