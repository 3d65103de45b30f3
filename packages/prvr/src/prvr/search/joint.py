"""The joint encoder alone: no training, the cosine of a sentence with the frame that it fits best."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float32

from prvr.data.rows import segment_mean
from prvr.errors import DataError
from prvr.search.model import ZERO_SHOT, ModelIdentity, RowSet, WindowVectors
from prvr.search.vectors import unit
from prvr.video import StoreHeader, TextFeaturizer, check_joint

__all__ = ["JointModel"]


class JointModel:
    """Frames are the joint columns of the features, scaled to unit length; clips, means of them, do not count.

    Args:
        encoder: header of the store of features.
        text: the text side of the same encoder.

    Raises:
        DataError: the encoder has no joint space, or the text side is of another model.
    """

    clips = 32
    clip_weight, frame_weight = 0.0, 1.0
    stored: Mapping[str, RowSet] = MappingProxyType({})

    def __init__(self, encoder: StoreHeader, text: TextFeaturizer) -> None:
        if not encoder.joint_dim:
            raise DataError(
                f"{encoder.encoder}: none of its features lie in one space with sentences, so there is no zero-shot "
                "score. Name a trained model, or extract with a CLIP or SigLIP."
            )
        check_joint(text.identity, encoder.encoder)
        if text.joint_dim != encoder.joint_dim:
            raise DataError(
                f"{text.identity}: sentences of width {text.joint_dim}, frames of {encoder.joint_dim}. Use the text "
                "side of the encoder."
            )
        self.dim, self._text = encoder.joint_dim, text
        self.identity = ModelIdentity(
            ZERO_SHOT, encoder.encoder.name, encoder.encoder.weights, encoder.encoder, text.identity
        )

    def encode_windows(self, windows: Sequence[Float32[np.ndarray, "_ f"]]) -> list[WindowVectors]:
        """Every row of each window, and means of them as clips."""
        found = []
        for rows in windows:
            frames = unit(rows[:, : self.dim].astype(np.float32, copy=False))
            found.append(WindowVectors(segment_mean(frames, self.clips), frames, len(frames)))
        return found

    def encode_text(self, text: str) -> Float32[np.ndarray, " d"]:
        """The sentence."""
        return unit(self._text.sentence(text)[None].astype(np.float32, copy=False))[0]

    def rescorer(self, snapshot: Any) -> None:
        """There are no stages."""

    def save(self, folder: Path) -> None:
        """There is nothing: the encoder is opened by its name."""
