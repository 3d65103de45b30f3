"""What turns frames and texts into features, and how one of them is told from another."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, UInt8

from prvr.errors import DataError

EMBEDDED = "embedded"


@dataclass(frozen=True)
class Identity:
    """Tells an encoder from any other: two that are equal give the same features of the same input.

    Args:
        name: for people; not compared, since a model may lie in two places.
        weights: sha256 of weights and configuration. Both sides of a joint model have the same.
        preprocessing: what is done before: with pixels, or with letters.
    """

    name: str = field(compare=False)
    weights: str
    preprocessing: str

    def __str__(self) -> str:
        return f"{self.name} (weights {self.weights[:12]}; {self.preprocessing})"


@runtime_checkable
class FrameEncoder(Protocol):
    """Frames to features: the picture of each frame is made small, batches are encoded, a video is put together.

    Attributes:
        identity: of weights and preprocessing.
        dim: width f of the features.
        joint_dim: how many of the first columns lie in one space with the sentences of the model; 0 if none do.
    """

    identity: Identity
    dim: int
    joint_dim: int

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        """The picture as the encoder takes it. Called as frames are decoded, in another thread than `encode`."""
        ...

    def encode(self, frames: UInt8[np.ndarray, "n s s 3"]) -> Float32[np.ndarray, "n e"]:
        """Of each frame by itself."""
        ...

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """The features of a whole video, from those of its frames in order of time."""
        ...


@runtime_checkable
class TextFeaturizer(Protocol):
    """Texts to features.

    Attributes:
        identity: of weights and preprocessing.
        word_dim: width e of the features of words.
        joint_dim: width d of a sentence in one space with frames; 0 if the model has no such space.
    """

    identity: Identity
    word_dim: int
    joint_dim: int

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """What a retriever reads of a query.

        Raises:
            ValueError: the text has no word, or more than the model reads.
        """
        ...

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector whose cosine with a frame says how well they fit.

        Raises:
            ValueError: as `words`, or the model has no joint space.
        """
        ...


def check_joint(text: Identity, frames: Identity) -> None:
    """Refuses a text side that is not of the model that encoded the frames.

    Raises:
        DataError: they are of different weights.
    """
    if text.weights != frames.weights:
        raise DataError(
            f"texts encoded by {text}, frames by {frames}: two models, whose features cannot be compared. "
            "Encode texts with the model of the frames, or extract the videos with the model of the texts."
        )
