"""What a run reads: the splits of its corpus, and their batches on the device that trains."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor

from prvr.config import LOSSES, Config, ModelConfig
from prvr.corpora.corpus_encoders import DRAWN_COLLECTIONS
from prvr.data import (
    Corpus,
    PackedSplit,
    PackSettings,
    VideoLoader,
    holdout,
    open_corpus,
    pack,
)
from prvr.data.atomic import user_cache
from prvr.data.loader import Shard
from prvr.data.on_device import split_bytes
from prvr.errors import TrainingError
from prvr.extensions import extensions
from prvr.training.run_folder import Run, RunOptions, open_run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Splits:
    """What a run reads: `train` is learned from, `selection` chooses the epoch, `report` gives the final numbers.

    `val` is the split of that name where `selection` is the reported split: it helps to choose the settings of a fit.

    Raises:
        TrainingError: fewer than two training videos.
    """

    train: PackedSplit
    selection: PackedSplit
    report: PackedSplit
    val: PackedSplit | None = None

    def __post_init__(self) -> None:
        if len(self.train) < 2:
            raise TrainingError(
                f"{self.train.name}: {len(self.train)} video to train on, at least two are needed: the negatives of a "
                "video are the others of its batch"
            )

    def close(self) -> None:
        """Closes the stores."""
        for split in (self.train, self.selection, self.report, self.val):
            if split is not None:
                split.close()

    def choosing(self, config: Config) -> PackedSplit | None:
        """The split that helps to choose the settings of a fit: never the reported one."""
        return self.val if config.train.protocol == "paper" else self.selection


def cache_folder(config: Config) -> Path:
    """The folder of packed features: `data.cache_dir`, or `prvr` in the user's cache folder."""
    return user_cache() if config.data.cache_dir is None else Path(config.data.cache_dir).expanduser()


def run_corpus(config: Config, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """The corpus of a run: the one in `data.root`, or without a root one that is drawn into the cache.

    Args:
        config: the configuration of the run.
        progress: called with (videos drawn, all videos) while a corpus is drawn.

    Raises:
        TrainingError: `data.root` is missing, and the collection is none of `DRAWN_COLLECTIONS`.
        prvr.data.DataError: the files are missing or damaged, the disk is full, or the encoder is damaged.
    """
    data, name = config.data, config.data.collection
    if data.root is not None:
        return open_corpus(data.root, name, feature=data.feature)
    if name not in DRAWN_COLLECTIONS:
        names = ", ".join(DRAWN_COLLECTIONS.names)
        raise TrainingError(
            f"data.root is not set: give the folder that holds {name}/FeatureData and {name}/TextData"
            + f", or set data.collection to one of {names}" * bool(names)
        )
    return DRAWN_COLLECTIONS[name].part.open(cache_folder(config), progress)


def with_widths(config: Config) -> Config:
    """A configuration in which `model.video_dim` and `model.query_dim` are those of the data where they are 0.

    Raises:
        TrainingError, prvr.data.DataError: as `run_corpus`.
    """
    model = config.model
    if model.stream is not None and not model.stream.dim:
        with run_corpus(config).open_features(model.stream.feature) as rows:
            model = replace(model, stream=replace(model.stream, dim=rows.dim))
    if not (model.video_dim and model.query_dim):
        video, query = run_corpus(config).dims()
        model = replace(model, video_dim=model.video_dim or video, query_dim=model.query_dim or query)
    return replace(config, model=model)


def with_feature(config: Config) -> Config:
    """A configuration that names the features it reads, so that a run reads the same when others lie beside them."""
    data = config.data
    name = data.feature if data.root is None else run_corpus(config).feature_folder.name
    return replace(config, data=replace(data, feature=name))


def open_split(config: Config, split: str) -> PackedSplit:
    """A split of `config.data`, packed into the cache first where it is not there yet.

    A toy collection, such as `toy-tiny`, is drawn into the cache where it has no root.

    Raises:
        prvr.data.DataError: the files are missing, bad, or of another width than the model expects.
        TrainingError: `data.root` is missing.
    """
    data, model = config.data, config.model
    return pack(
        run_corpus(config),
        split,
        cache_dir=cache_folder(config) / "packed",
        settings=PackSettings.of(model, data.keep_last_frame),
        feature_dim=model.video_dim or None,
        query_dim=model.query_dim or None,
        skip_missing=data.missing == "skip",
    )


def open_splits(config: Config) -> Splits:
    """The splits of a run.

    Protocol "paper" selects on the reported split, "holdout" on training videos set aside, "val" on the split "val".
    """
    training = open_split(config, "train")
    report = open_split(config, config.data.eval_split)
    if config.train.protocol == "holdout":
        return Splits(*holdout(training, config.train.holdout_fraction), report)
    if config.train.protocol == "val":
        return Splits(training, open_split(config, "val"), report)
    has_val = config.data.eval_split != "val" and run_corpus(config).caption_file("val").is_file()
    return Splits(training, report, report, open_split(config, "val") if has_val and fitted(config) else None)


def fitted(config: Config) -> bool:
    """Whether a run starts from a fit, see `model.start`."""
    return isinstance(config.model, ModelConfig) and config.model.start == "kernel"


def training_batches(
    config: Config, split: PackedSplit, accelerator: Accelerator, teacher: Float[Tensor, "q v"] | None = None
) -> VideoLoader:
    """The batches of a training split on the device, each process its shard of them, its features there or not.

    Args:
        config: the configuration of the run.
        split: what is learned from.
        accelerator: device and processes.
        teacher: `(q, v)` scores of the split, see `prvr.Teacher`; for `loss.frame_distillation` `(q, l)`.

    Raises:
        TrainingError: more processes than videos in a batch; several, and a loss that reads the words of all queries;
            or `train.data_on_device="always"`, and the features are larger than what is free on the GPU.
    """
    size, videos, processes = config.train.batch_size, len(split), accelerator.num_processes
    device, on_device = accelerator.device, config.train.data_on_device
    if min(size, videos) < processes:
        raise TrainingError(
            f"{processes} processes share batches of {min(size, videos)} videos: each needs one. Start fewer, or "
            f"raise train.batch_size={size}"
        )
    for entry in LOSSES:
        if (weight := config.loss.weight(entry.name)) == 0:
            continue
        if "moments" in entry.needs and np.isnan(split.moments.start).all():
            raise TrainingError(
                f"loss.{entry.name}={weight} needs moments of queries, and {split.name} has none: add them (prvr "
                "convert moments), or set it to 0"
            )
        if processes > 1 and "last_words" in entry.needs:
            raise TrainingError(
                f"loss.{entry.name}={weight} needs the words of all queries of a batch, which {processes} processes do "
                "not share: train with one process, or set it to 0"
            )
    by_frames = config.loss.taught == "frame_distillation"
    loader = VideoLoader(
        split,
        size,
        seed=config.train.seed,
        captions_per_video=config.data.captions_per_video,
        # A video alone has no negatives: a last batch of one is left out, as is one with a process idle.
        drop_last=videos > size and 0 < videos % size < max(2, processes),
        shard=Shard(accelerator.process_index, processes),
        teacher=None if by_frames else teacher,
    )
    loader.teacher_frames = teacher if by_frames else None
    if on_device == "never" or (on_device == "auto" and device.type != "cuda"):
        return loader.to(device)
    taken = split_bytes(split)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf
    if on_device == "auto" and taken > 0.5 * free:  # the rest is for the step
        logger.info("streaming features from disk (%.1f GB needed, %.1f GB free)", taken / 1e9, free / 1e9)
        return loader.to(device)
    if taken > free:
        raise TrainingError(
            f"train.data_on_device='always': the features take {taken / 1e9:.1f} GB, {free / 1e9:.1f} GB are free on "
            f"{device}. Set it to 'auto' or 'never'"
        )
    return loader.to(device, resident=True)


@dataclass(frozen=True)
class RunData:
    """What a run reads: its splits, the batches of the training split, and values that its saved state records.

    `config` is its configuration with the features and the widths of the data, which the folder of `run` holds.
    """

    config: Config
    run: Run
    splits: Splits
    batches: VideoLoader
    constants: Mapping[str, Any]


@contextmanager
def run_data(
    config: Config,
    output: Path | str,
    splits: Splits | None = None,
    teacher: Any = None,
    **options: Unpack[RunOptions],
) -> Iterator[RunData]:
    """Opens a run, and what it reads, where needed with the scores of its teacher.

    Args:
        config: the configuration of the run.
        output: its folder.
        splits: None = those that `config.data` names, closed afterwards.
        teacher: see `prvr.training.train`.
        options: see `open_run`.

    Raises:
        TrainingError, prvr.data.DataError: as `open_run`, `open_splits`, `training_batches` and the scores
            of the teacher.
    """
    config = with_widths(with_feature(config) if splits is None else config)
    with (
        open_run(config, output, **options) as run,
        closing(open_splits(config)) if splits is None else nullcontext(splits) as opened,
    ):
        scores = None
        if config.loss.taught:
            (teacher_scores,) = extensions("teacher", others=False)
            scores = teacher_scores(config, run, opened.train, teacher)
        batches = training_batches(config, opened.train, run.accelerator, scores)
        yield RunData(config, run, opened, batches, {"teacher": None if scores is None else scores[:1].clone()})
