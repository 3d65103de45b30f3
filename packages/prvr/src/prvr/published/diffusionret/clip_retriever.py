"""The token retriever over a CLIP: started from its weights, or trained end to end on pictures and token numbers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from prvr.errors import InputError
from prvr.models.pretrained import read_model_config
from prvr.published.diffusionret.model_config import TokenModelConfig
from prvr.published.diffusionret.token_retriever import (
    FrameFeatures,
    FrameMask,
    Frames,
    TokenRetriever,
    TokenRetrieverBase,
    WordFeatures,
    WordMask,
    Words,
)
from regdiff.masks import masked


class ClipRetriever(TokenRetrieverBase):
    """A token retriever with a CLIP of transformers, trained together (DiffusionRet as published).

    Frames are pictures, `(v, l, 3 s s)`, and words token numbers, `(q, w, 1)`, with those that begin and end a text:
    what the encoder `pixels:CLIP` gives. `prvr.models.build_retriever` makes one from the name of a CLIP.

    Args:
        config: its `clip` holds the configuration of the CLIP, whose weights are random until they are loaded.

    Attributes:
        backbone: the `CLIPModel`, trained at `optim.backbone_lr`.

    Raises:
        InputError: no CLIP has this configuration, or it is of other sizes than the retriever.
        prvr.MissingExtraError: transformers is not installed.
    """

    def build_inputs(self, config: TokenModelConfig) -> None:
        """Sets the CLIP."""
        from prvr.encoders.hub import import_transformers

        library, values = import_transformers(), cast(Any, config.clip)
        try:
            self.backbone = library.CLIPModel(library.CLIPConfig.from_dict(dict(values)))
        except Exception as error:  # wrong values make the library raise whatever its code meets
            raise InputError(
                f"model.clip: not the configuration of a CLIP ({type(error).__name__}: {error}). Expected the content "
                "of its config.json; prvr.models.build_retriever takes its name"
            ) from error
        clip = self.backbone.config
        self._side = int(clip.vision_config.image_size)
        self._end = int(clip.text_config.eos_token_id)
        width = int(clip.projection_dim)
        most = int(clip.text_config.max_position_embeddings)
        expected = {"hidden": width, "video_dim": 3 * self._side**2, "max_words": min(config.max_words, most)}
        wrong = {key: value for key, value in expected.items() if getattr(config, key) != value}
        if wrong:
            keys = ", model.".join(f"{key}={value}, got {getattr(config, key)}" for key, value in wrong.items())
            raise InputError(
                f"this CLIP reads pictures of {self._side} x {self._side} pixels and at most {most} tokens, and "
                f"projects both to {width}: expected model.{keys}"
            )

    def embed_words(self, words: WordFeatures, word_mask: WordMask) -> Words:
        """The hidden state of every token, projected by the CLIP.

        Raises:
            InputError: a number that is no token of this CLIP; on the CPU.
        """
        tokens = words[..., 0].masked_fill(~word_mask, self._end).long()
        vocabulary = self.backbone.config.text_config.vocab_size
        if tokens.device.type == "cpu" and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
            raise InputError(
                f"token numbers from {tokens.min()} to {tokens.max()}: this CLIP has 0 to {vocabulary - 1}. Encode the "
                "captions with its own tokenizer: --text pixels:CLIP"
            )
        hidden = self.backbone.text_model(input_ids=tokens, attention_mask=word_mask.long()).last_hidden_state
        return masked(self.backbone.text_projection(hidden), word_mask)

    def embed_frames(self, frames: FrameFeatures, frame_mask: FrameMask) -> Frames:
        """The embedding of every picture; padded ones are not computed, and the host waits for their number."""
        pictures = frames[frame_mask].unflatten(-1, (3, self._side, self._side))
        embedded = self.backbone.visual_projection(self.backbone.vision_model(pixel_values=pictures).pooler_output)
        padded = embedded.new_zeros(*frame_mask.shape, self.config.hidden)
        return padded.masked_scatter(frame_mask[..., None], embedded)


_NAMES = {
    "temporal.positions": "text_model.embeddings.position_embedding.weight",
    "temporal.layers": "text_model.encoder.layers",
    "project_words": "text_projection",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "linear1": "mlp.fc1",
    "linear2": "mlp.fc2",
}
"""Parts of the names of our tensors, and those of a CLIP of `transformers` that they start as."""


def start_from_clip(retriever: TokenRetrieverBase, clip: Mapping[str, Tensor]) -> None:
    """Copies the first text layers, the first text positions and the text projection of a CLIP into a retriever.

    The projection is copied where the retriever has one for words; frames are expected as the CLIP projects them.

    Args:
        retriever: changed in place.
        clip: the tensors of a `CLIPModel` of transformers, by their names.

    Raises:
        CheckpointError: a tensor is missing or has another shape: a CLIP of another width, with fewer layers or
            positions. Nothing is copied then.
    """
    from prvr.published.loading import fill  # with what the released code alone has
    from prvr.published.tensor_names import renamed

    config, positions = retriever.config, _NAMES["temporal.positions"]
    own = {
        name: slot for name, slot in retriever.named_parameters() if name.startswith(("temporal.", "project_words."))
    }
    slots = renamed(own, _NAMES)
    state = {name: clip[name] for name in slots if name in clip}
    if positions in state:
        state[positions] = state[positions][: config.max_frames]
    width = f"one of a CLIP whose text encoder has the width {config.hidden}"
    expected = f"{width}, {config.depth} layers (model.depth) and {config.max_frames} positions at least"
    fill(slots, state, expected)


class FirstStages:
    """What `model.kind: tokens` makes: a `TokenRetriever`, or with `clip` a `ClipRetriever`."""

    def __call__(self, config: TokenModelConfig) -> TokenRetrieverBase:
        """A new retriever, with the weights of the CLIP that it names or starts from.

        Raises:
            prvr.data.DataError: that CLIP cannot be loaded.
            ValueError: it does not fit.
        """
        name = config.init_from if config.clip is None else config.clip
        if not isinstance(name, str):
            return TokenRetriever(config) if config.clip is None else ClipRetriever(config)
        from prvr.encoders.hub import load_model

        clip: Any = load_model(name, "cpu")
        retriever: TokenRetrieverBase
        if config.clip is None:
            retriever = TokenRetriever(config)
        elif clip.config.model_type == "clip":
            retriever = ClipRetriever(replace(config, clip=clip.config.to_diff_dict()))
            retriever.backbone.load_state_dict(clip.state_dict())
        else:
            raise InputError(f"model.clip={name!r}: a model of type {clip.config.model_type!r}, expected a CLIP")
        start_from_clip(retriever, clip.state_dict())
        return retriever

    def from_pretrained(self, folder: Path | str) -> TokenRetrieverBase:
        """A retriever from a folder of `save_pretrained`."""
        with_clip = read_model_config(Path(folder)).get("clip") is not None
        return (ClipRetriever if with_clip else TokenRetriever).from_pretrained(folder)


TOKENS = FirstStages()
