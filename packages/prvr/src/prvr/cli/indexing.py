"""`prvr index add | update | remove | info | verify`: an index of your own videos."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table

from prvr.cli.console import CommandError, progress_bar, show_next, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import VIDEOS, Device, Stages, Store, app, parsed_by
from prvr.reading import printable

if TYPE_CHECKING:
    from prvr.search import IndexReport, VideoIndex
    from prvr.video import TextFeaturizer


_index = App(
    name="index",
    group=VIDEOS,
    help="Create and maintain an index of your own videos.\n\nCreate an index of videos that can be searched by "
    "sentences, keep it up to date with a store, and check it.",
)
app.command(_index)
_Index = Annotated[Path, Parameter(metavar="INDEX", help="the folder of the index")]
_Text = Annotated[
    str | None,
    Parameter(
        metavar="ENCODER",
        help="the encoder of the sentences, by its name, folder or MODULE:CLASS (default: that of the index, or for a "
        "new index that of the videos)",
    ),
]


def _window(text: str) -> float | Literal["shots"]:
    return "shots" if text == "shots" else float(text)


_Window = Annotated[float | Literal["shots"], parsed_by(_window, "SECONDS")]


@_index.command
def add(
    index: _Index,
    /,
    *,
    store: Store,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
    stage: Stages = [],
    dtype: Literal["float16", "int8", "float32"] | None = None,
    window: _Window | None = None,
    stride: Annotated[float | None, Parameter(metavar="SECONDS")] = None,
    text: _Text = None,
    device: Device = "auto",
) -> None:
    """Add the videos of a store to an index.

    Add the videos of STORE that are not yet in INDEX; if INDEX does not exist, create it, with a copy of the model. Run
    it again to continue after an interruption.

    Args:
        model: for a new index: a run of `prvr train`, a folder written by save_pretrained, a pipeline (a folder or a
            YAML file), `zero-shot` for the encoder alone, or `toy-world`, which ships with prvr for the toy corpus
        dtype: for a new index: the type of the vectors on disk (default: float16)
        window: for a new index: split longer videos into windows of this length (default: 120; 0: do not split;
            `shots`: split every video at its shot boundaries)
        stride: for a new index: the time between the starts of windows (default: half the window)
    """
    from prvr.search import VideoIndex, open_model
    from prvr.systems import parse_stage
    from prvr.video import VideoStore

    folder, features = index.expanduser(), VideoStore(store)
    options = {"model": model, "stage": stage or None, "dtype": dtype, "window": window, "stride": stride}
    chosen = [f"--{name}" for name, value in options.items() if value is not None]
    exists, torch_device = (folder / "index.json").exists(), device_of(device)
    if exists and chosen:
        raise CommandError(
            f"{folder}: already exists, and {', '.join(chosen)} can only be used for a new index. Remove the option, "
            "or name another folder."
        )
    if exists:
        opened = VideoIndex.open(folder, device=torch_device, text=_featurizer(text, device))
    elif model is None:
        raise CommandError(
            f"{folder}: index not found; pass --model to create it: a run of `prvr train`, or zero-shot for the "
            "encoder alone."
        )
    else:
        length = 120.0 if window is None else window or None
        stride = length / 2 if stride is None and isinstance(length, float) else stride
        stages = [parse_stage(name) for name in stage]
        system = open_model(model, features.header, torch_device, _featurizer(text, device), stages)
        opened = VideoIndex.create(
            folder, system, features.header, dtype=dtype or "float16", window=length, stride=stride
        )
    with opened, progress_bar("embedding") as bar:
        report = opened.add(features, lambda video, done, total: bar(done, total, video))
    _show(opened, report)


@_index.command
def update(index: _Index, /, *, store: Store, text: _Text = None, device: Device = "auto") -> None:
    """Bring an index up to date with a store.

    Add the new videos of STORE to INDEX, embed changed or moved files again, and remove the videos that are no longer
    in STORE.
    """
    from prvr.search import VideoIndex
    from prvr.video import VideoStore

    features = VideoStore(store)
    with (
        VideoIndex.open(index, device=device_of(device), text=_featurizer(text, device)) as opened,
        progress_bar("embedding") as bar,
    ):
        report = opened.update(features, lambda video, done, total: bar(done, total, video))
    _show(opened, report)


@_index.command
def remove(index: _Index, /, *videos: Annotated[str, Parameter(name="VIDEO", required=True)]) -> None:
    """Remove videos from an index.

    Remove all the named videos from INDEX, or none if one of them is unknown.

    Args:
        videos: ids, as `prvr index info INDEX --videos` lists them
    """
    from prvr.search import VideoIndex

    with VideoIndex.open(index) as opened:
        _show(opened, opened.remove(videos))


@_index.command(name="info")
def run_info(index: _Index, /, *, videos: bool = False) -> None:
    """Show the contents and the model of an index.

    Args:
        videos: also list every video
    """
    from prvr.search import VideoIndex

    with VideoIndex.open(index) as opened:
        console, info, manifest = stdout(), opened.info(), opened.source.manifest
        table = Table(show_header=False, title=printable(str(opened.folder)), title_justify="left")
        split = (
            f"{manifest.window:g} s, every {manifest.stride:g} s" if manifest.stride else manifest.window or "not split"
        )
        for name, value in (
            ("videos", f"{info.videos} ({info.seconds / 3600:.2f} hours)"),
            ("windows", f"{info.windows} ({split})"),
            ("vectors", f"{info.clips} clips, {info.frames} frames, {manifest.dim} wide, {manifest.dtype}"),
            ("size", f"{info.bytes / 1e6:.1f} MB, {info.bytes_per_video:.0f} bytes per video"),
            ("segments", f"{info.segments} ({info.removed} removed videos not yet deleted)"),
            ("model", str(manifest.model)),
            ("encoder", f"{manifest.encoder.encoder}, {manifest.encoder.rate:g} frames per second"),
        ):
            table.add_row(name, printable(value))
        console.print(table)
        if videos:
            listing = Table("video", "seconds", "windows", "file")
            for video in map(opened.video, opened.video_ids):
                windows = str(opened.source.windows_of(video.id))
                listing.add_row(printable(video.id), f"{video.duration:.1f}", windows, printable(video.path))
            console.print(listing)


@_index.command
def verify(index: _Index, /) -> int:
    """Check an index for damage.

    Read all of INDEX and compare hashes. The exit code is 1 if anything is damaged.
    """
    from prvr.search import verify_index

    problems = verify_index(index)
    for problem in problems:
        print(printable(problem))
    if problems:
        print(f"Problems found: {len(problems)}. Restore these files from a backup, or rebuild the index.")
        return 1
    print(f"{printable(str(index))}: no problems found")
    return 0


def _featurizer(name: str | None, device: str) -> "TextFeaturizer | None":
    """The encoder of the sentences, if one is named."""
    from prvr.video import open_featurizer

    return None if name is None else open_featurizer(name, device_of(device))


def _show(index: "VideoIndex", report: "IndexReport") -> None:
    """Prints what was added, changed and removed."""
    console = stdout()
    table = Table("", "videos", title=printable(str(index.folder)), title_justify="left")
    counts = {"added": report.added, "embedded again": report.changed, "removed": report.removed}
    counts |= {"unchanged": report.unchanged, "changed since, not updated": report.stale}
    for name, videos in counts.items():
        if videos or name in ("added", "unchanged"):
            table.add_row(name, str(len(videos)))
    table.add_section()
    table.add_row("in the index", str(len(index)))
    console.print(table)
    if report.stale:
        print("Run `prvr index update` to embed changed videos again.")
    if len(index):
        show_next("prvr", "search", index.folder, "a person opens the fridge")
