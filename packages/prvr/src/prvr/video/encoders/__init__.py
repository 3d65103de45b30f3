"""Encoders of frames and texts: what they offer, how two of them are told apart, and which families there are.

A family is a module of this package that registers itself in `ENCODERS`; nothing else has to know of it.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float32, UInt8

from prvr.config import Registry
from prvr.errors import DataError
from prvr.video.pretrained import downloads, read_config

__all__ = [
    "EMBEDDED",
    "ENCODERS",
    "EncoderFamily",
    "FrameEncoder",
    "Identity",
    "TextFeaturizer",
    "check_joint",
    "open_encoder",
    "open_featurizer",
]

_T = TypeVar("_T")
EMBEDDED = "embedded"


@dataclass(frozen=True)
class Identity:
    """Identifies an encoder: two encoders with equal identities give the same features of the same input.

    Args:
        name: for people; not compared, because a model may lie in two places.
        weights: sha256 of weights and configuration. Both sides of a joint model have the same.
        preprocessing: what is done with pixels, or with letters, before the model sees them.
    """

    name: str = field(compare=False)
    weights: str
    preprocessing: str

    def __str__(self) -> str:
        return f"{self.name} (weights {self.weights[:12]}; {self.preprocessing})"


@runtime_checkable
class FrameEncoder(Protocol):
    """Turns frames into features: each picture is prepared, batches are encoded, and the rows of a video are finished.

    Attributes:
        identity: the identity of weights and preprocessing.
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
        """The features of each frame by itself."""
        ...

    def finish(self, rows: Float32[np.ndarray, "n e"]) -> Float32[np.ndarray, "n f"]:
        """The features of a whole video, from those of its frames in order of time."""
        ...


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
        """The rows that a retriever reads of a query.

        Raises:
            ValueError: the text has no word, or more than the model reads.
        """
        ...

    def sentence(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector whose cosine with a frame is their similarity.

        Raises:
            ValueError: as `words`, or the model has no joint space.
        """
        ...


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


@dataclass(frozen=True)
class EncoderFamily:
    """A family of models that `prvr extract --encoder` and `--text` accept.

    Args:
        text: opens the text side of a model, from its name or folder and a device of torch; None where it has none.
        frames: opens the encoder of frames in the same way; None where the family has none.
        bundled: whether it is one model that comes with prvr, named as the family is.
        prefixed: whether its models are named FAMILY:MODEL, because MODEL alone is of another family.
    """

    text: Callable[[str, Any], TextFeaturizer] | None = None
    frames: Callable[[str, Any], FrameEncoder] | None = None
    bundled: bool = False
    prefixed: bool = False


ENCODERS: Registry[EncoderFamily] = Registry("encoder")
"""The families by name: of a bundled model, the prefix of names, or the `model_type` in the `config.json` of a model of
transformers."""


def open_encoder(name: str, device: Any = "cpu", *, download: bool = False) -> FrameEncoder:
    """Opens an encoder of frames.

    Args:
        name: `embedded`, a folder of `save_pretrained`, or a name on the Hugging Face hub
            (`openai/clip-vit-base-patch32`, `google/siglip-base-patch16-224`); or one of these names of a CLIP after
            `pixels:`, for the pictures that it reads.
        device: torch device of the model.
        download: let the model be downloaded from the Hugging Face hub if it is not on this computer.

    Raises:
        prvr.video.DownloadNeeded: it is not on this computer, and `download` is False.
        DataError: there is no such model, or it is of no family with an encoder of frames.
        prvr.MissingExtraError: transformers is not installed.
    """
    return _opened(name, lambda family: family.frames, device, download)


def open_featurizer(name: str, device: Any = "cpu", *, download: bool = False) -> TextFeaturizer:
    """Opens the text side of a model.

    Args:
        name: as in [open_encoder][prvr.video.encoders.open_encoder], or a RoBERTa (or BERT) of either place, which
            gives words only.
        device: torch device of the model.
        download: as in [open_encoder][prvr.video.encoders.open_encoder].

    Raises:
        prvr.video.DownloadNeeded: it is not on this computer, and `download` is False.
        DataError: there is no such model, or it is of no family with a text side.
        prvr.MissingExtraError: transformers is not installed.
    """
    return _opened(name, lambda family: family.text, device, download)


def _opened(
    name: str, side: Callable[[EncoderFamily], Callable[[str, Any], _T] | None], device: Any, download: bool
) -> _T:
    """One side of a model; that of a folder is named by its absolute path, so that it is found from everywhere."""
    family, colon, model = name.partition(":")
    if not (colon and family in ENCODERS and ENCODERS[family].part.prefixed):
        family, colon, model = "", "", name
    folder = Path(model).expanduser()
    bundled = model in ENCODERS and ENCODERS[model].part.bundled
    place = str(folder.resolve()) if folder.is_dir() and not bundled else model
    with downloads(model) if download else nullcontext():
        return _opener(family, place, side)(family + colon + place, device)


def _opener(family: str, model: str, side: Callable[[EncoderFamily], _T | None]) -> _T:
    """What opens one side of a model; `family` is empty where the name of the model does not say it."""
    bundled = model in ENCODERS and ENCODERS[model].part.bundled
    kind = family or (model if bundled else str(read_config(model)["model_type"]))
    found = side(ENCODERS[kind].part) if kind in ENCODERS else None
    if found is None:
        families = [entry for entry in ENCODERS if not entry.part.bundled and not entry.part.prefixed]
        known = [entry.name for entry in families if side(entry.part) is not None]
        raise DataError(f"{model}: a model of type {kind!r}. Expected one of {', '.join(known)}.")
    return found


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
