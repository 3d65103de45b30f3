"""The retriever that a configuration describes, new or from a folder."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from prvr.config import (
    RETRIEVERS,
    AnyModelConfig,
    ConfigError,
    ModelConfig,
    config_to_dict,
    validated,
)
from prvr.config.load import set_key
from prvr.data.hashes import check_hashes
from prvr.errors import InputError
from prvr.models.own_retriever import OwnRetriever
from prvr.models.pretrained import CONFIG, pretrained_folder, read_model_config
from prvr.models.retriever import Retriever
from prvr.reading import short

AnyRetriever = Retriever | OwnRetriever
"""A member of the family, or a retriever of another kind."""


def build_retriever(config: AnyModelConfig) -> AnyRetriever:
    """A retriever to be trained, with the weights of the pretrained part that it names.

    Raises:
        prvr.data.DataError: that part cannot be loaded.
        ValueError: it does not fit.

    Examples:
        >>> type(build_retriever(ModelConfig(video_dim=8, query_dim=8, hidden=8, heads=2))).__name__
        'Retriever'
    """
    if not (config.video_dim and config.query_dim and (config.stream is None or config.stream.dim)):
        raise InputError(
            f"model.video_dim={config.video_dim} and model.query_dim={config.query_dim}, or model.stream.dim: 0 "
            "stands for the width of the data, which are not known here: set all"
        )
    if isinstance(config, ModelConfig):
        retriever = Retriever(config)
        if retriever.query is not None:
            retriever.query.load_backbone()
        return retriever
    retriever = RETRIEVERS[config.kind].part(config)
    retriever.load_backbone()
    return retriever


def load_pretrained(folder: Path | str) -> AnyRetriever:
    """A retriever of any kind from a folder of `save_pretrained`.

    Args:
        folder: its path, or OWNER/NAME on the hub.

    Raises:
        prvr.data.DataError: there is no such folder or model, its files are damaged, or it is the `best/` of a run and
            they are not what was saved.
        prvr.ConfigError: its configuration cannot be used.
    """
    place = pretrained_folder(folder)
    check_hashes(place)
    values = read_model_config(place)
    kind = str(values.get("kind", "pooled"))[:80]
    try:
        retriever = RETRIEVERS[kind].part
    except InputError as error:
        raise ConfigError(f"{place / CONFIG}: {error}") from error
    return retriever.from_pretrained(place)


def path_alone(retriever: Retriever) -> Retriever:
    """The kernel path of a retriever that starts from one, as a retriever of its own."""
    names = ("video_dim", "query_dim", "num_clips", "max_frames", "max_words", "start", "path")
    same: dict[str, Any] = {name: getattr(retriever.config, name) for name in names}
    return _with_weights(retriever, ModelConfig(branches="none", **same))


def blocks_alone(retriever: Retriever) -> Retriever:
    """The same retriever without the kernel path that it starts from."""
    copy = _with_weights(retriever, replace(retriever.config, start="drawn"))
    copy.moment_heads = retriever.moment_heads
    return copy


def _with_weights(retriever: Retriever, config: ModelConfig) -> Retriever:
    """A retriever of some of the parts of another, with copies of their weights."""
    with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are replaced
        copy = Retriever(config)
    weights = retriever.state_dict()
    copy.load_state_dict({name: weights[name] for name in copy.state_dict()})
    return copy.train(retriever.training)


def reconfigured(retriever: AnyRetriever, changes: Mapping[str, Any]) -> AnyRetriever:
    """A retriever with the same weights and another configuration: other weights of the branches, fewer sampling steps.

    Args:
        retriever: stays as it is.
        changes: keys of its configuration, for example `{"clip_weight": 0.7, "registers.sampling_steps": 2}`.

    Raises:
        prvr.ConfigError: an unknown key or a bad value.
        InputError: the weights do not fit the new configuration, which asks for other tensors.

    Examples:
        >>> retriever = build_retriever(ModelConfig(video_dim=8, query_dim=8, hidden=8, heads=2))
        >>> reconfigured(retriever, {"clip_weight": 0.7, "frame_weight": 0.3}).config.clip_weight
        0.7
    """
    values = {"model": config_to_dict(retriever.config)}
    for key, value in changes.items():
        set_key(values, f"model.{key}", value, f"model.{key}")
    config: Any = validated(type(retriever.config), values["model"], "model")
    with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are replaced
        copy: Any = type(retriever)(config)
    copy.moment_heads = deepcopy(retriever.moment_heads)
    try:
        copy.load_state_dict(retriever.state_dict())
    except RuntimeError as error:
        settings = ", ".join(f"model.{key}={value}" for key, value in changes.items())
        raise InputError(
            f"{settings}: the trained weights do not fit ({short(str(error), 200)}). Change only keys that no tensor "
            "depends on, or train with this configuration"
        ) from error
    return copy.train(retriever.training)
