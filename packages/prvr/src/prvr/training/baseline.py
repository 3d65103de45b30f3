"""The linear map as a baseline of every other system."""

import logging
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import torch

from prvr.config import Config, FitConfig, ModelConfig, TrainConfig
from prvr.data import PackedSplit
from prvr.data.atomic import discard, publish, temporary_folder
from prvr.data.hashes import HASHES, digest, write_hashes
from prvr.errors import DataError, PrvrError
from prvr.models import Retriever, load_pretrained, path_alone
from prvr.models.pretrained import CONFIG, WEIGHTS
from prvr.stages import FirstStage
from prvr.training.closed_form import VERSION, fit_path
from prvr.training.splits import cache_folder, open_splits, run_corpus

logger = logging.getLogger(__name__)

_MOST = {"linear": 1e12, "linear, first setting": 3e12}
"""Multiplications of a pass up to which all settings of `fit` are compared, or the first ones taken."""
_GPU = 100  # times as many
_FILES = (CONFIG, WEIGHTS, HASHES, "README.md")


def linear_baseline(
    config: Config, retriever: FirstStage | None = None, device: torch.device | str = "cpu"
) -> dict[str, Retriever]:
    """The linear map beside a run, under the name of its row: fitted to the same training split with the same seed.

    It is fitted once: the cache keeps it in a folder whose name is made of all that decides it. A pass over the videos
    takes at most `videos x max_frames x width^2` multiplications, where the width is that of frames, or the number of
    Fourier features if that is larger. Up to 1e12 the settings of `fit` are compared, as `linear-*` does (within some
    minutes of one core); with `fit.baseline: auto`, up to 3e12 of a pass without Fourier features the first of each are
    taken, and beyond no map is fitted. On a GPU it may be 100 times as many.

    Args:
        config: the configuration of the run.
        retriever: its model: one that starts from a linear path has it already.
        device: where the map is fitted.

    Returns:
        Nothing for a run that is itself a linear map, for a model that reads no features, with `fit.baseline: never`,
        and for a corpus without a training split; else one retriever.

    Raises:
        PrvrError: the fit would take too long, or the data are missing or damaged.
    """
    model, fit = config.model, config.fit
    if isinstance(retriever, Retriever) and retriever.path is not None:
        return {"linear path": path_alone(retriever)} if retriever.has_blocks else {}
    corpus = run_corpus(config)
    if fit.baseline == "never" or model.stored_words or not corpus.caption_file("train").is_file():
        return {}
    sizes = ("video_dim", "query_dim", "num_clips", "max_frames", "max_words")
    same: dict[str, Any] = {name: getattr(model, name) for name in sizes}
    alone = ModelConfig(branches="none", start="linear", **same)
    name, frames = "linear", len(corpus.split("train").video_ids) * model.max_frames
    most = _GPU if torch.device(device).type == "cuda" else 1

    def products() -> int:
        """Multiplications of a pass."""
        return frames * max(model.video_dim, *fit.features) ** 2

    if fit.baseline == "auto" and products() > most * _MOST[name]:
        name, fit = "linear, first setting", first_setting(fit)
        if products() > most * _MOST[name]:
            raise DataError(
                f"fitting the linear map would take {products():.0e} multiplications and more. Set fit.baseline to "
                "always, or train a linear-* preset."
            )
    same = {name: getattr(config.train, name) for name in ("protocol", "holdout_fraction", "seed")}
    train = TrainConfig(epochs=0, **same)
    return {name: _fitted(Config("linear", alone, data=config.data, train=train, fit=fit), alone, device)}


def first_setting(fit: FitConfig) -> FitConfig:
    """A fit that chooses nothing: the first of the windows, features, penalties and temperatures."""
    names = ("windows", "features", "penalties", "temperatures")
    return replace(fit, **{name: getattr(fit, name)[:1] for name in names})


def _fitted(config: Config, model: ModelConfig, device: torch.device | str) -> Retriever:
    """The map of a configuration from the cache, where it is put first if it is not there, or not as it was."""
    with closing(open_splits(config)) as splits:
        selection = splits.choosing(config)
        folder = cache_folder(config) / "linear" / f"{config.data.collection}-{_key(config, splits.train, selection)}"
        try:
            if folder.exists():
                cached = load_pretrained(folder)
                if isinstance(cached, Retriever) and replace(cached.config, path=model.path) == model:
                    return cached
                raise DataError(f"{folder}: a model of another kind.")
        except PrvrError as error:
            logger.warning("%s Fitting it again now.", error)
            discard(folder, _FILES)
        logger.info("fitting the linear baseline (once)")
        model, path = fit_path(config, splits.train, device, selection=selection, level=logging.DEBUG)
    retriever = Retriever(model)
    retriever.get_submodule("path").load_state_dict(path)
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
