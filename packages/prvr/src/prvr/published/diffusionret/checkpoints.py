"""Published checkpoints of DiffusionRet: a CLIP, the first stage and both denoisers in one dictionary of tensors."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from prvr.published.diffusionret import (
    CandidateReranker,
    ClipRetriever,
    RerankerCompat,
    RerankerConfig,
    TokenCompat,
    TokenModelConfig,
    fingerprint,
)
from prvr.published.loading import CheckpointError, count_of, fill, key_table, shape_of
from prvr.published.tensor_names import name_table, renamed
from prvr.types import Direction

_DENOISERS: dict[Direction, str] = {"t2v": "diffusion_model.", "v2t": "diffusion_model_v."}
_HEAD = 64
"""The width of each attention head in a CLIP, which the tensors do not contain."""
_TEXT, _VISION, _FRAMES = "clip.transformer.resblocks", "clip.visual.transformer.resblocks", "transformerClip.resblocks"
_NAMES = name_table(
    """
    backbone.logit_scale                                       clip.logit_scale
    backbone.text_model.embeddings.token_embedding             clip.token_embedding
    backbone.text_model.embeddings.position_embedding.weight   clip.positional_embedding
    backbone.text_model.encoder.layers                         clip.transformer.resblocks
    backbone.text_model.final_layer_norm                       clip.ln_final
    backbone.text_projection.weight                            clip.text_projection
    backbone.vision_model.embeddings.class_embedding           clip.visual.class_embedding
    backbone.vision_model.embeddings.patch_embedding           clip.visual.conv1
    backbone.vision_model.embeddings.position_embedding.weight clip.visual.positional_embedding
    backbone.vision_model.pre_layrnorm                         clip.visual.ln_pre
    backbone.vision_model.encoder.layers                       clip.visual.transformer.resblocks
    backbone.vision_model.post_layernorm                       clip.visual.ln_post
    backbone.visual_projection.weight                          clip.visual.proj
    temporal.positions                                         frame_position_embeddings.weight
    temporal.layers                                            transformerClip.resblocks
    weigh_words.net                                            text_weight_fc
    weigh_frames.net                                           video_weight_fc
    self_attn                                                  attn
    layer_norm1                                                ln_1
    norm1                                                      ln_1
    layer_norm2                                                ln_2
    norm2                                                      ln_2
    mlp.fc1                                                    mlp.c_fc
    linear1                                                    mlp.c_fc
    mlp.fc2                                                    mlp.c_proj
    linear2                                                    mlp.c_proj
    """
)
"""Parts of the names of our tensors, and theirs; the last ones inside a layer, of transformers and of torch."""
_DENOISER = name_table(
    """
    query       q_proj
    key         k_proj
    value       v_proj
    merge       proj
    time_in     embed_timestep.time_embed.0
    time_out    embed_timestep.time_embed.2
    decoder_in  decoder.0
    decoder_out decoder.2
    """
)
"""Our parts of a denoiser, and theirs."""
_KEYS = key_table(
    """
    diffusion_steps steps
    -               spacing               "linspace"
    noise_schedule  schedule              "cosine"
    temp            attention_temperature 1.0
    d_temp          loss_temperature      100.0
    *_num           candidates            32
    *_alpha         weight                1.0
    *_temp          score_temperature     1.0
    """
)
"""Keys of the configuration, with the defaults of the published options; * is the direction."""


def is_diffusionret(state: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint has the names of DiffusionRet."""
    return any(name.startswith(_FRAMES) for name in state)


def load_released_diffusionret(
    state_dict: Mapping[str, Tensor], config: Mapping[str, Any], max_frames: int, max_words: int
) -> tuple[ClipRetriever, dict[Direction, CandidateReranker]]:
    """The first stage and the re-rankers of a published checkpoint, with the behaviour of the released code.

    Args:
        state_dict: tensors by the authors' names, in any precision.
        config: the authors' options, see `CandidateReranker.load_released`; `diffusion_steps` is 50 by default.
        max_frames, max_words: maximum numbers of frames and words; capped by the tables of positions.

    Returns:
        The retriever, and a re-ranker for each direction with a denoiser, in eval mode and float32.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape.
    """
    state = {name: torch.as_tensor(tensor).float() for name, tensor in state_dict.items()}
    denoisers: dict[Direction, dict[str, Tensor]] = {
        direction: {name: state.pop(name) for name in [*state] if name.startswith(prefix)}
        for direction, prefix in _DENOISERS.items()
    }
    retriever = ClipRetriever(_model_config(state, max_frames, max_words))
    slots = renamed(dict(retriever.named_parameters()), _NAMES)
    slots |= {name: slots[name].T for name in ("clip.text_projection", "clip.visual.proj")}
    theirs, positions = renamed(state, {}), "frame_position_embeddings.weight"
    theirs[positions] = theirs[positions][: retriever.config.max_frames]  # the table is as long as the text's
    fill(slots, theirs, "one of DiffusionRet over a CLIP, with interaction wti and agg_module seqTransf")
    options, trained_on = {"diffusion_steps": 50} | dict(config), fingerprint(retriever)
    return retriever.eval(), {
        direction: load_released_reranker(own, options, direction, trained_on)
        for direction, own in denoisers.items()
        if own
    }


def _model_config(state: Mapping[str, Tensor], max_frames: int, max_words: int) -> TokenModelConfig:
    """The configuration of the retriever, from the shapes of its tensors."""
    from prvr.encoders.hub import import_transformers

    positions, width = shape_of(state, "clip.positional_embedding")
    vocabulary = shape_of(state, "clip.token_embedding.weight")[0]
    hidden, patch = shape_of(state, "clip.text_projection")[1], shape_of(state, "clip.visual.conv1.weight")
    side = patch[-1] * math.isqrt(shape_of(state, "clip.visual.positional_embedding")[0] - 1)
    text = _layers(state, _TEXT, width) | {
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "bos_token_id": vocabulary - 2,
        "eos_token_id": vocabulary - 1,
        "pad_token_id": vocabulary - 1,
        "projection_dim": hidden,
    }
    vision = _layers(state, _VISION, patch[0])
    vision |= {"image_size": side, "patch_size": patch[-1], "projection_dim": hidden}
    clip = import_transformers().CLIPConfig(text_config=text, vision_config=vision, projection_dim=hidden)
    temporal = _layers(state, _FRAMES, hidden)
    return TokenModelConfig(
        kind="tokens",
        video_dim=3 * side**2,
        query_dim=1,
        hidden=hidden,
        heads=temporal["num_attention_heads"],
        depth=temporal["num_hidden_layers"],
        max_frames=min(max_frames, shape_of(state, "frame_position_embeddings.weight")[0]),
        max_words=min(max_words, positions),
        word_projection="none",
        sentence="last",
        clip=clip.to_diff_dict(),
        compat=TokenCompat(alignment="released", norms="released"),
    )


def _layers(state: Mapping[str, Tensor], prefix: str, width: int) -> dict[str, int]:
    """The sizes of a stack of layers, by the names of transformers."""
    return {
        "hidden_size": width,
        "num_hidden_layers": count_of(state, rf"{re.escape(prefix)}\.(\d+)\."),
        "num_attention_heads": max(1, width // _HEAD),
        "intermediate_size": shape_of(state, f"{prefix}.0.mlp.c_fc.weight")[0],
    }


def load_released_reranker(
    state_dict: Mapping[str, Tensor],
    config: Mapping[str, Any],
    direction: Direction = "t2v",
    trained_on: str | None = None,
) -> CandidateReranker:
    """A re-ranker from the authors' tensors and options, with the behaviour of the released code.

    Args:
        state_dict: tensors (or arrays) by the authors' names, with or without a prefix such as `t2v.`; of several
            denoisers, the one whose prefix names the direction is read.
        config: the authors' options by their names: `diffusion_steps` and, where they are not the published ones,
            `noise_schedule`, `temp`, `d_temp`, `neg`, and `t2v_num`, `t2v_alpha`, `t2v_temp` or the same of v2t.
        direction: "t2v" or "v2t".
        trained_on: the fingerprint of the retriever that it was trained over.

    Returns:
        In eval mode and in the checkpoint's precision.

    Raises:
        CheckpointError: no denoiser, several, or a tensor missing, unknown or of another shape; or an option is
            missing.
    """
    marker, other = f"{_DENOISER['query']}.weight", "v2t" if direction == "t2v" else "t2v"
    prefixes = [key.removesuffix(marker) for key in state_dict if key.endswith(marker)]
    matches = [p for p in prefixes if direction in p] or [p for p in prefixes if other not in p]
    if len(matches) != 1:
        names = ", ".join(repr(prefix + marker) for prefix in prefixes) or "none"
        raise CheckpointError(
            f"the weights of the {direction} denoiser: expected one tensor named {marker!r} (after a prefix that "
            f"names {direction!r}, if there are several), found {names}"
        )
    own = {
        key.removeprefix(matches[0]): torch.as_tensor(value)
        for key, value in state_dict.items()
        if key.startswith(matches[0]) and not key.endswith(".pe")  # a constant table
    }
    options = {ours: config.get(theirs.replace("*", direction), default) for ours, (theirs, default) in _KEYS.items()}
    if options["steps"] is ...:
        raise CheckpointError(
            "the configuration lacks 'diffusion_steps', the number of trained steps; it has: "
            f"{', '.join(sorted(config)) or 'nothing'}"
        )
    width = own[marker].shape[-1]
    if config.get("width", width) != width:
        raise CheckpointError(f"the configuration has width={config['width']}, the weights have {width}")
    ours = RerankerConfig(
        width=width,
        negative=-1 if config.get("neg") else 0,
        trained_on=trained_on,
        compat=RerankerCompat(pooling="released", decoder="released", output="released"),
        **options,
    )
    reranker = CandidateReranker(ours, direction).to(own[marker].dtype).eval()
    fill(renamed(reranker.denoiser.state_dict(), _DENOISER), own, "one of the DiffusionRet denoiser")
    return reranker
