"""Kernel regression as a baseline of every other system."""

import logging
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import torch

from prvr.config import Config, ModelConfig, TrainConfig
from prvr.data import PackedSplit
from prvr.data.atomic import discard, publish, temporary_folder
from prvr.data.hashes import HASHES, digest, write_hashes
from prvr.errors import DataError, PrvrError
from prvr.models import Retriever, load_pretrained, path_alone
from prvr.models.kernel_path import parts_of
from prvr.models.pretrained import CONFIG, WEIGHTS
from prvr.stages import FirstStage
from prvr.training.closed_form import VERSION
from prvr.training.splits import cache_folder, open_splits, run_corpus
from prvr.training.start import fitted_retriever

logger = logging.getLogger(__name__)

_MOST = 5e12
"""Multiplications of a pass up to which the regression is fitted unasked."""
_GPU = 100  # times as many
_FILES = (CONFIG, WEIGHTS, HASHES, "README.md")


def kernel_baseline(
    config: Config, retriever: FirstStage | None = None, device: torch.device | str = "cpu"
) -> dict[str, Retriever]:
    """Kernel regression beside a run, under the name of its row: fitted to the same training split with the same seed.

    It is fitted once: the cache keeps it in a folder whose name is made of all that decides it. A pass over the videos
    takes `r m (w d + m)` multiplications, of r rows, m landmarks, w lengths of windows and frames of width d. With
    `fit.baseline: auto` it is fitted where these are at most 5e12, a hundred times as many on a GPU: within some
    minutes of one core.

    Args:
        config: the configuration of the run.
        retriever: its model: one that starts from a kernel path has it already.
        device: where the regression is fitted.

    Returns:
        Nothing for a run that is itself a kernel regression, for a model that reads no features, with
        `fit.baseline: never`, and for a corpus without a training split; else one retriever.

    Raises:
        PrvrError: the fit would take too long, or the data are missing or damaged.
    """
    model, fit = config.model, config.fit
    if isinstance(retriever, Retriever) and retriever.path is not None:
        return {"kernel path": path_alone(retriever)} if retriever.has_blocks else {}
    corpus = run_corpus(config)
    if fit.baseline == "never" or model.stored_words or not corpus.caption_file("train").is_file():
        return {}
    sizes = ("video_dim", "query_dim", "num_clips", "max_frames", "max_words")
    same: dict[str, Any] = {name: getattr(model, name) for name in sizes}
    alone = ModelConfig(branches="none", start="kernel", **same)
    windows = fit.windows[len(fit.windows) // 2]
    rows = len(corpus.split("train").video_ids) * parts_of(model.max_frames, windows)
    products = rows * fit.landmarks * (len(windows) * model.video_dim + fit.landmarks)
    if fit.baseline == "auto" and products > _MOST * (_GPU if torch.device(device).type == "cuda" else 1):
        raise DataError(
            f"fitting the kernel regression would take {products:.0e} multiplications a pass. Set fit.baseline to "
            "always, or train a kernel-* preset."
        )
    same = {name: getattr(config.train, name) for name in ("protocol", "holdout_fraction", "seed")}
    train = TrainConfig(epochs=0, **same)
    return {"kernel": _fitted(Config("kernel", alone, data=config.data, train=train, fit=fit), alone, device)}


def _fitted(config: Config, model: ModelConfig, device: torch.device | str) -> Retriever:
    """The regression of a configuration from the cache, where it is put first if it is not there, or not as it was."""
    with closing(open_splits(config)) as splits:
        selection = splits.choosing(config)
        folder = cache_folder(config) / "kernel" / f"{config.data.collection}-{_key(config, splits.train, selection)}"
        try:
            if folder.exists():
                cached = load_pretrained(folder)
                if isinstance(cached, Retriever) and replace(cached.config, path=model.path) == model:
                    return cached
                raise DataError(f"{folder}: a model of another kind.")
        except PrvrError as error:
            logger.warning("%s Fitting it again now.", error)
            discard(folder, _FILES)
        logger.info("fitting the kernel regression beside it (once)")
        retriever = fitted_retriever(config, splits, device, logging.DEBUG)
    assert isinstance(retriever, Retriever)
    with temporary_folder(folder) as temporary:
        retriever.save_pretrained(temporary)
        write_hashes(temporary)
        publish(temporary, folder, lambda _: True)
    return retriever


def _key(config: Config, train: PackedSplit, selection: PackedSplit | None) -> str:
    """A hash of what decides the map: captions, features and sampling stand in the names of the packed splits."""
    packed = [None if split is None else split.files.folder.name for split in (train, selection)]
    fit = {key: value for key, value in asdict(config.fit).items() if key not in ("baseline", "gates")}
    run = [config.train.protocol, config.train.holdout_fraction, config.train.seed]
    return digest({"version": VERSION, "packed": packed, "fit": fit, "run": run})[:16]
