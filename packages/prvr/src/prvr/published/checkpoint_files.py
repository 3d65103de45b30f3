"""Converts checkpoint files of the authors' code into folders for `from_pretrained`.

These files are pickles. They are read with `torch.load(weights_only=True)` alone, which runs no code of the file.
"""

import re
import shutil
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prvr.config import Config, dump_config, load_config, preset_names
from prvr.data.atomic import new_folder
from prvr.models import AnyRetriever
from prvr.models.pretrained import CARD_HEAD, write_model
from prvr.objective import Objective
from prvr.published.diffusionret import CandidateReranker, DiffusionStage
from prvr.published.diffusionret.checkpoints import is_diffusionret, load_released_diffusionret
from prvr.published.loading import CheckpointError, has_words, load_released, preset_of, released_sizes, system_of
from prvr.published.tensor_names import canonical_names
from prvr.reading import short
from prvr.stages import Pipeline
from prvr.stages.pipelines import FIRST
from prvr.types import Direction

DATASETS = ("tvr", "activitynet", "charades")
"""The data sets for which the systems of PRVR have a preset each; Holmes with two query branches for TVR only."""
BENCHMARKS = ("msrvtt", "lsmdc", "msvd", "didemo", "activitynet")
"""Those for which DiffusionRet has one."""

_SCHEDULES = ("ConstantLR", "WarmupLinearSchedule", "WarmupConstantSchedule", "WarmupCosineSchedule")
"""The classes of a learning-rate schedule that their optimiser can hold."""
_TENSORS = ("state_dict", "model", "model_state_dict")
_CONFIG = ("config", "model_cfg", "cfg")
_EXPECTED = (
    "Expected {'state_dict': tensors by name, 'config': dictionary, ...}, as their save_ckpt writes it. The keys "
    "'model' and 'model_cfg', or a plain dictionary of tensors, are read too"
)


def read_checkpoint(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the configuration (empty if there is none) of a checkpoint file.

    The tensors stand under "state_dict", "model" or "model_state_dict", or are the file's whole dictionary; the
    configuration under "config", "model_cfg" or "cfg". A DataParallel prefix "module." is taken off.

    Raises:
        CheckpointError: the file is missing, damaged, holds other objects, or has another layout.
    """
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file.")
    try:
        with torch.serialization.safe_globals(_harmless()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on pickle protocols; what cannot be read is explained below
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch raise whatever its code meets
        classes = re.search(r"GLOBAL (\S+)", str(error))
        if classes is None:
            raise CheckpointError(
                f"{file}: not a torch checkpoint ({short(str(error), 300)}). Copy it again."
            ) from error
        raise CheckpointError(
            f"{file}: not loaded, because reading {classes.group(1)} could run code. {_EXPECTED}. If you trust the "
            "file, save it again where it was made: "
            "torch.save({'state_dict': ckpt['state_dict'], 'config': dict(ckpt['config'])}, 'plain.ckpt')."
        ) from error
    return _tensors(file, content), _config(content)


def _harmless() -> list[Any]:
    """The other types that their files hold, read as plain values.

    Configurations: attribute dictionaries and numpy numbers. The state of their optimiser: its learning-rate schedule.
    """
    from numpy._core.multiarray import scalar

    return [
        (OrderedDict, "easydict.EasyDict"),
        (OrderedDict, "addict.addict.Dict"),
        *((OrderedDict, f"Opts.optimization.{schedule}") for schedule in _SCHEDULES),
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
        np.dtype,
        *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64, np.int32, np.bool_)),
    ]


def _tensors(file: Path, content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{file}: holds a {type(content).__name__}, not a dictionary. {_EXPECTED}.")
    for candidate in (*(content.get(key) for key in _TENSORS), content):
        if isinstance(candidate, Mapping) and candidate and all(isinstance(v, Tensor) for v in candidate.values()):
            return canonical_names({str(name): tensor for name, tensor in candidate.items()})
    keys = ", ".join(sorted(map(str, content))[:8]) or "nothing"
    raise CheckpointError(f"{file}: no dictionary of tensors found; the file holds: {keys}. {_EXPECTED}.")


def _config(content: Mapping[str, Any]) -> dict[str, Any]:
    config = next((content[key] for key in _CONFIG if isinstance(content.get(key), Mapping)), {})
    return {str(key): value for key, value in config.items()}


@dataclass(frozen=True)
class Converted:
    """A checkpoint of the authors' code as our parts.

    Args:
        retriever: the model, in eval mode.
        objective: its losses, with their parameters.
        config: the preset of the data set, with the model and the losses of the checkpoint.
        system: the name of the system, for example "HLFormer".
        source: where the configuration is from, in words.
        rerankers: those of DiffusionRet, by direction; none where only its first stage was saved.
    """

    retriever: AnyRetriever
    objective: Objective
    config: Config
    system: str
    source: str
    rerankers: Mapping[Direction, CandidateReranker]


def convert_checkpoint(file: Path, dataset: str, out: Path) -> Converted:
    """Convert a checkpoint of the authors' code into a folder, which is written whole or not at all.

    The folder receives the retriever as `save_pretrained` writes it, `objective.safetensors`, and a `config.yaml` with
    the preset of the data set and the model and the losses of the checkpoint. Of DiffusionRet with its denoisers it is
    the folder of a pipeline: all of this in `first`, and a `diffusion` stage.

    Args:
        file: holds a dictionary as `read_checkpoint` describes it.
        dataset: one of `DATASETS`, or of `BENCHMARKS` for DiffusionRet.
        out: the folder, new or empty.

    Raises:
        CheckpointError: the file cannot be read, holds something else than one of the systems, or was trained on
            another data set.
        prvr.data.DataError: `out` is taken.
    """
    with new_folder(out) as folder:
        state, theirs = read_checkpoint(file)
        collection = theirs.get("collection", dataset)
        if collection in DATASETS and collection != dataset:
            raise CheckpointError(f"{file}: was trained on {collection}, not on {dataset}. Choose that data set.")
        try:
            converted = (_diffusionret if is_diffusionret(state) else _prvr)(state, theirs, dataset)
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error}") from error
        retriever, config, stages = converted.retriever, converted.config, converted.rerankers
        card = f"""{CARD_HEAD}# {config.name}

Converted from `{file.name}`, a checkpoint of the authors' code of {converted.system}, made for `{dataset}`:
{config.model.video_dim}-wide frame features, {config.model.query_dim}-wide word features. Load it with
`prvr.models.{type(retriever).__name__}.from_pretrained(PATH)`, score it with
`prvr evaluate PATH --data-root ROOT`. `objective.safetensors` holds the parameters of the losses.
"""
        first = folder / FIRST if stages else folder
        first.mkdir(exist_ok=True)
        write_model(first, retriever, converted.objective, card)
        for place in {first, folder}:
            (place / "config.yaml").write_text(dump_config(config), encoding="utf-8", newline="\n")
        if stages:
            Pipeline(retriever, [DiffusionStage(stages)]).write_stages(folder)
        for weights in folder.rglob("*.safetensors"):
            shutil.copymode(first / "README.md", weights)  # safetensors makes them private to the user
    return converted


def _prvr(state: Mapping[str, Tensor], theirs: dict[str, Any], dataset: str) -> Converted:
    system = system_of(state, theirs)
    name = system.removesuffix("_Net").replace("_", "-")
    words = has_words(state)
    sets = tuple(each for each in DATASETS if preset_of(system, each, words) in preset_names())
    _expect(dataset, sets, f"{name} with two query branches" if words else name)
    preset = preset_of(system, dataset, words)
    retriever, objective = load_released(state, {"model": system} | released_sizes(system, state) | theirs, preset)
    config = replace(load_config(preset), model=retriever.config, loss=objective.config)
    source = "from the checkpoint" if theirs else f"as published ({preset}), sizes from the tensors"
    return Converted(retriever, objective, config, name, source, {})


def _diffusionret(state: Mapping[str, Tensor], theirs: dict[str, Any], dataset: str) -> Converted:
    _expect(dataset, BENCHMARKS, "DiffusionRet")
    preset, like = load_config("diffusionret-msrvtt-released"), load_config(f"diffusionret-{dataset}")
    retriever, rerankers = load_released_diffusionret(state, theirs, like.model.max_frames, like.model.max_words)
    data = replace(preset.data, collection=f"{like.data.collection}-pixels")
    config = replace(preset, name=like.name, model=retriever.config, data=data)
    source = "from the tensors, lengths and data as published"
    return Converted(retriever, Objective(config.loss, config.model), config, "DiffusionRet", source, rerankers)


def _expect(dataset: str, choices: tuple[str, ...], system: str) -> None:
    if dataset not in choices:
        raise CheckpointError(f"{system} has no checkpoints for {dataset}: choose one of {', '.join(choices)}")
