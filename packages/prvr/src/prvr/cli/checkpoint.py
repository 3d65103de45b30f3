"""Checkpoint files of the authors' code: their dictionary, and the configuration where it is missing.

They are pickles. Only `torch.load(weights_only=True)` reads them, which runs no code of the file.
"""

import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prvr.cli.console import CommandError
from prvr.config import Config, ModelConfig
from prvr.released import CheckpointError

__all__ = ["published_config", "read_checkpoint"]

_TENSORS = ("state_dict", "model", "model_state_dict")
_CONFIG = ("config", "model_cfg", "cfg")
_EXPECTED = (
    "Expected what their save_ckpt writes, {'state_dict': tensors by name, 'config': dictionary, ...}; "
    "'model' for the tensors, 'model_cfg' for the configuration, or a plain dictionary of tensors will do"
)


def read_checkpoint(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the configuration (empty where there is none) of a checkpoint file.

    The tensors stand under "state_dict", "model" or "model_state_dict", or are the file's whole dictionary; the
    configuration under "config", "model_cfg" or "cfg". A DataParallel prefix "module." is taken off.

    Raises:
        CommandError: the file is missing, damaged, holds other objects, or has another layout.
    """
    if not file.is_file():
        raise CommandError(f"{file}: no such file.")
    try:
        with torch.serialization.safe_globals(_harmless()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on pickle protocols; what cannot be read is explained below
            found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it holds {named.group(1)}" if named else str(error).splitlines()[0]
        raise CommandError(
            f"{file}: not loaded, because {what}, which is neither tensors nor plain values, and reading it could run "
            f"code of the file. {_EXPECTED}. If you trust the file, save it anew where it was made: "
            "torch.save({'state_dict': ckpt['state_dict'], 'config': dict(ckpt['config'])}, 'plain.ckpt')."
        ) from error
    except (
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise CommandError(f"{file}: not a readable torch checkpoint ({error}). Download or copy it again.") from error
    return _tensors(file, found), _config(found)


def _harmless() -> list[Any]:
    """What else their configurations may hold: attribute dictionaries, read as plain ones, and numpy's numbers."""
    from numpy._core.multiarray import scalar

    kinds = [type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64, np.int32, np.bool_)]
    return [
        (OrderedDict, "easydict.EasyDict"),
        (OrderedDict, "addict.addict.Dict"),
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
        np.dtype,
        *kinds,
    ]


def _tensors(file: Path, found: Any) -> dict[str, Tensor]:
    if not isinstance(found, Mapping):
        raise CommandError(f"{file}: holds a {type(found).__name__}, not a dictionary. {_EXPECTED}.")
    for candidate in (*(found.get(key) for key in _TENSORS), found):
        if isinstance(candidate, Mapping) and candidate and all(isinstance(v, Tensor) for v in candidate.values()):
            return {str(name).removeprefix("module."): tensor for name, tensor in candidate.items()}
    keys = ", ".join(sorted(map(str, found))[:8]) or "nothing"
    raise CommandError(f"{file}: no tensors by name in it; it holds: {keys}. {_EXPECTED}.")


def _config(found: Mapping[str, Any]) -> dict[str, Any]:
    config = next((found[key] for key in _CONFIG if isinstance(found.get(key), Mapping)), {})
    return {str(key): value for key, value in config.items()}


def published_config(system: str, preset: Config, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The authors' configuration of a model: hyper-parameters as our preset has them, sizes as the tensors have them.

    Args:
        system: as `system_of` gives it.
        preset: of that system and of the data set.
        state: tensors by the authors' names.

    Raises:
        prvr.released.CheckpointError: a tensor that tells a size is missing.
    """
    model, loss = preset.model, preset.loss
    if not isinstance(model, ModelConfig):
        raise CommandError(f"--preset {preset.name}: of another family than {system}. Name one of that system.")
    weights = {
        "GMMFormer_Net": [],
        "HLFormer_Net": [loss.entailment],
        "DreamPRVR_Net": [loss.query_structure, loss.prior_kl, loss.diffusion],
    }[system]
    hidden, video_dim = _shape(state, "clip_input_proj.net.1.weight")
    config = {
        "model": system,
        "visual_feat_dim": video_dim,
        "q_feat_size": _shape(state, "query_input_proj.net.1.weight")[1],
        "hidden_size": hidden,
        "n_heads": model.heads,
        "map_size": model.num_clips,
        "max_ctx_l": model.max_frames,
        "max_desc_l": model.max_words,
        "input_drop": model.input_dropout,
        "drop": model.dropout,
        "sft_factor": model.fusion_temperature,
        "clip_scale_w": model.clip_weight,
        "frame_scale_w": model.frame_weight,
        "margin": loss.margin,
        "hard_pool_size": loss.hard_pool,
        "loss_factor": [loss.info_nce_clips, loss.info_nce_frames, loss.diversity, *weights],
        "neg_factor": [loss.diversity_margin, loss.diversity_scale, loss.diversity_power],
        "deterministic_tau": loss.query_structure_temperature,
        "curv_init": loss.entailment_curvature,
        "attention_num": _count(state, r"clip_encoder\.([eh]_attns\.\d+)\."),
    }
    if system == "HLFormer_Net":
        config["lorentz_dim"] = _shape(state, "clip_encoder.h_attns.0.self.input_proj.net.1.weight")[0]
    if system == "DreamPRVR_Net":
        config |= {
            "num_registers": _shape(state, "video_qformer.query_tokens")[-2],
            "timesteps": model.registers.steps,
            "num_diffusion_layers": _count(state, r"diffusion_mlp\.layers\.(\d+)\."),
        }
    return config


def _shape(state: Mapping[str, Tensor], name: str) -> tuple[int, ...]:
    if name not in state:
        raise CheckpointError(f"the checkpoint lacks {name!r}, whose shape tells the sizes of the model")
    return tuple(state[name].shape)


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    return len({found.group(1) for name in state if (found := re.match(pattern, name))})
