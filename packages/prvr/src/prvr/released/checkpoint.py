"""Published checkpoints: the authors' configuration and tensors onto our parts."""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from prvr.config import BlockConfig, Compat, LossConfig, ModelConfig, RegisterConfig
from prvr.errors import PrvrError
from prvr.models.layers import project_bounds
from prvr.models.retriever import Retriever
from prvr.objective import Objective
from prvr.reading import short
from prvr.released.names import names

__all__ = ["CheckpointError", "load_released", "released_config", "system_of"]

_MOST_BLOCKS = 64
SYSTEMS = ("HLFormer_Net", "DreamPRVR_Net", "GMMFormer_Net")


class CheckpointError(PrvrError, ValueError):
    """A checkpoint that does not fit the configuration."""


def system_of(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> str:
    """Which of the three systems a checkpoint is of: "HLFormer_Net", "DreamPRVR_Net" or "GMMFormer_Net".

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
    raise CheckpointError(
        f"this is no checkpoint of {', '.join(SYSTEMS)}: none of its {len(state)} tensors has a known name"
        + (f" (first: {next(iter(state))!r})" if state else "")
    )


def _need(config: Mapping[str, Any], key: str) -> Any:
    if key not in config:
        raise CheckpointError(f"the checkpoint's configuration lacks {key!r}; it has: {', '.join(sorted(config))}")
    return config[key]


def _blocks(system: str, count: int) -> tuple[BlockConfig, ...]:
    if not isinstance(count, int) or not 0 <= count <= _MOST_BLOCKS:
        raise CheckpointError(f"attention_num is {short(count)}, expected a whole number up to {_MOST_BLOCKS}")
    if system == "GMMFormer_Net":
        return tuple(BlockConfig(width=width) for width in (None, 0.5, 1.0, 5.0))
    if system == "DreamPRVR_Net":
        return (BlockConfig(), *(BlockConfig(width=2.0**p) for p in range(-2, count - 3)))
    half = (None, *(2.0**p for p in range(1, count // 2)))
    return tuple(BlockConfig(space=space, width=w) for space in ("euclidean", "lorentz") for w in half)


def released_config(system: str, config: Mapping[str, Any]) -> tuple[ModelConfig, LossConfig]:
    """Our configuration of a released model from the authors' dictionary.

    Args:
        system: "HLFormer_Net", "DreamPRVR_Net" or "GMMFormer_Net".
        config: their configuration; their names (`visual_feat_dim`, `loss_factor`, `neg_factor`, ...).

    Raises:
        CheckpointError: an unknown system, or a key that is missing.
    """
    if system not in SYSTEMS:
        raise CheckpointError(f"unknown system {system!r}, expected one of {', '.join(SYSTEMS)}")
    gmm, dream = system == "GMMFormer_Net", system == "DreamPRVR_Net"
    registers = RegisterConfig()
    if dream:
        registers = RegisterConfig(
            kind="diffusion",
            num=_need(config, "num_registers"),
            steps=_need(config, "timesteps"),
            layers=_need(config, "num_diffusion_layers"),
            start="prior_mean",
            loss_timesteps="all",
        )
    model = ModelConfig(
        video_dim=_need(config, "visual_feat_dim"),
        query_dim=_need(config, "q_feat_size"),
        hidden=_need(config, "hidden_size"),
        heads=_need(config, "n_heads"),
        num_clips=config.get("map_size", 32),
        max_frames=config.get("max_ctx_l", 128),
        max_words=config.get("max_desc_l", 30),
        layer="attention" if gmm else "transformer",
        depth=2 if gmm else 1,
        blocks=_blocks(system, 0 if gmm else _need(config, "attention_num")),
        fusion="mean" if gmm else "mean_guided",
        fusion_temperature=config.get("sft_factor", 0.6),
        window="multiply",
        lorentz_dim=config.get("lorentz_dim", 127),
        frame_pooling="attention" if gmm else "none",
        input_dropout=config.get("input_drop", 0.0),
        dropout=config.get("drop", 0.0),
        registers=registers,
        clip_weight=_need(config, "clip_scale_w"),
        frame_weight=_need(config, "frame_scale_w"),
        compat=Compat(
            window="released",
            padding="to_batch" if gmm else "to_length",
            lorentz="released",
            entailment="released",
            register_noise="start" if dream else "gaussian",
            register_times="random" if dream else "sincos",
            register_constants="float32" if dream else "float64",
        ),
    )
    weights = [float(w) for w in _need(config, "loss_factor")]
    pairs = [float(w) for w in _need(config, "neg_factor")]
    expected = {"HLFormer_Net": 4, "DreamPRVR_Net": 6, "GMMFormer_Net": 3}[system]
    if len(weights) < expected:
        raise CheckpointError(f"loss_factor has {len(weights)} numbers, {system} needs {expected}")
    loss = LossConfig(
        margin=_need(config, "margin"),
        hard_pool=config.get("hard_pool_size", 20),
        info_nce_clips=weights[0],
        info_nce_frames=weights[1],
        diversity=weights[2],
        diversity_margin=pairs[0],
        diversity_scale=pairs[1],
        diversity_power=pairs[2] if len(pairs) > 2 else 1.0,
        diversity_form="log_sum" if gmm else "focal",
        query_structure=weights[3] if dream else 0.0,
        query_structure_temperature=config.get("deterministic_tau", 0.08),
        entailment=weights[3] if system == "HLFormer_Net" else 0.0,
        entailment_curvature=config.get("curv_init", 1.0),
        prior_kl=weights[4] if dream else 0.0,
        diffusion=weights[5] if dream else 0.0,
    )
    return model, loss


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
        model, loss = released_config(system_of(state, config), config)
    except (ValidationError, TypeError, ValueError, LookupError, OverflowError) as error:
        if isinstance(error, PrvrError):
            raise
        raise CheckpointError(f"the checkpoint's configuration cannot be used ({short(str(error), 300)})") from error
    retriever = Retriever(model)
    objective = Objective(loss, model, retriever.registers)
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
