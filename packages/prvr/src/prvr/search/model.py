"""What turns stored features and texts into vectors of one space, and how such a model is told from another."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

from prvr.data.errors import DataError
from prvr.video import Identity, StoreHeader, TextFeaturizer, open_featurizer

__all__ = [
    "ZERO_SHOT",
    "ModelIdentity",
    "Score",
    "SearchModel",
    "WindowVectors",
    "check_copy",
    "load_model",
    "open_model",
]

ZERO_SHOT = "zero-shot"


@dataclass(frozen=True)
class ModelIdentity:
    """Tells a model from any other: two that are equal give the same vectors of the same features and texts.

    Args:
        kind: a trained retriever, or the joint encoder alone.
        name: for people; not compared, since a model may lie in two places.
        weights: sha256 of the weights as they are computed with, of the configuration and of how features are sampled;
            of the encoder, if there is no other. Indexes of version 0.1 hold the sha256 of the files instead.
        frames: encoder of the frames that the model reads.
        text: encoder of the words or sentences that the model reads.
    """

    kind: Literal["trained", "zero-shot"]
    name: str = field(compare=False)
    weights: str
    frames: Identity
    text: Identity

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, weights {self.weights[:12]})"


class Score(NamedTuple):
    """What the vectors of a model are and how they are scored, see `SearchModel`."""

    dim: int
    clips: int
    clip_weight: float
    frame_weight: float


class WindowVectors(NamedTuple):
    """The vectors of a window, not normalised, each kind in time order.

    Args:
        clips: `(c, d)`, as many for every window.
        frames: `(l, d)` all that count in the score; none if the model has none.
        steps: how many of the first frames share the time of the window evenly; what follows is padding that counts.
            0 or 1: the clips tell more of when.
    """

    clips: Float32[np.ndarray, "c d"]
    frames: Float32[np.ndarray, "l d"]
    steps: int


@runtime_checkable
class SearchModel(Protocol):
    """What an index is made with.

    The score of a window is `clip_weight * max cos(q, clips) + frame_weight * max cos(q, frames)`; a part of weight 0
    need not be there.

    Attributes:
        identity: of weights.
        dim: width d of the vectors.
        clips: c, how many clips a window has.
        clip_weight, frame_weight: of the score.
    """

    identity: ModelIdentity
    dim: int
    clips: int
    clip_weight: float
    frame_weight: float

    def encode_windows(self, windows: Sequence[Float32[np.ndarray, "_ f"]]) -> list[WindowVectors]:
        """Vectors of windows of one video.

        What comes out depends on nothing else; not on what was encoded before.

        Args:
            windows: rows of features as they are in the store, at least one row each.
        """
        ...

    def encode_text(self, text: str) -> Float32[np.ndarray, " d"]:
        """The unit vector of a query.

        Raises:
            ValueError: the text has no word, or more than the model reads.
        """
        ...

    def save(self, folder: Path) -> None:
        """Writes what `load_model` needs into an empty folder; nothing, if the encoder is all there is."""
        ...


def open_model(
    name: str | Path, encoder: StoreHeader, device: Any = "cpu", text: TextFeaturizer | None = None
) -> SearchModel:
    """The model that a name stands for, for features of an encoder.

    Args:
        name: a run of `prvr train` (its best epoch), a folder of `save_pretrained`, or `zero-shot`: the encoder alone,
            the cosine of the sentence with the frame that it fits best.
        encoder: header of the store that holds the features.
        device: of torch.
        text: what reads queries; default: the text side of the encoder.

    Raises:
        DataError: there is no such model, or it does not read these features or these texts.
        prvr.MissingExtraError: transformers is needed and not installed.

    Example:
        >>> model = open_model("runs/hybrid-1", VideoStore("store").header)  # doctest: +SKIP
        >>> model.encode_text("a person opens the fridge").shape  # doctest: +SKIP
        (384,)
    """
    if str(name) == ZERO_SHOT:
        from prvr.search.joint import JointModel

        return JointModel(encoder, text or open_featurizer(encoder.encoder.name, device))
    from prvr.search.trained import open_trained

    return open_trained(Path(name).expanduser(), encoder, text, device)


def load_model(
    folder: Path, identity: ModelIdentity, encoder: StoreHeader, device: Any, text: TextFeaturizer | None
) -> SearchModel:
    """The model of an index, from its own copy.

    Args:
        folder: that `SearchModel.save` filled.
        identity: what the index was made with.
        encoder: of frames.
        device: of torch.
        text: what reads queries; default: opened by the name in the identity.

    Raises:
        DataError: the copy is damaged, or the texts would be read by another model than that of the index.
    """
    text = text or open_featurizer(identity.text.name, device)
    if text.identity != identity.text:
        raise DataError(
            f"queries would be read by {text.identity}, the index was made for {identity.text}: their vectors cannot "
            "be compared. Give the text model of the index, or make the index anew with the other one."
        )
    if identity.kind == ZERO_SHOT:
        from prvr.search.joint import JointModel

        found: SearchModel = JointModel(encoder, text)
    else:
        from prvr.search.trained import load_trained

        found = load_trained(folder, identity, encoder, text, device)
    if found.identity != identity:
        raise _another(folder, identity)
    return found


def check_copy(folder: Path, identity: ModelIdentity, encoder: StoreHeader) -> Score:
    """How the model of an index scores, from its own copy; what reads queries is not needed for that.

    Args:
        folder: that `SearchModel.save` filled.
        identity: what the index was made with.
        encoder: of frames.

    Raises:
        DataError: the copy is damaged, or of another model.
    """
    if identity.kind == ZERO_SHOT:
        from prvr.search.joint import JointModel

        if identity.weights != encoder.encoder.weights:
            raise _another(folder, identity)
        return Score(encoder.joint_dim, JointModel.clips, JointModel.clip_weight, JointModel.frame_weight)
    from prvr.search.trained import load_retriever, score_of

    retriever, weights = load_retriever(folder, identity.weights)
    if weights != identity.weights:
        raise _another(folder, identity)
    return score_of(retriever.config)


def _another(folder: Path, identity: ModelIdentity) -> DataError:
    return DataError(f"{folder}: not the model that the index was made with ({identity}). Make the index anew.")
