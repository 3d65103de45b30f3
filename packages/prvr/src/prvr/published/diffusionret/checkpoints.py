"""Published checkpoints of DiffusionRet: a CLIP, the first stage and both denoisers in one dictionary of tensors."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.clip_retriever import ClipRetriever
from prvr.published.diffusionret.model_config import TokenCompat, TokenModelConfig
from prvr.published.diffusionret.released import load_released_reranker
from prvr.published.diffusionret.stage import fingerprint
from prvr.published.loading import count_of, fill, shape_of
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
    retriever = ClipRetriever(_model_config(state, max_frames, max_words))
    _fill(retriever, state)
    rerankers: dict[Direction, CandidateReranker] = {}
    trained_on = fingerprint(retriever)
    for direction, prefix in _DENOISERS.items():
        own = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
        if own:
            options = {"diffusion_steps": 50} | dict(config)
            rerankers[direction] = load_released_reranker(own, options, direction, trained_on)
    return retriever.eval(), rerankers


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


def _fill(retriever: ClipRetriever, state: Mapping[str, Tensor]) -> None:
    """Copies every tensor of the first stage into its place.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape.
    """
    slots = renamed(dict(retriever.named_parameters()), _NAMES)
    slots |= {name: slots[name].T for name in ("clip.text_projection", "clip.visual.proj")}
    own = {name: tensor for name, tensor in state.items() if not name.startswith(tuple(_DENOISERS.values()))}
    theirs = renamed(own, {})
    positions = "frame_position_embeddings.weight"
    theirs[positions] = theirs[positions][: retriever.config.max_frames]  # the table is as long as the text's
    fill(slots, theirs, "one of DiffusionRet over a CLIP, with interaction wti and agg_module seqTransf")
