"""Published checkpoints of DiffusionRet: a CLIP, the first stage and both denoisers in one dictionary of tensors."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from prvr.config import TokenCompat, TokenModelConfig
from prvr.models import ClipRetriever
from prvr.released.denoiser import load_released_reranker
from prvr.released.loading import fill, shape_of
from prvr.stages import CandidateReranker, fingerprint
from prvr.types import Direction

_DENOISERS: dict[Direction, str] = {"t2v": "diffusion_model.", "v2t": "diffusion_model_v."}
_AFFINE = ("weight", "bias")
_HEAD = 64
"""The width of each attention head in a CLIP, which the tensors do not contain."""
_CLIP_LAYER = {
    "attn.in_proj_{}": tuple(f"self_attn.{part}_proj.{{}}" for part in "qkv"),
    "attn.out_proj.{}": ("self_attn.out_proj.{}",),
    "ln_1.{}": ("layer_norm1.{}",),
    "ln_2.{}": ("layer_norm2.{}",),
    "mlp.c_fc.{}": ("mlp.fc1.{}",),
    "mlp.c_proj.{}": ("mlp.fc2.{}",),
}
"""The authors' tensors of a layer, each with the tensors of transformers that it stacks."""
_TEMPORAL_LAYER = {
    "attn.in_proj_{}": ("self_attn.in_proj_{}",),
    "attn.out_proj.{}": ("self_attn.out_proj.{}",),
    "ln_1.{}": ("norm1.{}",),
    "ln_2.{}": ("norm2.{}",),
    "mlp.c_fc.{}": ("linear1.{}",),
    "mlp.c_proj.{}": ("linear2.{}",),
}
_SINGLE = {
    "clip.logit_scale": "backbone.logit_scale",
    "clip.token_embedding.weight": "backbone.text_model.embeddings.token_embedding.weight",
    "clip.positional_embedding": "backbone.text_model.embeddings.position_embedding.weight",
    "clip.text_projection": "backbone.text_projection.weight",
    "clip.visual.class_embedding": "backbone.vision_model.embeddings.class_embedding",
    "clip.visual.conv1.weight": "backbone.vision_model.embeddings.patch_embedding.weight",
    "clip.visual.positional_embedding": "backbone.vision_model.embeddings.position_embedding.weight",
    "clip.visual.proj": "backbone.visual_projection.weight",
    "frame_position_embeddings.weight": "temporal.positions",
}
_BOTH = {
    "clip.ln_final": "backbone.text_model.final_layer_norm",
    "clip.visual.ln_pre": "backbone.vision_model.pre_layrnorm",
    "clip.visual.ln_post": "backbone.vision_model.post_layernorm",
    "text_weight_fc.0": "weigh_words.net.0",
    "text_weight_fc.2": "weigh_words.net.2",
    "video_weight_fc.0": "weigh_frames.net.0",
    "video_weight_fc.2": "weigh_frames.net.2",
}
"""Modules with a weight and a bias."""
_TRANSPOSED = ("clip.text_projection", "clip.visual.proj")
_TEXT, _VISION, _FRAMES = "clip.transformer.resblocks", "clip.visual.transformer.resblocks", "transformerClip.resblocks"


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
    from prvr.video.hub import import_transformers

    (positions, width), vocabulary = (
        shape_of(state, "clip.positional_embedding"),
        shape_of(state, "clip.token_embedding.weight"),
    )
    hidden, patch = shape_of(state, "clip.text_projection")[1], shape_of(state, "clip.visual.conv1.weight")
    side = patch[-1] * math.isqrt(shape_of(state, "clip.visual.positional_embedding")[0] - 1)
    text = _layers(state, _TEXT, width) | {
        "vocab_size": vocabulary[0],
        "max_position_embeddings": positions,
        "bos_token_id": vocabulary[0] - 2,
        "eos_token_id": vocabulary[0] - 1,
        "pad_token_id": vocabulary[0] - 1,
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
    matches = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in state)
    indices = {int(match[1]) for match in matches if match}
    return {
        "hidden_size": width,
        "num_hidden_layers": len(indices),
        "num_attention_heads": max(1, width // _HEAD),
        "intermediate_size": shape_of(state, f"{prefix}.0.mlp.c_fc.weight")[0],
    }


def _names(config: TokenModelConfig, layers: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The authors' names, and ours whose rows are stacked in each."""
    for authors, ours in _SINGLE.items():
        yield authors, (ours,)
    for authors, ours in _BOTH.items():
        for kind in _AFFINE:
            yield f"{authors}.{kind}", (f"{ours}.{kind}",)
    for prefix, place, table in (
        (_TEXT, "backbone.text_model.encoder.layers", _CLIP_LAYER),
        (_VISION, "backbone.vision_model.encoder.layers", _CLIP_LAYER),
        (_FRAMES, "temporal.layers", _TEMPORAL_LAYER),
    ):
        for number in range(layers[prefix]):
            for authors, parts in table.items():
                for kind in _AFFINE:
                    ours = tuple(f"{place}.{number}.{part.format(kind)}" for part in parts)
                    yield f"{prefix}.{number}.{authors.format(kind)}", ours


@torch.no_grad()
def _fill(retriever: ClipRetriever, state: Mapping[str, Tensor]) -> None:
    """Copies every tensor of the first stage into its place.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape.
    """
    clip, config = retriever.backbone.config, retriever.config
    layers = {_TEXT: clip.text_config.num_hidden_layers, _VISION: clip.vision_config.num_hidden_layers}
    own, table = dict(retriever.named_parameters()), dict(_names(config, layers | {_FRAMES: config.depth}))
    theirs = {name: value for name, value in state.items() if not name.startswith(tuple(_DENOISERS.values()))}
    positions = "frame_position_embeddings.weight"
    theirs[positions] = theirs[positions][: config.max_frames]  # the table is as long as the text's
    stacked = {authors: torch.cat([own[name] for name in names]) for authors, names in table.items() if len(names) > 1}
    slots = {authors: own[names[0]] for authors, names in table.items()} | stacked
    slots |= {name: slots[name].T for name in _TRANSPOSED}
    fill(slots, theirs, "one of DiffusionRet over a CLIP, with interaction wti and agg_module seqTransf")
    for authors, values in stacked.items():
        for name, part in zip(table[authors], values.chunk(len(table[authors])), strict=True):
            own[name].copy_(part)
