"""The token retriever over a CLIP: started from its weights, or trained end to end on pixels and tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.config import TokenModelConfig
from prvr.errors import InputError
from prvr.models.layers import expect_at_most
from prvr.models.token_retriever import TokenRetriever
from prvr.text import TextEmbedding
from prvr.types import Labels, RetrieverOutput, Scores, VideoEmbedding

__all__ = ["ClipRetriever", "PixelBatch", "start_from_clip"]


@dataclass(frozen=True)
class PixelBatch:
    """Videos as pictures, queries as numbers of tokens.

    Args:
        pixels: `(v, l, 3, s, s)` frames, prepared as the CLIP expects them; rows past a video's end are arbitrary.
        frame_mask: `(v, l)` True = valid, at least one in each row.
        tokens: `(q, w)` numbers of tokens, those that begin and end a text included.
        token_mask: `(q, w)` True = valid, at the start of each row.
        labels: which video answers which query.

    Raises:
        ValueError: numbers of rows disagree.
    """

    pixels: Float[Tensor, "v l 3 s s"]
    frame_mask: Bool[Tensor, "v l"]
    tokens: Int[Tensor, "q w"]
    token_mask: Bool[Tensor, "q w"]
    labels: Labels

    def __post_init__(self) -> None:
        found = (len(self.pixels), len(self.tokens))
        wanted = (self.labels.videos, len(self.labels.query_to_video))
        if found != wanted or (len(self.frame_mask), len(self.token_mask)) != wanted:
            raise InputError(
                f"PixelBatch: {found[0]} videos with {len(self.frame_mask)} masks and {found[1]} queries with "
                f"{len(self.token_mask)}; the labels are of {wanted[0]} videos and {wanted[1]} queries"
            )


class ClipRetriever(nn.Module):
    """A CLIP of transformers under a `TokenRetriever`, trained with it (DiffusionRet as published).

    Its text layers and positions start the temporal transformer. `parameter_groups(..., backbone=retriever.backbone)`
    gives the CLIP a learning rate of its own. It is evaluated as any retriever, with tokens in place of words and
    pixels in place of frames.

    Args:
        clip: a `transformers.CLIPModel`; it is changed by training.
        config: the configuration of the retriever above it: as wide as the joint space, without projections.
        start: whether the temporal transformer starts from the CLIP; False where weights are loaded next.

    Raises:
        ValueError: another width, or projections.
    """

    def __init__(self, clip: Any, config: TokenModelConfig, *, start: bool = True) -> None:
        super().__init__()
        width = int(clip.config.projection_dim)
        kinds = {config.frame_projection, config.word_projection}
        if (config.hidden, config.video_dim, config.query_dim) != (width,) * 3 or kinds != {"none"}:
            raise InputError(
                f"this CLIP projects frames and words to {width}: expected hidden, video_dim and query_dim of {width} "
                f"and projections 'none', got {config.hidden}, {config.video_dim}, {config.query_dim} and "
                f"{config.frame_projection!r}, {config.word_projection!r}"
            )
        self.config = config
        self.backbone = clip
        self.head = TokenRetriever(config)
        if start:
            start_from_clip(self.head, clip.state_dict())

    def encode_text(self, tokens: Int[Tensor, "q w"], token_mask: Bool[Tensor, "q w"]) -> TextEmbedding:
        """Every token in the joint space, and the weight of each.

        Args:
            tokens: `(q, w)` numbers of tokens, at most `config.max_words`.
            token_mask: `(q, w)` True = valid.

        Raises:
            ValueError: too many tokens.
        """
        expect_at_most("tokens", tokens, self.config.max_words, "max_words")
        tokens = tokens.masked_fill(~token_mask, self.backbone.config.text_config.eos_token_id)
        hidden = self.backbone.text_model(input_ids=tokens, attention_mask=token_mask.long()).last_hidden_state
        words = self.backbone.text_projection(hidden).masked_fill(~token_mask[..., None], 0)
        return self.head.embed_words(words, token_mask)

    def encode_video(
        self, clips: object, pixels: Float[Tensor, "v l 3 s s"], frame_mask: Bool[Tensor, "v l"]
    ) -> VideoEmbedding:
        """Every frame in the joint space, then the temporal transformer; padded frames are not computed.

        Args:
            clips: not read.
            pixels: `(v, l, 3, s, s)`, at most `config.max_frames` frames.
            frame_mask: `(v, l)` True = valid.

        Raises:
            ValueError: too many frames.
        """
        seen = self.backbone.vision_model(pixel_values=pixels[frame_mask]).pooler_output
        rows = self.backbone.visual_projection(seen)
        frames = rows.new_zeros(*frame_mask.shape, rows.shape[-1]).masked_scatter(frame_mask[..., None], rows)
        return self.head.embed_frames(frames, frame_mask)

    def score(self, text: TextEmbedding, video: VideoEmbedding, dots: bool = False) -> Scores:
        """Scores of every query with every video, see `TokenRetriever.score`."""
        return self.head.score(text, video, dots)

    def for_scoring(self, video: VideoEmbedding) -> VideoEmbedding:
        """As `TokenRetriever.for_scoring`."""
        return self.head.for_scoring(video)

    def forward(self, batch: PixelBatch) -> RetrieverOutput:
        """Encode a batch and score every query with every video in it."""
        return self.output(*self.encode(batch))

    def encode(self, batch: PixelBatch) -> tuple[TextEmbedding, VideoEmbedding, None]:
        """Queries and videos of a batch; there are no registers."""
        text = self.encode_text(batch.tokens, batch.token_mask)
        return text, self.encode_video(None, batch.pixels, batch.frame_mask), None

    def output(self, text: TextEmbedding, video: VideoEmbedding, registers: None = None) -> RetrieverOutput:
        """The input of the losses, from encoded queries and videos."""
        return self.head.output(text, video, registers)

    def save_pretrained(self, folder: Path | str) -> None:
        """Writes `clip/` as transformers does, and `head/` as `TokenRetriever.save_pretrained` does."""
        self.backbone.save_pretrained(Path(folder) / "clip")
        self.head.save_pretrained(Path(folder) / "head")

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> "ClipRetriever":
        """Reads what `save_pretrained` wrote.

        Raises:
            prvr.data.DataError: there is no CLIP in it.
        """
        from prvr.video.pretrained import load_model

        head = TokenRetriever.from_pretrained(Path(folder) / "head")
        clip = load_model(str(Path(folder) / "clip"), "cpu").requires_grad_(True)
        retriever = cls(clip, head.config, start=False)
        retriever.head.load_state_dict(head.state_dict())
        return retriever


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
