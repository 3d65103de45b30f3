"""`prvr convert captions`: a table of sentences about one's own videos as a corpus to train on."""

import logging
from argparse import Namespace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from prvr.cli.console import CommandError, progress_bar, stdout
from prvr.cli.folders import device_of
from prvr.cli.options import Parser, number

if TYPE_CHECKING:
    from prvr.corpora.convert import CaptionsReport
    from prvr.video import TextFeaturizer, VideoStore

_PRESETS = {(512, 48): "hybrid-embedded", (512, 512): "hybrid-clip", (768, 768): "hybrid-clip-l"}
"""By the widths of frames and words that they expect."""

logger = logging.getLogger(__name__)


def register(convert: Parser) -> None:
    """Adds the command."""
    parser = convert.command(
        "captions",
        run,
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
    parser.shared("--text", help="the encoder of the captions: by default that of the frames, or a RoBERTa")
    parser.add_argument("--test", type=number, default=0.2, help="the share of test videos (default: 0.2)")
    parser.add_argument("--val", type=number, default=0.1, help="the share of validation videos (default: 0.1)")
    parser.shared("--seed", help="the seed of the division into splits (default: 0)")
    parser.shared("--device")


def run(args: Namespace) -> None:
    """Writes the corpus and says how to train on it."""
    from prvr.corpora import SplitShares
    from prvr.corpora.convert import convert_captions
    from prvr.video import VideoStore, open_featurizer

    file, shares = Path(args.file), SplitShares(args.test, args.val, args.seed)
    store = VideoStore(args.features)
    device = device_of(args.device)
    text = open_featurizer(args.text or store.encoder.name, device)
    with progress_bar("encoding and writing", args.quiet, "captions and videos") as progress:
        report = convert_captions(
            file,
            store,
            text,
            corpus_folder(args.out, file.stem if args.name is None else args.name),
            joint=_joint_side(store, text, device),
            shares=shares,
            progress=progress,
        )
    _show(report, store, text)


def corpus_folder(root: str, name: str) -> Path:
    """The folder of a new corpus.

    Raises:
        CommandError: the name is a path.
    """
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
        return open_featurizer(store.encoder.name, device)
    except DataError as error:
        logger.warning("no comparison with zero-shot: the encoder of the frames cannot be opened. %s", error)
        return None


def _show(report: "CaptionsReport", store: "VideoStore", text: "TextFeaturizer") -> None:
    from rich.table import Table

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
    print(f"\nTrain on it:\n{command(report.folder, store.dim, text.word_dim)}")


def command(folder: Path, video_dim: int, query_dim: int) -> str:
    """What trains on a corpus: a preset with the right widths, or one whose widths are changed.

    Example:
        >>> print(command(Path("data/films"), 512, 512))
        prvr train --preset hybrid-clip --data-root data --data.collection films --train.protocol val
    """
    preset = _PRESETS.get((video_dim, query_dim))
    widths = "" if preset else f" --model.video_dim {video_dim} --model.query_dim {query_dim}"
    name, root = folder.name, folder.parent.as_posix()
    return (
        f"prvr train --preset {preset or 'hybrid-clip'} --data-root {quote(root)} --data.collection {quote(name)} "
        f"--train.protocol val{widths}"
    )
