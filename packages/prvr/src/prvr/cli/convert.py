"""`prvr convert`: captions and features as corpora; `prvr.extensions` adds what else is converted."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.table import Table

from prvr.cli.console import CommandError, progress_bar, show_next, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import Device, Name, Seed
from prvr.config import load_config
from prvr.corpora import SplitShares
from prvr.extensions import extension, extensions

if TYPE_CHECKING:
    from prvr.corpora.annotations import Conversion
    from prvr.encoders import TextFeaturizer, VideoFeatures

_PRESETS = {(512, 48): "hybrid-toy", (512, 512): "hybrid-clip", (768, 768): "hybrid-clip-l"}
"""By the widths of frames and words."""
PIXELS = "diffusionret-msrvtt-pixels"
"""For the pictures and token ids of a CLIP."""

logger = logging.getLogger(__name__)


group = App(name="convert")
Root = Annotated[Path, Parameter(metavar="ROOT", help="the folder of the corpora")]
Features = Annotated[
    Path,
    Parameter(
        metavar="FOLDER",
        help="a folder of videos that was searched, or one of features: of `prvr export`, BigFile or feature.hdf5",
    ),
]
Text = Annotated[
    str | None,
    Parameter(
        metavar="ENCODER",
        help="the encoder of the captions, for example a RoBERTa, by its name on the Hugging Face hub, folder or "
        "MODULE:CLASS (default: the text side of the encoder of the videos)",
    ),
]
_Corpus = Annotated[Path, Parameter(help="the folder of the corpus, ROOT/COLLECTION")]


@group.command
def captions(
    file: Path,
    /,
    *,
    features: Features,
    output: Root,
    collection: Name = None,
    text: Text = None,
    test: float = 0.2,
    val: float = 0.1,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Convert your own captions into a corpus.

    Make a corpus to train on, ROOT/COLLECTION, from your own captions and the features of the videos. The
    table has the columns video and text, and optionally start and end (seconds, or m:ss). The videos are split into
    train, val and test.

    Args:
        file: a CSV file with a header, or JSON lines with the same keys
        collection: the name of the new corpus (default: that of FILE)
        test: the share of test videos
        val: the share of validation videos
    """
    from prvr.corpora.caption_corpus import convert_captions
    from prvr.encoders import open_featurizer

    store, torch_device = video_features(features), device_of(device)
    encoder = open_featurizer(text or store.encoder, torch_device)
    with progress_bar("encoding and writing", "captions and videos") as progress:
        report = convert_captions(
            file,
            store,
            encoder,
            folder_of(output, file.stem if collection is None else collection),
            joint=_joint_side(store, encoder, torch_device),
            shares=SplitShares(test, val, seed),
            progress=progress,
        )
    show(report)
    if clip := clip_of(encoder):
        along = [*place(report.path), "--train.protocol", "val", *clip_keys(clip, PIXELS)]
        show_next("prvr", "train", "--preset", PIXELS, *along)
    else:
        show_next(*training(report.path, store.dim, encoder.word_dim))


@group.command
def features(
    folder: Path,
    /,
    *,
    captions: Annotated[Path, Parameter(metavar="FILE")],
    queries: Annotated[Path | None, Parameter(metavar="DIR")] = None,
    text: Text = None,
    output: Root,
    collection: Name = None,
    rate: float | None = None,
    test: float = 0.2,
    val: float = 0.1,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Convert your own features into a corpus.

    Make a corpus to train on, ROOT/COLLECTION, from a file of features for each video (.npy, .npz or .pt, of any
    width) and a table of captions, as `prvr convert captions` reads it. The captions' features are files too, or an
    encoder computes them.

    Args:
        folder: the files of the videos, named as the table names the videos
        captions: a CSV file with a header, or JSON lines: video, text; start, end, id and split if known
        queries: the files of the captions, named by the column id
        collection: the name of the new corpus (default: that of the captions)
        rate: rows per second of the videos' features; needed if captions have times
        test: the share of test videos, if the table has no column split
        val: the share of validation videos
    """
    from prvr.corpora.feature_files import convert_features
    from prvr.data import open_corpus
    from prvr.encoders import open_featurizer

    if (queries is None) == (text is None):
        raise CommandError("expected --queries DIR, the features of the captions, or --text ENCODER, which makes them.")
    words = queries or open_featurizer(text or "", device_of(device))
    name = captions.stem if collection is None else collection
    with progress_bar("reading and writing", "captions and videos") as progress:
        report = convert_features(
            folder,
            captions,
            words,
            folder_of(output, name),
            rate=rate,
            shares=SplitShares(test, val, seed),
            progress=progress,
        )
    show(report)
    show_next(*training(report.path, *open_corpus(output, name).dims(), val="val" in report.counts["videos"]))


@group.command
def moments(corpus: _Corpus, /, *files: Annotated[Path, Parameter(name="FILE", required=True)]) -> None:
    """Add the moments of public annotations to a corpus.

    Write TextData/COLLECTION_moments.jsonl of a corpus from the public annotation files of TVR, ActivityNet Captions or
    Charades-STA. A caption gets the moment that a file has for the same sentence of the same video.

    Args:
        files: annotation files of any splits: JSON, JSON lines, or the text of Charades-STA with Charades' CSV files
    """
    from prvr.corpora.ground_truth import convert_moments

    show(convert_moments(corpus, files))


@group.command
def labels(corpus: _Corpus, /, *files: Annotated[Path, Parameter(name="FILE", required=True)]) -> None:
    """Add dense labels to a corpus, with several right videos for each query.

    Write TextData/COLLECTION_dense_labels.jsonl of a corpus; `prvr evaluate` then also reports results with these
    labels.

    Args:
        files: JSON lines or a JSON array of records with query_id and gt_video_ids
    """
    from prvr.corpora.ground_truth import convert_labels

    show(convert_labels(corpus, files))


def training(folder: Path, video_dim: int, query_dim: int, *, val: bool = True) -> list[str]:
    """The command that trains on a corpus of features: with a preset for its widths, or with options that change them.

    Args:
        folder: the folder of the corpus.
        video_dim, query_dim: the widths of its features.
        val: whether it has a split to select on; else a share of the training videos selects.

    Examples:
        >>> print(*training(Path("data/videos"), 512, 512))
        prvr train --preset hybrid-clip --data-root data --data.collection videos --train.protocol val
    """
    preset = _PRESETS.get((video_dim, query_dim), "hybrid-clip")
    protocol = ["--train.protocol", "val" if val else "holdout"]
    return ["prvr", "train", "--preset", preset, *place(folder), *protocol, *width_keys(preset, video_dim, query_dim)]


def width_keys(preset: str, video_dim: int, query_dim: int) -> list[str]:
    """The options that adapt a preset to features of other widths.

    Examples:
        >>> print(*width_keys("hybrid-clip", 768, 512))
        --model.video_dim 768
    """
    like: Any = load_config(preset).model
    values: dict[str, Any] = {"video_dim": video_dim, "query_dim": query_dim}
    if getattr(like, "frame_projection", "") == "none" and video_dim != like.hidden:
        values["frame_projection"] = "linear"
    return _changes(like, values)


def _changes(like: Any, values: dict[str, Any]) -> list[str]:
    return [
        word for key, value in values.items() if getattr(like, key) != value for word in (f"--model.{key}", str(value))
    ]


def place(folder: Path) -> list[str]:
    """The options that name a corpus."""
    return ["--data-root", folder.parent.as_posix(), "--data.collection", folder.name]


def clip_of(text: "TextFeaturizer") -> str:
    """The CLIP whose pictures and token ids a corpus holds; empty if it holds features."""
    return text.identity.name.partition("pixels:")[2]


def clip_keys(clip: str, preset: str) -> list[str]:
    """The options that adapt the preset of MSR-VTT's pictures to another CLIP and other lengths.

    Args:
        clip: a CLIP of transformers, by name or folder.
        preset: the preset with the number of frames and words.
    """
    from prvr.encoders.hub import import_transformers, read_config

    sizes, model = import_transformers().CLIPConfig.from_dict(read_config(clip)), load_config(preset).model
    like: Any = load_config(PIXELS).model
    values = {
        "clip": clip,
        "video_dim": 3 * sizes.vision_config.image_size**2,
        "hidden": sizes.projection_dim,
        "heads": sizes.text_config.num_attention_heads,
        "depth": min(like.depth, sizes.text_config.num_hidden_layers),
        "max_frames": min(model.max_frames, sizes.text_config.max_position_embeddings),
        "max_words": min(model.max_words, sizes.text_config.max_position_embeddings),
    }
    return _changes(like, values)


def folder_of(root: Path, name: str) -> Path:
    """The folder of a new corpus.

    Raises:
        CommandError: the name is none of a folder.
    """
    if Path(name).name != name:
        raise CommandError(f"--collection {name}: expected letters, digits, '-', '_' and '.'.")
    return root / name


def _joint_side(store: "VideoFeatures", text: "TextFeaturizer", device: Any) -> "TextFeaturizer | None":
    """The text side of the encoder of the frames, if it differs from `text` and can be opened."""
    from prvr.data import DataError
    from prvr.encoders import open_featurizer

    if not store.joint_dim or text.identity.weights == store.encoder.weights:
        return None
    try:
        return open_featurizer(store.encoder, device)
    except DataError as error:
        logger.warning("no comparison with zero-shot: the encoder of the frames cannot be opened. %s", error)
        return None


def show(conversion: "Conversion", what: str = "") -> None:
    """Prints a table of numbers by split, and the notes."""
    table = Table("", *conversion.counts, title=f"{conversion.path}{what}", title_justify="left")
    for split in next(iter(conversion.counts.values())):
        table.add_row(split, *(f"{numbers.get(split, 0):,}" for numbers in conversion.counts.values()))
    stdout().print(table)
    for note in conversion.notes:
        print(note)


def video_features(path: Path) -> "VideoFeatures":
    """The features of a folder of videos that was searched, or of a folder that `prvr export` wrote."""
    from prvr.corpora.exported import is_export, read_export

    if is_export(path.expanduser()):
        return read_export(path)
    return extension("features", f"{path}: reading a folder of videos")(path)


for _ in extensions("converters"):  # importing a module adds its commands
    pass
