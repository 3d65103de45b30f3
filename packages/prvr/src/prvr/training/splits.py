"""The packed splits of a run, opened from its configuration."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prvr.config import Config
from prvr.data import COLLECTIONS, Corpus, PackedSplit, PackSettings, holdout, open_corpus, pack, write_corpus
from prvr.data.synthetic import corpus_key
from prvr.training.errors import TrainingError

__all__ = ["Splits", "cache_folder", "embedded_corpus", "open_split", "open_splits"]


@dataclass(frozen=True)
class Splits:
    """What a run reads: `train` is learned from, `selection` chooses the epoch, `report` gives the final numbers.

    Raises:
        TrainingError: fewer than two training videos.
    """

    train: PackedSplit
    selection: PackedSplit
    report: PackedSplit

    def __post_init__(self) -> None:
        if len(self.train) < 2:
            raise TrainingError(
                f"{self.train.name}: {len(self.train)} video to train on, at least two are needed: the negatives of a "
                "video are the others of its batch"
            )

    def close(self) -> None:
        """Closes the stores."""
        for split in (self.train, self.selection, self.report):
            split.close()


def cache_folder(config: Config) -> Path:
    """Where packed features are kept: `data.cache_dir`, or `prvr` in the user's cache folder."""
    if config.data.cache_dir is not None:
        return Path(config.data.cache_dir).expanduser()
    home = Path.home()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(base) / "prvr"


def embedded_corpus(config: Config, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """The corpus that `config.data.collection` names of those that prvr makes itself, in the cache; made if need be.

    Args:
        config: with a collection `embedded-tiny`, `embedded-demo` or `embedded-bench`.
        progress: called with (videos made, videos in all).

    Raises:
        TrainingError: another collection: that one needs `data.root`.
        prvr.data.DataError: the disk is full, or the encoder is damaged.
    """
    name = config.data.collection
    if name not in COLLECTIONS:
        raise TrainingError(
            f"data.root is not set: give the folder that holds {name}/FeatureData and {name}/TextData, or set "
            f"data.collection to one of {', '.join(COLLECTIONS)}"
        )
    # one folder per version and encoder: what an older prvr made there is no obstacle
    return write_corpus(cache_folder(config) / corpus_key(), COLLECTIONS[name], progress=progress)


def open_split(config: Config, split: str) -> PackedSplit:
    """A split of `config.data`, packed into the cache first where it is not there yet.

    A collection `embedded-tiny`, `-demo` or `-bench` without a root is made in the cache where it is not there yet.

    Raises:
        prvr.data.DataError: the files are missing, bad, or of another width than the model expects.
        TrainingError: `data.root` is missing.
    """
    data, model, cache = config.data, config.model, cache_folder(config)
    corpus = (
        embedded_corpus(config) if data.root is None else open_corpus(data.root, data.collection, feature=data.feature)
    )
    settings = PackSettings(
        clips=model.num_clips, frames=model.max_frames, words=model.max_words, keep_last=data.keep_last_frame
    )
    return pack(
        corpus,
        split,
        cache_dir=cache / "packed",
        settings=settings,
        feature_dim=model.video_dim,
        query_dim=model.query_dim,
    )


def open_splits(config: Config) -> Splits:
    """The splits of a run.

    Protocol "paper" selects on the reported split, "holdout" on training videos set aside, "val" on the split "val".
    """
    training, report = open_split(config, "train"), open_split(config, config.data.eval_split)
    if config.train.protocol == "paper":
        return Splits(training, report, report)
    if config.train.protocol == "val":
        return Splits(training, open_split(config, "val"), report)
    return Splits(*holdout(training, config.train.holdout_fraction), report)
