"""`prvr extract`: features of your own videos."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prvr.cli.console import CommandError, progress_bar, show_next, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import VIDEOS, Count, Device, Download, app
from prvr.cli.where import with_consent
from prvr.reading import printable

if TYPE_CHECKING:
    from prvr.video import ExtractReport, Outcome


@app.command(name="extract", group=VIDEOS)
def run(
    *videos: Annotated[str, Parameter(name="VIDEO", required=True)],
    encoder: Annotated[str, Parameter(metavar="NAME")],
    output: Annotated[Path, Parameter(metavar="STORE")],
    rate: float = 2.0,
    batch_size: Count = 64,
    max_hours: float = 24.0,
    max_megapixels: float = 33.2,
    thorough: bool = False,
    prune: bool = False,
    download: Download = False,
    device: Device = "auto",
) -> None:
    """Extract features from your own videos.

    Decode videos at a fixed rate, encode their frames, and write the features to STORE. Run it again to continue after
    an interruption or to bring the store up to date: videos that have not changed are skipped.

    Args:
        videos: video files, and folders with video files
        encoder: a CLIP, SigLIP or another joint model on the Hugging Face hub, or a folder with one; `pixels:CLIP` for
            the pictures that a CLIP reads; `toy` for the toy corpus; or your own encoder, as MODULE:CLASS or by the
            short name of an installed one
        output: the folder of the features, new or existing
        rate: frames per second
        batch_size: frames that are encoded at once
        max_hours: refuse videos longer than this, in hours
        max_megapixels: refuse larger frames; 33.2 megapixels are 8K
        thorough: compare the contents of files even if size and time are the same
        prune: remove the videos from STORE that are not among those named here
    """
    from prvr.video import Limits, extract, forget_videos, open_encoder

    if not 0 < max_megapixels < 1e6:
        raise CommandError(f"--max-megapixels {max_megapixels}: expected a positive number, such as 33.2 (8K).")
    limits = Limits(pixels=ceil(max_megapixels * 1e6), seconds=max_hours * 3600)
    opened = with_consent(lambda allowed: open_encoder(encoder, device_of(device), download=allowed), download)
    with progress_bar("extracting", "bytes") as bar:
        report = extract(
            videos,
            opened,
            output,
            rate=rate,
            batch_size=batch_size,
            limits=limits,
            thorough=thorough,
            progress=lambda video, done, total: bar(done, total, video),
        )
    console = stdout()
    _show(console, report)
    if not report.outcomes:
        raise CommandError(
            f"{' '.join(videos)}: no video files found. In a folder, files with the usual suffixes are read (.mp4, "
            ".mkv, .webm, ...). Name a file with another suffix directly."
        )
    if prune:
        removed = forget_videos(output, {outcome.id for outcome in report.outcomes})
        print(f"removed: {len(removed)} videos that no longer exist")
    if len(report.failed) == len(report.outcomes):
        raise CommandError(f"None of the {len(report.outcomes)} files could be read. The table above says why.")
    if opened.joint_dim:
        index = report.folder.with_name(f"{report.folder.name}-index")
        show_next("prvr", "index", "add", index, "--store", report.folder, "--model", "zero-shot")
    else:  # no sentence can be compared with such features: a model has to be trained on them
        show_next("prvr", "convert", "captions", "CAPTIONS.csv", "--features", report.folder, "--output", "data")


def _show(console: Console, report: "ExtractReport") -> None:
    """Prints the counts, then every file that failed and every warning."""
    counts = Table("", "videos", "frames", "hours", title=printable(str(report.folder)), title_justify="left")
    done = {"extracted": report.extracted, "moved or copied": report.reused}
    for name, outcomes in (done | {"unchanged": report.unchanged, "failed": report.failed}).items():
        if not outcomes and name == "moved or copied":
            continue
        entries = [outcome.entry for outcome in outcomes if outcome.entry is not None]
        frames, hours = sum(e.frames for e in entries), sum(e.duration for e in entries) / 3600
        counts.add_row(name, str(len(outcomes)), *((str(frames), f"{hours:.2f}") if name != "failed" else ("", "")))
    console.print(counts)
    for title, rows in (
        ("failed", [(outcome, f"{outcome.reason}. {outcome.remedy}") for outcome in report.failed]),
        (
            "warnings",
            [(outcome, text) for outcome in report.outcomes if outcome.entry for text in outcome.entry.warnings],
        ),
    ):
        if rows:
            console.print(_table(title, rows))


def _table(title: str, rows: "Sequence[tuple[Outcome, str]]") -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for outcome, text in rows:
        table.add_row(Text(printable(outcome.id), overflow="fold"), Text(printable(text), overflow="fold"))
    return table
