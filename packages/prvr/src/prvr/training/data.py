"""What a run reads: the splits of its corpus, and their batches on the device that trains."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from prvr.config import Config
from prvr.data import COLLECTIONS, Corpus, PackedSplit, PackSettings, holdout, open_corpus, pack, write_corpus
from prvr.data.atomic import user_cache
from prvr.data.dataset import VideoLoader
from prvr.data.on_device import AHEAD, Batches, DeviceLoader, read_ahead, split_bytes
from prvr.data.synthetic import corpus_key
from prvr.errors import TrainingError
from prvr.types import Batch

logger = logging.getLogger(__name__)

_SHARE = 0.5
"""The largest share of a GPU's free memory that `auto` gives to features; the rest is for the step."""


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
    return user_cache()


def run_corpus(config: Config, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """The corpus of a run: the one in `data.root`, or without a root a toy one, which is made if need be.

    Args:
        config: the configuration of the run.
        progress: called with (videos made, videos in all) while a toy corpus is made.

    Raises:
        TrainingError: `data.root` is missing, and the collection is none that prvr makes.
        prvr.data.DataError: the files are missing or damaged, the disk is full, or the encoder is damaged.
    """
    data, name = config.data, config.data.collection
    if data.root is not None:
        return open_corpus(data.root, name, feature=data.feature)
    if name not in COLLECTIONS:
        raise TrainingError(
            f"data.root is not set: give the folder that holds {name}/FeatureData and {name}/TextData, or set "
            f"data.collection to one of {', '.join(COLLECTIONS)}"
        )
    # one folder per version and encoder: what an older prvr made there is no obstacle
    return write_corpus(cache_folder(config) / corpus_key(), COLLECTIONS[name], progress=progress)


def open_split(config: Config, split: str) -> PackedSplit:
    """A split of `config.data`, packed into the cache first where it is not there yet.

    A toy collection, such as `toy-tiny`, is made in the cache where it has no root and is not there yet.

    Raises:
        prvr.data.DataError: the files are missing, bad, or of another width than the model expects.
        TrainingError: `data.root` is missing.
    """
    data, model, cache = config.data, config.model, cache_folder(config)
    corpus = run_corpus(config)
    return pack(
        corpus,
        split,
        cache_dir=cache / "packed",
        settings=PackSettings.of(model, data.keep_last_frame),
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


class StreamedLoader(Batches):
    """The batches of a loader, sent to a device.

    For a GPU a thread reads two batches ahead into page-locked memory, and copies do not wait. Elsewhere a batch is
    read when it is asked for.

    Args:
        loader: a loader of batches on the host.
        device: where they go.
        ahead: batches read ahead; 0 reads none. Default: by the device.
    """

    def __init__(self, loader: VideoLoader, device: torch.device, ahead: int | None = None) -> None:
        super().__init__(loader)
        self.device = device
        self.ahead = (AHEAD if device.type == "cuda" else 0) if ahead is None else ahead

    def __iter__(self) -> Iterator[Batch]:
        pin = Batch.pin_memory if self.device.type == "cuda" else None
        return (batch.to(self.device) for batch in read_ahead(self.loader, self.ahead, pin))


def training_batches(
    loader: VideoLoader, device: torch.device, on_device: Literal["auto", "always", "never"] = "auto"
) -> Batches:
    """The batches of a loader on a device, its features kept there or not: the same batches either way.

    Args:
        loader: which videos and queries, in which order.
        device: the device of the training.
        on_device: `train.data_on_device`.

    Raises:
        TrainingError: "always", and the features are larger than what is free on the GPU.
    """
    if on_device == "never" or (on_device == "auto" and device.type != "cuda"):
        return StreamedLoader(loader, device)
    size = split_bytes(loader.dataset.packed)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    if on_device == "auto" and free is not None and size > _SHARE * free:
        logger.info("features of %.1f GB are read as training goes, %.1f GB are free", size / 1e9, free / 1e9)
        return StreamedLoader(loader, device)
    if free is not None and size > free:
        raise TrainingError(
            f"train.data_on_device='always': the features take {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free on "
            f"{device}. Set it to 'auto' or 'never'"
        )
    return DeviceLoader(loader, device)
