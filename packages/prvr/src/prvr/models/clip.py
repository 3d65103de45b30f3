"""A token retriever that starts from a CLIP: its text layers see frames, its text projection words."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from prvr.errors import InputError
from prvr.models.token_retriever import TokenRetriever

__all__ = ["start_from_clip"]

_LAYER = {
    "norm1.weight": ("layer_norm1.weight",),
    "norm1.bias": ("layer_norm1.bias",),
    "self_attn.in_proj_weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "self_attn.in_proj_bias": tuple(f"self_attn.{part}_proj.bias" for part in "qkv"),
    "self_attn.out_proj.weight": ("self_attn.out_proj.weight",),
    "self_attn.out_proj.bias": ("self_attn.out_proj.bias",),
    "norm2.weight": ("layer_norm2.weight",),
    "norm2.bias": ("layer_norm2.bias",),
    "linear1.weight": ("mlp.fc1.weight",),
    "linear1.bias": ("mlp.fc1.bias",),
    "linear2.weight": ("mlp.fc2.weight",),
    "linear2.bias": ("mlp.fc2.bias",),
}
"""Our names of a layer's tensors, and those of `transformers` that are stacked to give each."""


@torch.no_grad()
def start_from_clip(retriever: TokenRetriever, clip: Mapping[str, Tensor]) -> None:
    """Copies the first text layers, the first text positions and the text projection of a CLIP into a retriever.

    The projection is copied where the retriever has one for words; frames are expected as the CLIP projects them.

    Args:
        retriever: changed in place.
        clip: the tensors of a `CLIPModel` of transformers, by their names.

    Raises:
        ValueError: a tensor is missing or has another shape: a CLIP of another width, with fewer layers or positions.
    """
    found = {
        "temporal.positions": _tensor(clip, "text_model.embeddings.position_embedding.weight")[
            : retriever.config.max_frames
        ]
    }
    for number in range(retriever.config.depth):
        for ours, theirs in _LAYER.items():
            parts = [_tensor(clip, f"text_model.encoder.layers.{number}.{name}") for name in theirs]
            found[f"temporal.layers.{number}.{ours}"] = torch.cat(parts)
    if isinstance(retriever.project_words, nn.Linear):
        found["project_words.weight"] = _tensor(clip, "text_projection.weight")
    own = dict(retriever.named_parameters())
    for name, tensor in found.items():
        if own[name].shape != tensor.shape:
            raise InputError(
                f"the CLIP gives {name} the shape {tuple(tensor.shape)}, this retriever expects "
                f"{tuple(own[name].shape)}: choose one whose text encoder has the width {retriever.config.hidden} and "
                f"at least {retriever.config.max_frames} positions"
            )
    for name, tensor in found.items():
        own[name].copy_(tensor)


def _tensor(clip: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in clip:
        raise InputError(
            f"the CLIP has no tensor {name!r}: expected a CLIPModel of transformers with at least as many text layers "
            "as the temporal transformer (model.depth)"
        )
    return clip[name]
