"""`prvr convert benchmark`: a text-to-video benchmark as a corpus."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from prvr.cli.captions import corpus_folder
from prvr.cli.console import CommandError, progress_bar
from prvr.cli.folders import device_of
from prvr.cli.options import Parser, whole_number
from prvr.corpora import BENCHMARKS, Benchmark, benchmark

if TYPE_CHECKING:
    from prvr.corpora.convert import BenchmarkReport
    from prvr.data import FeatureReader


def register(convert: Parser) -> None:
    """Adds the command."""
    parser = convert.command(
        "benchmark",
        run,
        "Convert a public text-to-video benchmark into a corpus",
        "NAME --annotations DIR --features STORE --out ROOT [--text ENCODER] [OPTIONS]",
        f"Make a corpus of a text-to-video benchmark ({', '.join(BENCHMARKS)}) from its public "
        "annotation files and the features of its videos.",
    )
    parser.add_argument("name", metavar="NAME", help="the name of the benchmark")
    parser.add_argument("--annotations", required=True, metavar="DIR", help="the folder of the annotation files")
    parser.add_argument(
        "--features",
        required=True,
        metavar="STORE",
        help="the features that `prvr extract` wrote, or a folder of BigFile or feature.hdf5",
    )
    parser.add_argument("--out", required=True, metavar="ROOT", help="the folder that holds corpora")
    parser.shared("--text", help="the encoder of the captions; by default, the text side of the store's encoder")
    parser.add_argument("--collection", metavar="NAME", help="the name of the new corpus; by default, the benchmark's")
    parser.add_argument(
        "--max-words", type=whole_number, metavar="N", help="the most words of a caption; by default 32 or 64, as usual"
    )
    parser.add_argument("--allow-missing", action="store_true", help="leave out videos without features, and list them")
    parser.shared("--device")


def run(args: Namespace) -> None:
    """Writes the corpus and says how to train on it."""
    from prvr.corpora.convert import convert_benchmark
    from prvr.video import VideoStore, open_featurizer

    rules = benchmark(args.name)
    with _features(Path(args.features)) as features:
        name = args.text or (features.encoder.name if isinstance(features, VideoStore) else None)
        if name is None:
            raise CommandError(
                f"--text is missing: {args.features} is no store of `prvr extract`, so it is not known which "
                "model reads the captions. Name it, for example --text openai/clip-vit-base-patch32."
            )
        text = open_featurizer(name, device_of(args.device))
        with progress_bar(f"reading {rules.title}", args.quiet) as progress:
            report = convert_benchmark(
                args.name,
                args.annotations,
                features,
                text,
                corpus_folder(args.out, args.collection or args.name),
                max_words=args.max_words,
                allow_missing=args.allow_missing,
                progress=progress,
            )
    print(_summary(rules, report))


def _features(path: Path) -> "FeatureReader":
    from prvr.data import open_features
    from prvr.video import VideoStore
    from prvr.video.store import HEADER

    return VideoStore(path) if (path.expanduser() / HEADER).is_file() else open_features(path.expanduser())


def _summary(rules: Benchmark, report: "BenchmarkReport") -> str:
    lines = [f"{report.folder}: {rules.title}"]
    for split, videos in report.videos.items():
        missing = f", {len(report.missing[split])} missing" if split in report.missing else ""
        nothing = f", {len(report.uncaptioned[split])} without a caption" if split in report.uncaptioned else ""
        lines.append(f"  {split}: {videos:,} videos, {report.captions[split]:,} queries{missing}{nothing}")
    if report.wordless:
        lines.append(f"  left out: {report.wordless:,} captions without a letter or digit")
    if report.cut:
        lines.append(f"  cut: {report.cut:,} captions are longer than the text features may be")
    if report.missing:
        lines.append("  not the whole benchmark: missing.txt names the videos")
    root, name = report.folder.parent, report.folder.name
    lines.append(f"Train on it: prvr train --preset {rules.preset} --data-root {root} --data.collection {name}")
    return "\n".join(lines)
