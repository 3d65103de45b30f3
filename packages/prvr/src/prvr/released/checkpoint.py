"""Published checkpoints: the authors' configuration and tensors onto our parts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from prvr.config import (
    BlockConfig,
    Compat,
    Config,
    LossConfig,
    ModelConfig,
    RegisterConfig,
    config_to_dict,
    flat,
)
from prvr.config.load import set_key
from prvr.errors import PrvrError
from prvr.models.layers import project_bounds
from prvr.models.retriever import Retriever
from prvr.objective import Objective
from prvr.reading import short
from prvr.released.names import UNUSED, names

_MOST_BLOCKS = 64

_MODEL = (
    ("visual_feat_dim", "video_dim", ...),
    ("q_feat_size", "query_dim", ...),
    ("hidden_size", "hidden", ...),
    ("n_heads", "heads", ...),
    ("map_size", "num_clips", 32),
    ("max_ctx_l", "max_frames", 128),
    ("max_desc_l", "max_words", 30),
    ("sft_factor", "fusion_temperature", 0.6),
    ("lorentz_dim", "lorentz_dim", 127),
    ("input_drop", "input_dropout", 0.0),
    ("drop", "dropout", 0.0),
    ("clip_scale_w", "clip_weight", ...),
    ("frame_scale_w", "frame_weight", ...),
)
"""The authors' keys of a model, our fields, and what a missing key means; `...`: it must be there."""
_REGISTERS = (("num_registers", "num", ...), ("timesteps", "steps", ...), ("num_diffusion_layers", "layers", ...))
_LOSS = (
    ("margin", "triplet.margin", ...),
    ("hard_pool_size", "triplet.hard_pool", 20),
    ("deterministic_tau", "query_structure.temperature", 0.08),
    ("curv_init", "entailment.curvature", 1.0),
    ("edl_tau", "evidence.temperature", 0.05),
    ("division_beta", "evidence.division", 0.3),
    ("smooth_beta", "evidence.smoothing", 0.2),
    ("edl_intra_video_tau", "transport.temperature", 0.06),
    ("pot_scale", "transport.epsilon", 0.1),
)
_EVERY_SYSTEM = ("info_nce_clips", "info_nce_frames", "diversity")
_WEIGHTS = {
    "HLFormer_Net": (*_EVERY_SYSTEM, "entailment"),
    "DreamPRVR_Net": (*_EVERY_SYSTEM, "query_structure", "prior_kl", "diffusion"),
    "GMMFormer_Net": _EVERY_SYSTEM,
    "Holmes_Net": (*_EVERY_SYSTEM, "transport", "evidence", "dissent"),
}
"""Our fields of the numbers in `loss_factor`, by system."""
_OPTIONAL = ("dissent",)
"""Those that may be missing at its end."""
_HOLMES_BLOCKS = 8  # whatever `attention_num` says
_PAIRS = ("diversity.margin", "diversity.scale", "diversity.power")
"""Our fields of the numbers in `neg_factor`, whose last may be missing."""
SYSTEMS = tuple(_WEIGHTS)


class CheckpointError(PrvrError, ValueError):
    """A checkpoint that does not fit the configuration."""


def system_of(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> str:
    """Which of `SYSTEMS` a checkpoint is of: "HLFormer_Net", "DreamPRVR_Net", "GMMFormer_Net" or "Holmes_Net".

    Raises:
        CheckpointError: none of them.
    """
    named = config.get("model", config.get("model_name"))
    if named in SYSTEMS:
        return str(named)
    if any(key.startswith("diffusion_mlp.") for key in state):
        return "DreamPRVR_Net"
    if any(".h_attns." in key for key in state):
        return "HLFormer_Net"
    if any(".attn0." in key for key in state):
        return "GMMFormer_Net"
    if any(".e_attns." in key for key in state):
        return "Holmes_Net"
    raise CheckpointError(
        f"this is no checkpoint of {', '.join(SYSTEMS)}: none of its {len(state)} tensors has a known name"
        + (f" (first: {next(iter(state))!r})" if state else "")
    )


def has_words(state: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint has a second query encoder, whose words the frames are compared with (Holmes)."""
    return any(name.startswith("frame_branch_query_encoder.") for name in state)


def _need(config: Mapping[str, Any], key: str) -> Any:
    if key not in config:
        raise CheckpointError(f"the checkpoint's configuration lacks {key!r}; it has: {', '.join(sorted(config))}")
    return config[key]


def _fields(config: Mapping[str, Any], keys: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Our fields from the authors' keys."""
    return {
        ours: _need(config, theirs) if default is ... else config.get(theirs, default) for theirs, ours, default in keys
    }


def _numbers(config: Mapping[str, Any], key: str, fields: Sequence[str], least: int, system: str) -> dict[str, float]:
    """Our fields from the numbers of a list."""
    numbers = [float(number) for number in _need(config, key)]
    if len(numbers) < least:
        raise CheckpointError(f"{key} has {len(numbers)} numbers, {system} needs {least}")
    return dict(zip(fields, numbers, strict=False))


def _blocks(system: str, count: int) -> tuple[BlockConfig, ...]:
    if not isinstance(count, int) or not 0 <= count <= _MOST_BLOCKS:
        raise CheckpointError(f"attention_num is {short(count)}, expected a whole number up to {_MOST_BLOCKS}")
    if system == "GMMFormer_Net":
        return tuple(BlockConfig(width=width) for width in (None, 0.5, 1.0, 5.0))
    if system == "Holmes_Net":
        return (BlockConfig(), *(BlockConfig(width=2.0**p) for p in range(-1, _HOLMES_BLOCKS - 2)))
    if system == "DreamPRVR_Net":
        return (BlockConfig(), *(BlockConfig(width=2.0**p) for p in range(-2, count - 3)))
    half = (None, *(2.0**p for p in range(1, count // 2)))
    return tuple(BlockConfig(space=space, width=w) for space in ("euclidean", "lorentz") for w in half)


def released_config(system: str, config: Mapping[str, Any], words: bool = False) -> tuple[ModelConfig, LossConfig]:
    """Our configuration of a released model from the authors' dictionary.

    Args:
        system: one of `SYSTEMS`.
        config: their configuration; their names (`visual_feat_dim`, `loss_factor`, `neg_factor`, ...).
        words: the model has a second query encoder for the frames, which their configuration does not tell.

    Raises:
        CheckpointError: an unknown system, or a key that is missing.
    """
    if system not in SYSTEMS:
        raise CheckpointError(f"unknown system {system!r}, expected one of {', '.join(SYSTEMS)}")
    gmm, dream, holmes = (system == f"{name}_Net" for name in ("GMMFormer", "DreamPRVR", "Holmes"))
    registers = RegisterConfig()
    if dream:
        registers = RegisterConfig(
            kind="diffusion", start="prior_mean", loss_timesteps="all", **_fields(config, _REGISTERS)
        )
    model = ModelConfig(
        **_fields(config, _MODEL),
        layer="attention" if gmm else "transformer",
        depth=2 if gmm else 1,
        blocks=_blocks(system, 0 if gmm or holmes else _need(config, "attention_num")),
        fusion="mean" if gmm else "mean_guided",
        window="multiply",
        frame_pooling="attention" if gmm else "none",
        frame_query="words" if words else "pooled",
        registers=registers,
        compat=Compat(
            window="released",
            padding="to_batch" if gmm else "to_length",
            lorentz="released",
            entailment="released",
            register_noise="start" if dream else "gaussian",
            register_times="random" if dream else "sincos",
            register_constants="float32" if dream else "float64",
            transport="released" if holmes else "masked",
        ),
    )
    fields = _WEIGHTS[system]
    weights = _numbers(config, "loss_factor", fields, sum(field not in _OPTIONAL for field in fields), system)
    if not words:
        weights.pop("dissent", None)  # their model with one query branch has no such term
    keys = _fields(config, _LOSS) | weights | _numbers(config, "neg_factor", _PAIRS, 2, system)
    keys["diversity.form"] = "log_sum" if gmm else "focal"
    if keys.get("dissent"):
        keys["dissent.temperature"] = keys["evidence.temperature"]
    values: dict[str, Any] = {}
    for key, value in keys.items():
        set_key(values, f"loss.{key}", value, system)
    return model, LossConfig(values["loss"])


def published_config(system: str, preset: Config, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The authors' configuration of a model: hyper-parameters as our preset has them, sizes as the tensors have them.

    Args:
        system: as `system_of` gives it.
        preset: the preset of that system and of the data set.
        state: tensors by the authors' names.

    Raises:
        CheckpointError: a tensor that tells a size is missing, or the preset is of another family.
    """
    model = preset.model
    if not isinstance(model, ModelConfig):
        raise CheckpointError(f"preset {preset.name}: is of another family than {system}. Name one of that system.")
    config = {theirs: getattr(model, ours) for theirs, ours, _ in _MODEL}
    keys = flat(config_to_dict(preset)["loss"])
    config |= {theirs: keys[ours] for theirs, ours, _ in _LOSS}
    hidden, video_dim = _shape(state, "clip_input_proj.net.1.weight")
    config |= {
        "model": system,
        "visual_feat_dim": video_dim,
        "q_feat_size": _shape(state, "query_input_proj.net.1.weight")[1],
        "hidden_size": hidden,
        "loss_factor": [keys[f"{field}.weight"] for field in _WEIGHTS[system]],
        "neg_factor": [keys[field] for field in _PAIRS],
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


@torch.no_grad()
def load_released(state_dict: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[Retriever, Objective]:
    """A retriever and its objective from the authors' tensors and configuration.

    Args:
        state_dict: tensors (or arrays) by the authors' names.
        config: the authors' configuration, see `released_config`.

    Returns:
        Both in eval mode and in the checkpoint's precision; bounded parameters are already within their bounds.

    Raises:
        CheckpointError: a missing tensor, an unknown one, or one of another shape; the message names it.
    """
    state = {key.removeprefix("module."): torch.as_tensor(value) for key, value in state_dict.items()}
    try:
        model, loss = released_config(system_of(state, config), config, has_words(state))
    except (ValidationError, TypeError, ValueError, LookupError, OverflowError) as error:
        if isinstance(error, PrvrError):
            raise
        raise CheckpointError(f"the checkpoint's configuration cannot be used ({short(str(error), 300)})") from error
    retriever = Retriever(model)
    objective = Objective(loss, model, retriever.registers)
    if UNUSED in state:
        retriever.register_buffer(UNUSED, torch.empty_like(state[UNUSED]), persistent=False)
    dtype = next((t.dtype for t in state.values() if t.is_floating_point() and t.ndim > 1), torch.float32)
    used = set()
    for module in (retriever.to(dtype), objective.to(dtype)):
        ours = dict(module.named_parameters()) | dict(module.named_buffers())
        for entry in names(module):
            used.add(entry.authors)
            if entry.ours is None:
                continue
            if entry.authors not in state:
                raise CheckpointError(
                    f"the checkpoint lacks {entry.authors!r}: is it of another model or of another number of blocks?"
                )
            slot, value = ours[entry.ours][entry.index], state[entry.authors]
            if slot.shape != value.shape:
                raise CheckpointError(
                    f"{entry.authors!r} has shape {tuple(value.shape)}, the configuration asks for "
                    f"{tuple(slot.shape)}: check the data set and the sizes in the configuration"
                )
            slot.copy_(value)
        project_bounds(module)
        module.eval()
    unknown = sorted(set(state) - used)
    if unknown:
        raise CheckpointError(
            f"{len(unknown)} tensors of the checkpoint have no place in this model, the first is {unknown[0]!r}: "
            "is it of another model?"
        )
    return retriever, objective
