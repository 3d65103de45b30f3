"""Published checkpoints: the authors' configuration and tensors onto our parts."""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prvr.config import LossConfig, ModelConfig, load_config
from prvr.errors import PrvrError
from prvr.models import Retriever, project_bounds
from prvr.objective import Objective
from prvr.published.tensor_names import CONSTANT, UNUSED, canonical_names, tensors
from prvr.reading import short

logger = logging.getLogger(__name__)

_MOST_BLOCKS = 64


def key_table(text: str) -> dict[str, tuple[str, Any]]:
    """A table by our keys; each line: the authors' key, ours, what a missing one means; nothing: it must be there."""
    rows = map(str.split, text.strip().splitlines())
    return {ours: (theirs, json.loads(rest[0]) if rest else ...) for theirs, ours, *rest in rows}


_KEYS = key_table(
    """
    visual_feat_dim     model.video_dim
    q_feat_size         model.query_dim
    hidden_size         model.hidden
    n_heads             model.heads
    map_size            model.num_clips                  32
    max_ctx_l           model.max_frames                 128
    max_desc_l          model.max_words                  30
    sft_factor          model.fusion_temperature         0.6
    lorentz_dim         model.lorentz_dim                127
    input_drop          model.input_dropout              0.0
    drop                model.dropout                    0.0
    clip_scale_w        model.clip_weight
    frame_scale_w       model.frame_weight
    loss_factor[0]      loss.info_nce_clips.weight
    loss_factor[1]      loss.info_nce_frames.weight
    margin              loss.triplet.margin
    hard_pool_size      loss.triplet.hard_pool           20
    deterministic_tau   loss.query_structure.temperature 0.08
    curv_init           loss.entailment.curvature        1.0
    edl_tau             loss.evidence.temperature        0.05
    division_beta       loss.evidence.division           0.3
    smooth_beta         loss.evidence.smoothing          0.2
    edl_intra_video_tau loss.transport.temperature       0.06
    pot_scale           loss.transport.epsilon           0.1
    """
)
"""In brackets is the place in a list. The rest is as in our presets."""
_DIVERSITY = _KEYS | key_table(
    """
    loss_factor[2] loss.diversity.weight
    neg_factor[0]  loss.diversity.margin
    neg_factor[1]  loss.diversity.scale
    neg_factor[2]  loss.diversity.power 1.0
    """
)
_MATCHING = _DIVERSITY | key_table("loss_factor[3] loss.matching.weight")
_ALIASES = {
    "visual_input_size": "visual_feat_dim",
    "query_input_size": "q_feat_size",
    "inheritance_hidden": "hidden_size",
    "A_hidden_size": "exploration_hidden",
    "B_hidden_size": "hidden_size",
}
"""Keys of the authors' code under the names that a model's own configuration has, and those that are read here."""
_LOSSES = {"label_style": "hard", "distill_loss_decay": "exp"}
"""Keys of DL-DKD that only its losses read, and the value that ours have; soft labels are those of DL-DKD++."""
_ONE_BRANCH = {
    "model.branches": "clips",
    "model.frame_pooling": "none",
    "model.frame_query": "pooled",
    "loss.info_nce_frames.weight": 0.0,
}
"""Our keys of DL-DKD without its exploration branch."""


class System(NamedTuple):
    """What tells a system of the authors' code from others, and what its configuration says.

    Attributes:
        preset: the beginning of the names of its presets.
        mark: what the name of a tensor tells of it.
        keys: the keys of its configuration, as `key_table` gives them.
    """

    preset: str
    mark: str
    keys: Mapping[str, tuple[str, Any]]


SYSTEMS = {
    "DreamPRVR_Net": System(
        "dreamprvr",
        r"^diffusion_mlp\.",
        _DIVERSITY
        | key_table(
            """
            loss_factor[3]       loss.query_structure.weight
            loss_factor[4]       loss.prior_kl.weight
            loss_factor[5]       loss.diffusion.weight
            num_registers        model.registers.num
            timesteps            model.registers.steps
            num_diffusion_layers model.registers.layers
            attention_num        model.blocks
            """
        ),
    ),
    "HLFormer_Net": System(
        "hlformer",
        r"\.h_attns\.",
        _DIVERSITY
        | key_table(
            """
            loss_factor[3] loss.entailment.weight
            attention_num  model.blocks
            """
        ),
    ),
    "RAL4GMMV2_Net": System("ral", r"^pie_net_text\.fc\.weight$", _MATCHING),
    "MSC_PRVR_Net": System(
        "msc-prvr",
        r"^vproj_clip\.weight$",
        _KEYS
        | key_table(
            """
            max_desc_l model.max_words            77
            rkd_d_coef loss.text_distances.weight 10.0
            rkd_a_coef loss.text_angles.weight    20.0
            vl_coef    loss.alignment.weight      0.1
            sim_thr    loss.alignment.similarity  0.5
            -          model.num_clips            32
            """
        ),  # with the defaults of its options; `map_size` is the number of its frames
    ),
    "GMMFormerV2_Net": System("gmmformer-v2", r"^clip_encoder\.attn7\.norm1\.weight$", _MATCHING),
    "GMMFormer_Net": System("gmmformer", r"\.attn0\.", _DIVERSITY),
    "Holmes_Net": System(
        "holmes",
        r"\.e_attns\.",
        _DIVERSITY
        | key_table(
            """
            loss_factor[3] loss.transport.weight
            loss_factor[4] loss.evidence.weight
            loss_factor[5] loss.dissent.weight  0.0
            """
        ),
    ),
    "MS_SL_Net": System(
        "ms-sl",
        r"^mapping_linear\.0\.weight$",
        _KEYS
        | key_table(
            """
            clip_scale_w   model.clip_weight               0.7
            frame_scale_w  model.frame_weight              0.3
            loss_factor[0] loss.info_nce_clips.weight      0.02
            loss_factor[1] loss.key_clip_nce.weight        0.04
            -              loss.info_nce_frames.weight     0.0
            margin         loss.key_clip_triplet.margin
            hard_pool_size loss.key_clip_triplet.hard_pool 20
            """
        ),  # its checkpoints hold the configuration of the model alone, without the weights of the score and the losses
    ),
    "DLDKD": System(
        "dl-dkd",
        r"^out_mapping_linear\.weight$",
        _KEYS
        | key_table(
            """
            clip_scale_w       model.clip_weight              0.7
            frame_scale_w      model.frame_weight             0.3
            inher_nce_weight   loss.info_nce_clips.weight     0.04
            explore_nce_weight loss.info_nce_frames.weight    0.04
            kl_intra_weight    loss.frame_distillation.weight 0.1
            exponential_k      loss.frame_distillation.decay  0.95
            """
        ),  # the weights of the score stand in its code, those of the losses among its options
    ),
}
"""By the name of its class. The first whose mark a tensor has counts, since later systems build on earlier."""


class CheckpointError(PrvrError, ValueError):
    """A checkpoint that does not fit the configuration."""


def system_of(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> str:
    """Which of `SYSTEMS` a checkpoint is of, for example "HLFormer_Net".

    Raises:
        CheckpointError: none of them.
    """
    named = config.get("model", config.get("model_name"))
    if named in SYSTEMS:
        return str(named)
    for name, system in SYSTEMS.items():
        if any(re.search(system.mark, key) for key in state):
            return name
    raise CheckpointError(
        f"not a checkpoint of {', '.join(SYSTEMS)}: none of its {len(state)} tensors has a known name"
        + (f" (first: {next(iter(state))!r})" if state else "")
    )


def has_words(state: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint has a second query encoder, whose words the frames are compared with (Holmes)."""
    return any(name.startswith("frame_branch_query_encoder.") for name in state)


def preset_of(system: str, dataset: str, words: bool = False) -> str:
    """The name of the preset of a system, and of its second query encoder, for a data set.

    Examples:
        >>> preset_of("HLFormer_Net", "tvr"), preset_of("MS_SL_Net", "charades")
        ('hlformer-tvr', 'ms-sl-charades')
    """
    return f"{SYSTEMS[system].preset}-{'words-' if words and system == 'Holmes_Net' else ''}{dataset}"


def _blocks(system: str, count: int) -> list[dict[str, Any]]:
    if not isinstance(count, int) or not 0 <= count <= _MOST_BLOCKS:
        raise CheckpointError(f"attention_num is {short(count)}, expected a whole number up to {_MOST_BLOCKS}")
    spaces, powers = ("euclidean", "lorentz"), range(1, count // 2)
    if system == "DreamPRVR_Net":
        spaces, powers = ("euclidean",), range(-2, count - 3)
    return [{"space": space, "width": width} for space in spaces for width in (None, *(2.0**p for p in powers))]


def released_config(
    system: str, config: Mapping[str, Any], words: bool = False, preset: str | None = None
) -> tuple[ModelConfig, LossConfig]:
    """Our configuration of a released model: that of a preset of the system, with the authors' values.

    Args:
        system: one of `SYSTEMS`.
        config: their configuration; their names (`visual_feat_dim`, `loss_factor`, `neg_factor`, ...). DL-DKD with
            `double_branch` False has one branch.
        words: the model has a second query encoder for the frames, which their configuration does not tell.
        preset: the name of the preset that stands for all keys that `config` lacks, though not for a part of a list;
            None: for those that the authors' configurations never have, as the preset for TVR.

    Raises:
        CheckpointError: an unknown system, or a key that is missing.
        ConfigError: a value that our models do not take.
    """
    if system not in SYSTEMS:
        raise CheckpointError(f"unknown system {system!r}, expected one of {', '.join(SYSTEMS)}")
    own, record = dict[str, Any](), SYSTEMS[system]
    config = {name: config[other] for other, name in _ALIASES.items() if other in config} | dict(config)
    if system == "DLDKD":
        for key, ours in _LOSSES.items():
            if config.get(key, ours) != ours:
                logger.warning(
                    "%s is %r: scores do not depend on it, but the losses here are those of %r", key, config[key], ours
                )
        width, other = (config.get(name) for name in ("hidden_size", "exploration_hidden"))
        if not config.get("double_branch", True):
            own = _ONE_BRANCH
        elif None not in (width, other) and width != other:
            raise CheckpointError(
                f"its branches are {short(width)} and {short(other)} wide: those of DL-DKD here have one width"
            )
    for name in ("loss_factor", "neg_factor"):
        config |= {f"{name}[{place}]": float(number) for place, number in enumerate(config.get(name) or ())}
    missing = {
        theirs
        for theirs, default in record.keys.values()
        if default is ... and theirs not in config and (preset is None or theirs.partition("[")[0] in config)
    }
    if missing:
        raise CheckpointError(
            f"the checkpoint's configuration lacks {', '.join(sorted(missing))}; it has: {', '.join(sorted(config))}"
        )
    keys = {
        ours: config.get(theirs, default)
        for ours, (theirs, default) in record.keys.items()
        if theirs in config or preset is None
    } | own
    if not words:
        keys.pop("loss.dissent.weight", None)
    elif keys.get("loss.dissent.weight"):
        keys["loss.dissent.temperature"] = keys["loss.evidence.temperature"]
    if "model.blocks" in keys:  # of the other systems there are eight, whatever `attention_num` says
        keys["model.blocks"] = _blocks(system, keys["model.blocks"])
    ours = load_config(preset or preset_of(system, "tvr", words), keys, shared=True)
    assert isinstance(ours.model, ModelConfig)
    return ours.model, ours.loss


def released_sizes(system: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The keys of the authors' configuration that follow from the shapes of the tensors.

    Args:
        system: as `system_of` gives it.
        state: tensors by the authors' names.

    Raises:
        CheckpointError: a tensor that tells a size is missing.
    """
    hidden, video_dim = shape_of(state, f"{'visual' if system == 'DLDKD' else 'clip'}_input_proj.net.1.weight")
    sizes = {
        "visual_feat_dim": video_dim,
        "q_feat_size": shape_of(state, "query_input_proj.net.1.weight")[1],
        "hidden_size": hidden,
        "attention_num": count_of(state, r"clip_encoder\.([eh]_attns\.\d+)\."),
    }
    if system == "HLFormer_Net":
        sizes["lorentz_dim"] = shape_of(state, "clip_encoder.h_attns.0.self.input_proj.net.1.weight")[0]
    if system == "DreamPRVR_Net":
        sizes["num_registers"] = shape_of(state, "video_qformer.query_tokens")[-2]
        sizes["num_diffusion_layers"] = count_of(state, r"diffusion_mlp\.layers\.(\d+)\.")
    return sizes


def shape_of(state: Mapping[str, Tensor], name: str) -> tuple[int, ...]:
    """The shape of a tensor that a configuration follows from.

    Raises:
        CheckpointError: it is missing.
    """
    if name not in state:
        raise CheckpointError(f"the checkpoint lacks {name!r}, whose shape gives the size of the model")
    return tuple(state[name].shape)


def count_of(state: Mapping[str, Tensor], pattern: str) -> int:
    """The number of different values of the group of a pattern, which names begin with."""
    return len({match.group(1) for name in state if (match := re.match(pattern, name))})


@torch.no_grad()
def fill(slots: Mapping[str, Tensor], state: Mapping[str, Tensor], model: str) -> None:
    """Copy every tensor of a checkpoint into its place, or none.

    Args:
        slots: our tensors, or parts of them, by the authors' names.
        state: the tensors of the checkpoint.
        model: what it was expected to be a checkpoint of, for messages.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape; the message names it.
    """
    for problem, wrong in (("lacks", slots.keys() - state.keys()), ("has unknown", state.keys() - slots.keys())):
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            first = ", ".join(sorted(wrong)[:3])
            raise CheckpointError(f"the checkpoint {problem} tensors: {first}{more}. Expected {model}.")
    for name, slot in slots.items():
        if slot.shape != state[name].shape:
            raise CheckpointError(
                f"{name} has shape {tuple(state[name].shape)}, expected {tuple(slot.shape)}. Expected {model}."
            )
        if not bool(state[name].isfinite().all()):
            raise CheckpointError(f"{name} holds NaN or infinity: the training diverged, or the file is damaged.")
    for name, slot in slots.items():
        slot.copy_(state[name])


def load_released(
    state_dict: Mapping[str, Tensor], config: Mapping[str, Any], preset: str | None = None
) -> tuple[Retriever, Objective]:
    """A retriever and its objective from the authors' tensors and configuration.

    Args:
        state_dict: tensors (or arrays) by the authors' names.
        config: the authors' configuration, see `released_config`.
        preset: see `released_config`.

    Returns:
        Both in eval mode and in the checkpoint's precision; bounded parameters are already within their bounds.

    Raises:
        CheckpointError: a missing tensor, an unknown one, or one of another shape; the message names it.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError(f"config is {short(config)}, expected the authors' configuration, a dictionary")
    for name, value in state_dict.items():
        if not isinstance(value, Tensor | np.ndarray):
            raise CheckpointError(
                f"state_dict[{name!r}] is of type {type(value).__name__}, expected tensors by their names. Of a whole "
                "checkpoint, pass its 'state_dict' or 'model'; prvr convert checkpoint reads the file itself"
            )
    state = canonical_names({key: torch.as_tensor(value) for key, value in state_dict.items()})
    try:
        system = system_of(state, config)
        if system == "DLDKD":  # theirs is an option of the command, which no checkpoint holds
            config = {"double_branch": "exp_out_mapping_linear.weight" in state} | dict(config)
        model, loss = released_config(system, config, has_words(state), preset)
    except CheckpointError:
        raise
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise CheckpointError(f"the checkpoint's configuration cannot be used ({short(str(error), 300)})") from error
    retriever = Retriever(model)
    objective = Objective(loss, model, retriever.registers)
    if UNUSED in state and model.fusion != "token_guided":
        retriever.register_buffer(UNUSED, torch.empty_like(state[UNUSED]), persistent=False)
    dtype = next((t.dtype for t in state.values() if t.is_floating_point() and t.ndim > 1), torch.float32)
    slots = tensors(retriever.to(dtype).eval()) | tensors(objective.to(dtype).eval())
    constants = {name: slot for name, slot in slots.items() if name.endswith(CONSTANT)}  # some files lack them
    fill(slots, state | constants, "the model, data set and number of blocks that its configuration names")
    project_bounds(retriever, objective)
    return retriever, objective
