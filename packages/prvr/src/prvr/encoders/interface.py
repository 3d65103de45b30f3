"""What an encoder is: frames to rows, texts to rows, and an identity by which a changed encoder is noticed.

These protocols are all that the rest of prvr knows of an encoder. A store holds `rate` rows for each second of a video,
2 by default, each of `dim` numbers in float32. Rows of frames may have any length: what compares them with sentences
scales their first `joint_dim` columns to unit length. A sentence is a unit vector of the same `joint_dim` columns.
An encoder of clips gives a row for each clip, see `ClipWindow`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, UInt8

from prvr.errors import DataError, InputError


@dataclass(frozen=True)
class Identity:
    """Identifies an encoder: two encoders with equal identities give the same features of the same input.

    A store and an index keep it. Features of another identity are refused there, so it has to change whenever the
    features do.

    Args:
        name: by which the encoder is opened again; not compared, because a model may lie in two places.
        weights: tells the weights: for a model of transformers, sha256 of weights and configuration. Both sides of a
            joint encoder have the same.
        preprocessing: what is done with pixels, or with letters, before the model sees them.
    """

    name: str = field(compare=False)
    weights: str
    preprocessing: str

    def __str__(self) -> str:
        return f"{self.name} (weights {self.weights[:12]}; {self.preprocessing})"


class PictureEncoder(Protocol):
    """What encoders of frames and of clips have in common: pictures are prepared, and the rows of a video finished.

    Attributes:
        identity: the identity of weights and preprocessing.
        dim: width f of the features.
        joint_dim: how many of the first columns lie in one space with the sentences of the model; 0 if none do.
    """

    identity: Identity
    dim: int
    joint_dim: int

    def prepare(self, pixels: UInt8[np.ndarray, "h w 3"]) -> np.ndarray:
        """The picture as `encode` takes it, of the same shape for all pictures of a video; small, since many wait.

        Called once for each frame, as frames are decoded, in another thread than `encode`.
        """
        ...

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """The features of a whole video, from those of its frames in order of time; most encoders change nothing."""
        ...


@runtime_checkable
class FrameEncoder(PictureEncoder, Protocol):
    """Turns frames into features: each picture is prepared, batches are encoded, and the rows of a video are finished.

    Attributes:
        identity, dim, joint_dim: see `PictureEncoder`.
    """

    def encode(self, frames: np.ndarray) -> Float32[np.ndarray, "n e"]:
        """The features of each of n prepared pictures, stacked, by itself."""
        ...


@dataclass(frozen=True)
class ClipWindow:
    """The clips of a video: clip k lasts `seconds` around `(k + 1/2) * stride`, as far as it fits into the video.

    Args:
        seconds: the length of a clip.
        frames: the number of frames in a clip, evenly spaced.
        stride: seconds from a clip to the next; `rate` in a library is `1 / stride`, unless another one is named.

    Raises:
        InputError: one of them is not positive.
    """

    seconds: float = 2.0
    frames: int = 8
    stride: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.seconds < 3600 and 0 < self.frames <= 1024 and 1e-3 < self.stride < 3600):
            raise InputError(
                f"{self}: expected up to an hour, up to 1024 frames, and a stride between 1 ms and an hour"
            )


@runtime_checkable
class ClipEncoder(PictureEncoder, Protocol):
    """Turns clips, the frames of a window with their times, into features; otherwise as a `FrameEncoder`.

    Attributes:
        identity, dim, joint_dim: see `PictureEncoder`; the identity of rows says how long clips are, too.
        window: which clips a video has.
    """

    window: ClipWindow

    def encode(self, clips: np.ndarray, times: Float32[np.ndarray, "n t"], /) -> Float32[np.ndarray, "n e"]:
        """The features of each of n clips by itself, of t prepared pictures stacked, and when these are shown.

        Times are in seconds from the start of the video. In one shorter than a window frames repeat.
        """
        ...


VideoEncoder = FrameEncoder | ClipEncoder


def rows_identity(encoder: VideoEncoder) -> Identity:
    """The identity of the rows of an encoder, which differ with the length of clips and the number of their frames."""
    if not isinstance(encoder, ClipEncoder):
        return encoder.identity
    window = encoder.window
    about = f"{encoder.identity.preprocessing}; clips of {window.frames} frames in {window.seconds} s"
    return replace(encoder.identity, preprocessing=about)


def encode_pictures(encoder: VideoEncoder, pictures: Iterable[np.ndarray]) -> Float32[np.ndarray, "n f"]:
    """The rows of pictures by themselves; for an encoder of clips, each is a clip that stands still.

    Args:
        pictures: `(h, w, 3)` of `uint8`.
    """
    prepared = np.stack([encoder.prepare(pixels) for pixels in pictures])
    if not isinstance(encoder, ClipEncoder):
        return encoder.finish(encoder.encode(prepared))
    window = encoder.window
    times = (np.arange(window.frames, dtype=np.float32) + np.float32(0.5)) * np.float32(window.seconds / window.frames)
    clips = np.repeat(prepared[:, None], window.frames, 1)
    return encoder.finish(encoder.encode(clips, np.tile(times, (len(clips), 1))))


@runtime_checkable
class TextFeaturizer(Protocol):
    """Turns texts into features.

    Attributes:
        identity: the identity of weights and preprocessing.
        word_dim: width e of the features of words.
        joint_dim: width d of a sentence in one space with frames; 0 if the model has no such space.
    """

    identity: Identity
    word_dim: int
    joint_dim: int

    def words(self, text: str) -> Float32[np.ndarray, "w e"]:
        """The rows that a retriever reads of a query, at least one.

        Raises:
            prvr.InputError: the text has no word, or more than the model reads.
        """
        ...

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector whose cosine with a frame is their similarity.

        Raises:
            prvr.InputError: as `words`, or the model has no joint space.
        """
        ...


@runtime_checkable
class Encoder(FrameEncoder, TextFeaturizer, Protocol):
    """Both sides of a joint encoder in one object: what your own has to provide so that sentences find videos.

    It is made by calling its class with the name that it is opened by, which its identity has to bear, and a device of
    torch: `Class(name, device)`. In place of a `FrameEncoder` it may be a `ClipEncoder`. A class that is one of these
    alone can be extracted with, and one that is a `TextFeaturizer` alone can read captions and queries.
    """


EncoderClass = Callable[[str, Any], Any]
"""A class of encoders, or a function that makes one, from a name and a device."""


def check_joint(text: Identity, frames: Identity) -> None:
    """Refuses a text side of another model than that of the frames.

    Raises:
        DataError: their weights differ.
    """
    if text.weights != frames.weights:
        raise DataError(
            f"texts encoded by {text}, frames by {frames}: two models, whose features cannot be compared. "
            "Encode texts with the model of the frames, or extract the videos with the model of the texts."
        )
