"""`prvr index add | update | remove | info | verify`: an index of your own videos."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from prvr.cli.console import CommandError, progress_bar, show_next, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import Parser, number, one_of
from prvr.reading import printable

if TYPE_CHECKING:
    from prvr.search import IndexReport, VideoIndex
    from prvr.video import TextFeaturizer


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group(
        "index",
        "Create and maintain an index of your own videos",
        "Create an index of videos that sentences can search, keep it up to date with a store, and check it.",
    )
    add = group.command(
        "add",
        run_add,
        "Add the videos of a store to an index",
        "INDEX --store STORE [--model RUN|zero-shot] [OPTIONS]",
        "Add the videos of STORE that are not yet in INDEX; if there is no INDEX, create it, with a copy of the model. "
        "Run it again to continue after an interruption.",
    )
    add.shared("index", "--store")
    add.add_argument(
        "--model",
        metavar="NAME",
        help="for a new index: a run of `prvr train`, a folder of save_pretrained, a pipeline (folder or YAML file), "
        "`zero-shot`, the encoder alone, or `toy-world`, which ships with prvr and knows films that prvr draws",
    )
    add.shared("--stage", help="for a new index: a stage that re-scores what was found; repeat it for more")
    add.add_argument(
        "--dtype",
        **one_of("float16", "int8", "float32"),
        help="for a new index: the type of the vectors on disk (default: float16)",
    )
    add.add_argument(
        "--window",
        type=_window,
        metavar="SECONDS",
        help="for a new index: split longer videos into windows of this length (default: 120; 0: do not split; "
        "`shots`: split every video where its picture changes)",
    )
    add.add_argument(
        "--stride",
        type=number,
        metavar="SECONDS",
        help="for a new index: the time between the starts of windows (default: half the window)",
    )
    update = group.command(
        "update",
        run_update,
        "Bring an index up to date with a store",
        "INDEX --store STORE [OPTIONS]",
        "Add the new videos of STORE to INDEX, embed changed or moved files again, and remove the videos that are no "
        "longer in STORE.",
    )
    update.shared("index", "--store")
    for parser in (add, update):
        parser.shared(
            "--text",
            help="the encoder of the sentences, by its name, folder or MODULE:CLASS; by default, that of the index, or "
            "for a new index that of the videos",
        )
        parser.shared("--device")
    remove = group.command(
        "remove",
        run_remove,
        "Remove videos from an index",
        "INDEX VIDEO...",
        "Remove videos from INDEX: all that are named, or none if one of them is unknown.",
    )
    remove.shared("index")
    remove.add_argument(
        "videos", metavar="VIDEO", nargs="+", help="ids, as `prvr index info INDEX --videos` lists them"
    )
    info = group.command("info", run_info, "Show what is in an index and which model made it", "INDEX [--videos]")
    info.shared("index")
    info.add_argument("--videos", action="store_true", help="list every video too")
    verify = group.command(
        "verify",
        run_verify,
        "Check an index for damage",
        "INDEX",
        "Read all of INDEX and compare hashes. The exit code is 1 if anything is damaged.",
    )
    verify.shared("index")


def run_add(args: Namespace) -> None:
    """Adds the videos of a store."""
    from prvr.search import VideoIndex
    from prvr.video import VideoStore

    folder, store = Path(args.index).expanduser(), VideoStore(args.store)
    given = [name for name in ("model", "stage", "dtype", "window", "stride") if getattr(args, name) not in (None, [])]
    if (folder / "index.json").exists():
        if given:
            raise CommandError(
                f"{folder}: is there already; --{', --'.join(given)} can only be chosen for a new index. Leave "
                "them out, or name another folder."
            )
        index = VideoIndex.open(folder, device=device_of(args.device), text=_text(args))
    else:
        index = _made(folder, store, args)
    with index, progress_bar("embedding", args.quiet) as bar:
        report = index.add(store, lambda video, done, total: bar(done, total, video))
    _show(index, report)


def run_update(args: Namespace) -> None:
    """Brings the index up to date."""
    from prvr.search import VideoIndex
    from prvr.video import VideoStore

    store = VideoStore(args.store)
    with (
        VideoIndex.open(args.index, device=device_of(args.device), text=_text(args)) as index,
        progress_bar("embedding", args.quiet) as bar,
    ):
        report = index.update(store, lambda video, done, total: bar(done, total, video))
    _show(index, report)


def run_remove(args: Namespace) -> None:
    """Removes videos."""
    from prvr.search import VideoIndex

    with VideoIndex.open(args.index) as index:
        _show(index, index.remove(args.videos))


def run_info(args: Namespace) -> None:
    """Prints what is in the index."""
    from prvr.search import VideoIndex

    with VideoIndex.open(args.index) as index:
        console, about, made = stdout(), index.info(), index.source.manifest
        table = Table(show_header=False, title=printable(str(index.folder)), title_justify="left")
        cut = f"{made.window:g} s, every {made.stride:g} s" if made.stride else made.window or "not cut"
        for name, value in (
            ("videos", f"{about.videos} ({about.seconds / 3600:.2f} hours)"),
            ("windows", f"{about.windows} ({cut})"),
            ("vectors", f"{about.clips} clips, {about.frames} frames, {made.dim} wide, {made.dtype}"),
            ("size", f"{about.bytes / 1e6:.1f} MB, {about.bytes_per_video:.0f} bytes per video"),
            ("segments", f"{about.segments} ({about.removed} removed videos still in them)"),
            ("model", str(made.model)),
            ("encoder", f"{made.encoder.encoder}, {made.encoder.rate:g} frames per second"),
        ):
            table.add_row(name, printable(value))
        console.print(table)
        if args.videos:
            videos = Table("video", "seconds", "windows", "file")
            for one in map(index.video, index.video_ids):
                windows = str(index.source.windows_of(one.id))
                videos.add_row(printable(one.id), f"{one.duration:.1f}", windows, printable(one.path))
            console.print(videos)


def run_verify(args: Namespace) -> int:
    """Prints the damage that was found; the exit code is 1 if there is any."""
    from prvr.search import verify_index

    problems = verify_index(args.index)
    for problem in problems:
        print(printable(problem))
    if problems:
        print(f"Problems found: {len(problems)}. Restore these files from a backup, or create the index again.")
        return 1
    print(f"{printable(str(args.index))}: no problems found")
    return 0


def _made(folder: Path, store: Any, args: Namespace) -> "VideoIndex":
    from prvr.search import VideoIndex, open_model
    from prvr.systems import parse_stage

    if args.model is None:
        raise CommandError(
            f"{folder}: is to be made. Say with which model: --model RUN, a run of `prvr train`, or --model zero-shot."
        )
    device = device_of(args.device)
    window = 120.0 if args.window is None else args.window or None
    stride = window / 2 if args.stride is None and isinstance(window, float) else args.stride
    stages = [parse_stage(stage) for stage in args.stage]
    model = open_model(args.model, store.header, device, _text(args), stages)
    return VideoIndex.create(folder, model, store.header, dtype=args.dtype or "float16", window=window, stride=stride)


def _window(text: str) -> float | str:
    return text if text == "shots" else number(text)


def _text(args: Namespace) -> "TextFeaturizer | None":
    """The encoder of the sentences that was named."""
    from prvr.video import open_featurizer

    return None if args.text is None else open_featurizer(args.text, device_of(args.device))


def _show(index: "VideoIndex", report: "IndexReport") -> None:
    """What was done, and what could not be."""
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
        print("`prvr index update` embeds videos that have changed again.")
    if len(index):
        show_next("prvr", "search", index.folder, "a person opens the fridge")
