"""`prvr extract`: features of your own videos."""

from argparse import Namespace
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prvr.cli.console import CommandError, progress_bar, show_next, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import Parser
from prvr.cli.where import with_consent
from prvr.reading import printable

if TYPE_CHECKING:
    from prvr.video import ExtractReport, Outcome


def register(prvr: Parser) -> None:
    """Adds the command."""
    parser = prvr.command(
        "extract",
        run,
        "Extract features from your own videos",
        "VIDEO... --encoder NAME --out STORE [OPTIONS]",
        "Decode videos at a fixed rate, encode their frames, and write the features to STORE. Run it again to continue "
        "after an interruption or to bring the store up to date: videos that have not changed are skipped.",
    )
    parser.add_argument("videos", metavar="VIDEO", nargs="+", help="video files, and folders that hold some")
    parser.add_argument(
        "--encoder",
        required=True,
        metavar="NAME",
        help="a CLIP, SigLIP or another joint model on the Hugging Face hub, a folder with one, `pixels:CLIP` for the "
        "pictures that a CLIP reads, `toy`, the small encoder of prvr's synthetic videos, or an encoder of your "
        "own: MODULE:CLASS, or the short name of an installed one",
    )
    parser.add_argument("--out", required=True, metavar="STORE", help="the folder of the features, new or not")
    parser.option("--rate", default=2.0, help="frames per second")
    parser.option("--batch-size", metavar="N", default=64, help="frames that are encoded at once")
    parser.option("--max-hours", metavar="H", default=24.0, help="refuse videos longer than this, in hours")
    parser.option("--max-megapixels", metavar="M", default=33.2, help="refuse larger frames; 33.2 megapixels are 8K")
    parser.add_argument(
        "--thorough", action="store_true", help="compare the contents of files even if size and time are the same"
    )
    parser.add_argument(
        "--prune", action="store_true", help="forget the videos of STORE that are not among those named here"
    )
    parser.shared("--download", "--device")


def run(args: Namespace) -> None:
    """Extracts the features and reports what was done."""
    from prvr.video import Limits, extract, forget_videos, open_encoder

    if not 0 < args.max_megapixels < 1e6:
        raise CommandError(f"--max-megapixels {args.max_megapixels}: expected a positive number, such as 33.2 (8K).")
    limits = Limits(pixels=ceil(args.max_megapixels * 1e6), seconds=args.max_hours * 3600)
    device = device_of(args.device)
    encoder = with_consent(lambda download: open_encoder(args.encoder, device, download=download), args.download)
    with progress_bar("extracting", args.quiet, "bytes") as bar:
        report = extract(
            args.videos,
            encoder,
            args.out,
            rate=args.rate,
            batch_size=args.batch_size,
            limits=limits,
            thorough=args.thorough,
            progress=lambda video, done, total: bar(done, total, video),
        )
    console = stdout()
    _show(console, report)
    if not report.outcomes:
        raise CommandError(
            f"{' '.join(args.videos)}: no video files there. Their names must end as usual (.mp4, .mkv, .webm, ...); "
            "a file that is named itself may end in anything."
        )
    if args.prune:
        gone = forget_videos(args.out, {one.id for one in report.outcomes})
        print(f"forgotten: {len(gone)} videos that are no longer there")
    if len(report.failed) == len(report.outcomes):
        raise CommandError(f"none of {len(report.outcomes)} files could be read; the table says why.")
    if encoder.joint_dim:
        index = report.folder.with_name(f"{report.folder.name}-index")
        show_next("prvr", "index", "add", index, "--store", report.folder, "--model", "zero-shot")
    else:  # such features lie in no space with sentences: a model has to be trained on them
        show_next("prvr", "convert", "captions", "CAPTIONS.csv", "--features", report.folder, "--out", "data")


def _show(console: Console, report: "ExtractReport") -> None:
    """What was done, then every file that failed and every warning."""
    counts = Table("", "videos", "frames", "hours", title=printable(str(report.folder)), title_justify="left")
    done = {"extracted": report.extracted, "moved or copied": report.reused}
    for name, some in (done | {"unchanged": report.unchanged, "failed": report.failed}).items():
        if not some and name == "moved or copied":
            continue
        entries = [one.entry for one in some if one.entry is not None]
        frames, hours = sum(e.frames for e in entries), sum(e.duration for e in entries) / 3600
        counts.add_row(name, str(len(some)), *((str(frames), f"{hours:.2f}") if name != "failed" else ("", "")))
    console.print(counts)
    for title, rows in (
        ("failed", [(one, f"{one.reason}. {one.remedy}") for one in report.failed]),
        ("warnings", [(one, text) for one in report.outcomes if one.entry for text in one.entry.warnings]),
    ):
        if rows:
            console.print(_table(title, rows))


def _table(title: str, rows: "Sequence[tuple[Outcome, str]]") -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for one, text in rows:
        table.add_row(Text(printable(one.id), overflow="fold"), Text(printable(text), overflow="fold"))
    return table
