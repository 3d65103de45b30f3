"""`prvr convert`: released checkpoints as model folders; captions and benchmarks as corpora."""

import logging
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from prvr.cli.console import CommandError, progress_bar, show_next, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import Parser, one_of, whole_number
from prvr.config import load_config
from prvr.corpora import BENCHMARKS, Benchmark, SplitShares

if TYPE_CHECKING:
    from prvr.config.registry import Entry
    from prvr.corpora.conversion import BenchmarkReport, CaptionsReport
    from prvr.data import FeatureReader
    from prvr.video import TextFeaturizer, VideoStore

_PRESETS = {(512, 48): "hybrid-toy", (512, 512): "hybrid-clip", (768, 768): "hybrid-clip-l"}
"""By the widths of frames and words."""
_PIXELS = "diffusionret-msrvtt-pixels"
"""For the pictures and token numbers of a CLIP."""

logger = logging.getLogger(__name__)


def register(prvr: Parser) -> None:
    """Adds the commands."""
    group = prvr.group(
        "convert",
        "Convert released checkpoints, captions or benchmarks",
        "Convert released checkpoints, your own captions or public benchmarks into what the other commands read.",
    )
    parser = group.command(
        "checkpoint",
        run_checkpoint,
        "Convert a checkpoint of the authors' code",
        "FILE --dataset NAME --out DIR",
        "Convert a checkpoint of HLFormer, DreamPRVR, Holmes or GMMFormer, as the authors' code saves it, into a "
        "folder that `Retriever.from_pretrained` and `prvr evaluate` read; one of DiffusionRet into a pipeline of its "
        "two stages.",
    )
    parser.add_argument("file", metavar="FILE", help="the checkpoint, for example best.ckpt")
    parser.add_argument(
        "--dataset",
        required=True,
        **one_of("tvr", "activitynet", "charades", "msrvtt", "lsmdc", "msvd", "didemo"),
        help="the data set that it was trained on",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, new or empty")
    parser = group.command(
        "captions",
        run_captions,
        "Convert your own captions into a corpus",
        "FILE --features STORE --out ROOT [--name NAME] [--text ENCODER] [OPTIONS]",
        "Make a corpus to train on, ROOT/NAME, from your own captions and the features that `prvr extract` wrote. The "
        "table has the columns video and text, and start and end where they are known (seconds, or m:ss). The videos "
        "are divided into train, val and test.",
    )
    parser.add_argument("file", metavar="FILE", help="a CSV file with a header, or JSON lines with the same keys")
    parser.add_argument("--features", required=True, metavar="STORE", help="the features that `prvr extract` wrote")
    parser.add_argument("--out", required=True, metavar="ROOT", help="the folder that holds corpora")
    parser.add_argument("--name", metavar="NAME", help="the name of the new corpus; by default, that of FILE")
    parser.shared(
        "--text",
        help="the encoder of the captions, for example a RoBERTa, or MODULE:CLASS; by default, that of the frames",
    )
    parser.option("--test", default=0.2, help="the share of test videos")
    parser.option("--val", default=0.1, help="the share of validation videos")
    parser.shared("--seed", help="the seed of the division into splits (default: 0)")
    parser.shared("--device")
    parser = group.command(
        "benchmark",
        run_benchmark,
        "Convert a public text-to-video benchmark into a corpus",
        "NAME --annotations DIR --features STORE --out ROOT [--text ENCODER] [OPTIONS]",
        f"Make a corpus of a text-to-video benchmark ({', '.join(BENCHMARKS.names)}) from its public "
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

    parser = group.command(
        "moments",
        run_moments,
        "Add the moments of public annotations to a corpus",
        "CORPUS FILE...",
        "Write TextData/COLLECTION_moments.jsonl of a corpus from the public annotation files of TVR, ActivityNet "
        "Captions or Charades-STA. A caption has the moment that a file gives for the same sentence of the same video.",
    )
    parser.add_argument("corpus", metavar="CORPUS", help="the folder of the corpus, ROOT/COLLECTION")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="annotation files of any splits: JSON, JSON lines, or the text of Charades-STA with Charades' CSV files",
    )

    parser = group.command(
        "labels",
        run_labels,
        "Add dense labels to a corpus, several right videos for each query",
        "CORPUS FILE...",
        "Write TextData/COLLECTION_dense_labels.jsonl of a corpus; `prvr evaluate` then reports under them too.",
    )
    parser.add_argument("corpus", metavar="CORPUS", help="the folder of the corpus, ROOT/COLLECTION")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="JSON lines or a JSON array of records with query_id and gt_video_ids"
    )


def run_checkpoint(args: Namespace) -> None:
    """Converts a checkpoint and says how to evaluate it."""
    from prvr.released.checkpoint_files import convert_checkpoint

    found = convert_checkpoint(Path(args.file), args.dataset, Path(args.out))
    parts = {"": found.retriever} | {f" of the {name} re-ranker": one for name, one in found.rerankers.items()}
    counts = ", ".join(f"{sum(p.numel() for p in one.parameters()):,} parameters{of}" for of, one in parts.items())
    data = "the public features of that data set"
    if found.system == "DiffusionRet":
        data = f"{found.config.data.collection}, the pictures of its videos (`prvr extract --encoder pixels:CLIP`)"
    print(f"{args.out}: {found.system}, {counts}, configuration {found.source}.\nROOT holds {data}.")
    show_next("prvr", "evaluate", args.out, "--data-root", "ROOT")


def run_captions(args: Namespace) -> None:
    """Writes the corpus and says how to train on it."""
    from prvr.corpora.conversion import convert_captions
    from prvr.video import VideoStore, open_featurizer

    file, shares = Path(args.file), SplitShares(args.test, args.val, args.seed)
    store = VideoStore(args.features)
    device = device_of(args.device)
    text = open_featurizer(args.text or store.encoder, device)
    with progress_bar("encoding and writing", args.quiet, "captions and videos") as progress:
        report = convert_captions(
            file,
            store,
            text,
            _folder(args.out, file.stem if args.name is None else args.name),
            joint=_joint_side(store, text, device),
            shares=shares,
            progress=progress,
        )
    _show_captions(report, store, text)


def run_benchmark(args: Namespace) -> None:
    """Writes the corpus and says how to train on it."""
    from prvr.corpora.conversion import convert_benchmark
    from prvr.video import VideoStore, open_featurizer

    rules = BENCHMARKS[args.name]
    with _features(Path(args.features)) as features:
        name = args.text or (features.encoder if isinstance(features, VideoStore) else None)
        if name is None:
            raise CommandError(
                f"--text is missing: {args.features} is no store of `prvr extract`, so it is not known which "
                "model reads the captions. Name it, for example --text openai/clip-vit-base-patch32."
            )
        text = open_featurizer(name, device_of(args.device))
        with progress_bar(f"reading {rules.description}", args.quiet) as progress:
            report = convert_benchmark(
                args.name,
                args.annotations,
                features,
                text,
                _folder(args.out, args.collection or args.name),
                max_words=args.max_words,
                allow_missing=args.allow_missing,
                progress=progress,
            )
    print(_summary(rules, report))
    clip = _clip_of(text)
    preset, keys = (_PIXELS, _clip_keys(clip, rules.part.preset)) if clip else (rules.part.preset, [])
    show_next("prvr", "train", "--preset", preset, *_place(report.folder), *keys)


def run_moments(args: Namespace) -> None:
    """Writes the moments and says what was found for how many captions."""
    from prvr.corpora.ground_truth import convert_moments

    report = convert_moments(args.corpus, args.files)
    table = Table("", "captions", "with a moment", "ambiguous", "other sentence", "unknown video")
    for split, total in report.captions.items():
        counts = [len(some.get(split, ())) for some in (report.ambiguous, report.unmatched, report.unknown)]
        table.add_row(split, *(f"{count:,}" for count in (total, total - sum(counts), *counts)))
    stdout().print(table)
    said = {
        "ambiguous, several moments for one sentence": report.ambiguous,
        "the video is annotated, this sentence is not": report.unmatched,
        "the video is in no file": report.unknown,
    }
    for what, some in said.items():
        ids = [caption for ids in some.values() for caption in ids]
        if ids:
            print(f"{what}: {', '.join(ids[:3])}" + f" and {len(ids) - 3:,} more" * (len(ids) > 3))
    print(f"{report.file}: written")


def run_labels(args: Namespace) -> None:
    """Writes the labels and says how many queries have one."""
    from prvr.corpora.ground_truth import convert_labels

    report = convert_labels(args.corpus, args.files)
    table = Table("", "queries", "with a dense label", "without their own video", "right videos, on average")
    for split, total in report.captions.items():
        labelled = report.labelled[split]
        mean = report.videos[split] / labelled
        table.add_row(split, f"{total:,}", f"{labelled:,}", f"{report.without_own[split]:,}", f"{mean:.2f}")
    stdout().print(table)
    print(f"{report.file}: written")


def training(folder: Path, video_dim: int, query_dim: int) -> list[str]:
    """The command that trains on a corpus of features: with a preset of its widths, or with options that change them.

    Args:
        folder: of the corpus.
        video_dim, query_dim: widths of its features.

    Examples:
        >>> print(*training(Path("data/films"), 512, 512))
        prvr train --preset hybrid-clip --data-root data --data.collection films --train.protocol val
    """
    preset = _PRESETS.get((video_dim, query_dim))
    widths = [] if preset else ["--model.video_dim", str(video_dim), "--model.query_dim", str(query_dim)]
    return ["prvr", "train", "--preset", preset or "hybrid-clip", *_place(folder), "--train.protocol", "val", *widths]


def _place(folder: Path) -> list[str]:
    """The options that say where a corpus is."""
    return ["--data-root", folder.parent.as_posix(), "--data.collection", folder.name]


def _clip_of(text: "TextFeaturizer") -> str:
    """The CLIP whose pictures and token numbers a corpus holds; empty where it holds features."""
    return text.identity.name.partition("pixels:")[2]


def _clip_keys(clip: str, preset: str) -> list[str]:
    """The options that make the preset of MSR-VTT's pictures train another CLIP, and for as long as another preset.

    Args:
        clip: a CLIP of transformers, by name or folder.
        preset: says how many frames and words are read.
    """
    from prvr.video.hub import import_transformers, read_config

    sizes, model, like = (
        import_transformers().CLIPConfig.from_dict(read_config(clip)),
        load_config(preset).model,
        load_config(_PIXELS).model,
    )
    values = {
        "clip": clip,
        "video_dim": 3 * sizes.vision_config.image_size**2,
        "hidden": sizes.projection_dim,
        "heads": sizes.text_config.num_attention_heads,
        "depth": min(like.depth, sizes.text_config.num_hidden_layers),
        "max_frames": min(model.max_frames, sizes.text_config.max_position_embeddings),
        "max_words": min(model.max_words, sizes.text_config.max_position_embeddings),
    }
    changed = {key: value for key, value in values.items() if getattr(like, key) != value}
    return [word for key, value in changed.items() for word in (f"--model.{key}", str(value))]


def _folder(root: str, name: str) -> Path:
    if Path(name).name != name:
        raise CommandError(f"{name!r} is no name of a corpus: expected letters, digits, '-', '_' and '.'.")
    return Path(root) / name


def _joint_side(store: "VideoStore", text: "TextFeaturizer", device: Any) -> "TextFeaturizer | None":
    """The text side of the encoder of the frames, where it is another one and can be opened."""
    from prvr.data import DataError
    from prvr.video import open_featurizer

    if not store.joint_dim or text.identity.weights == store.encoder.weights:
        return None
    try:
        return open_featurizer(store.encoder, device)
    except DataError as error:
        logger.warning("no comparison with zero-shot: the encoder of the frames cannot be opened. %s", error)
        return None


def _show_captions(report: "CaptionsReport", store: "VideoStore", text: "TextFeaturizer") -> None:
    console = stdout()
    table = Table("", "videos", "captions", title=str(report.folder), title_justify="left")
    for split, videos in report.videos.items():
        table.add_row(split, str(videos), str(report.captions[split]))
    console.print(table)
    total = sum(report.captions.values())
    said = [
        f"{report.timed:,} of {total:,} captions say when" + f" ({report.cut} cut to their video)" * bool(report.cut)
    ]
    if report.repeated:
        said.append(f"{report.repeated} lines repeated another and were left out")
    if report.left_out:
        some = ", ".join(report.left_out[:3])
        said.append(f"{len(report.left_out)} videos of {store.folder} have no caption and were left out: {some} ...")
    if not report.zero_shot:
        said.append("no comparison with zero-shot: captions and frames have no space in common")
    print("\n".join(said))
    if clip := _clip_of(text):
        along = [*_place(report.folder), "--train.protocol", "val", *_clip_keys(clip, _PIXELS)]
        show_next("prvr", "train", "--preset", _PIXELS, *along)
    else:
        show_next(*training(report.folder, store.dim, text.word_dim))


def _features(path: Path) -> "FeatureReader":
    from prvr.data import open_features
    from prvr.video import VideoStore
    from prvr.video.store import HEADER

    return VideoStore(path) if (path.expanduser() / HEADER).is_file() else open_features(path.expanduser())


def _summary(rules: "Entry[Benchmark]", report: "BenchmarkReport") -> str:
    lines = [f"{report.folder}: {rules.description}"]
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
    return "\n".join(lines)
