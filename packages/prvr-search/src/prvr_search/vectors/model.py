"""What turns stored features and texts into vectors of one space, and how such a model is told from another."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64

from prvr.encoders import Identity
from prvr.types import UNTRAINED
from prvr_search.films.picture import Picture
from prvr_search.store.features import Features

ZERO_SHOT, TRAINING_FREE = UNTRAINED
TAUGHT = "taught"
"""The name of the encoder alone with what `prvr teach` made for the folder."""


Rows = Float32[np.ndarray, "n d"]
Vector = Float32[np.ndarray, " _"]
Queries = Float32[np.ndarray, "q e"]
"""Unit vectors, or two in a row."""
Spans = Int64[np.ndarray, "_ 2"]
"""Of each window the first row of features, and the one after its last."""
StoredRows = Sequence[Mapping[str, Float32[np.ndarray, "_ _"]]]
"""Of each window the rows that an index keeps beside clips and frames, by the name of their set."""
TimedScores = list[tuple[Float32[np.ndarray, " _"], Float32[np.ndarray, "_ 2"] | None]]
"""Of each window the scores of its parts, and which shares of it these are; None: they share the time evenly."""


def unit(rows: Rows) -> Rows:
    """Rows divided by their length; a row of zeros stays zero.

    Examples:
        >>> unit(np.array([[3, 4], [0, 0]], np.float32)).round(2).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))


@dataclass(frozen=True)
class ModelIdentity:
    """Tells a model from any other: two that are equal give the same vectors of the same features and texts.

    Args:
        kind: a trained retriever, `zero-shot`, `training-free` or `taught`.
        name: a name for people to read; it is not compared, since a model may lie in two places.
        weights: sha256 of the weights as they are computed with, of the configuration and of how features are sampled;
            of the encoder, if there is no other.
        frames: encoder of the frames that the model reads.
        text: encoder of the words or sentences that the model reads.
    """

    kind: Literal["trained", "zero-shot", "training-free", "taught"]
    name: str = field(compare=False)
    weights: str
    frames: Identity
    text: Identity

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, weights {self.weights[:12]})"


@dataclass(frozen=True)
class RowSet:
    """A named set of rows that an index stores for every window, with any number of rows per window.

    Args:
        dim: width of the rows.
        lengths: whether the lengths of the rows are stored beside the unit rows, so that they can be read raw.
    """

    dim: int
    lengths: bool = False


CLIP_TIMES = "clip-times"
"""The set of rows with the starts and then the ends of a window's clips, as shares of it, for clips that overlap."""


class WindowVectors(NamedTuple):
    """The vectors of a window, not normalised, each kind in time order.

    Args:
        clips: `(c, d)`, as many for every window.
        frames: `(l, d)` all that count in the score; none if the model has none.
        steps: how many of the first frames share the time of the window evenly; what follows counts, too: padding, or
            the means of `SearchModel.frame_means`. 0 or 1: the clips tell more of when.
        stored: further rows by the name of their set, those that `SearchModel.stored` declares; not scored here.
    """

    clips: Rows
    frames: Rows
    steps: int
    stored: Mapping[str, Rows] = MappingProxyType({})


Encoded = tuple[Spans, Iterable[WindowVectors]]
"""Windows and the vectors of each."""


@runtime_checkable
class SearchModel(Protocol):
    """The model that an index is built with.

    The score of a window is `clip_weight * max cos(q, clips) + frame_weight * max cos(q, frames)`, or with
    `frames_by_clip` `frame_weight * cos(q, frame)` of the frame that belongs to the best clip; a part of weight 0 need
    not be there. A query is a row of width d, or of width 2d with two vectors: q for clips, then q for frames.

    Attributes:
        identity: what tells the model from any other.
        dim: width d of the vectors.
        clips: c, how many clips a window has.
        clip_weight, frame_weight: the weights of the two parts of the score.
        frames_by_clip: whether there is a frame for each clip, which counts for queries whose best clip it is.
        frame_means: whether `frames` are those of `prvr.data.sampling.growing_means` of `steps` frames.
        stored: the sets of rows that an index keeps beside clips and frames, by name; `frames` (or `clips`) among them
            says that the lengths of those rows are kept too. Names are lower-case letters, digits and hyphens.
    """

    identity: ModelIdentity
    dim: int
    clips: int
    clip_weight: float
    frame_weight: float
    frames_by_clip: bool
    frame_means: bool
    stored: Mapping[str, RowSet]

    def encode_video(self, rows: Features, windows: Spans) -> Encoded:
        """The windows of a video and the vectors of each, which depend on nothing else.

        Args:
            rows: the features of the video, at least one row.
            windows: of each window of equal length the first row, and the one after its last.

        Returns:
            The windows as they are; or where the model divides the video itself, its parts, which tile it.
        """
        ...

    def encode_texts(self, texts: Sequence[str]) -> Queries:
        """The unit vectors of queries, or two in a row; up to rounding, each is as alone.

        Raises:
            ValueError: a text has no word, or more than the model reads.
        """
        ...


def scored_kinds(model: SearchModel) -> list[str]:
    """The kinds of rows that count in the score of a model."""
    weights = {"clips": model.clip_weight or model.frames_by_clip, "frames": model.frame_weight}
    return [name for name, weight in weights.items() if weight]


@runtime_checkable
class Rescores(SearchModel, Protocol):
    """A `SearchModel` whose score finds videos, which another score then orders; for plain sentences alone.

    Attributes:
        candidates: how many videos the first score finds, where no more are asked for.
    """

    candidates: int

    def rescore(self, sentence: str, windows: StoredRows) -> Vector:
        """The other score of a sentence with each of some windows.

        Args:
            sentence: the query.
            windows: at least one; of each the rows of the sets in `stored`, by name, with the lengths that they had.
        """
        ...

    def moments(self, sentence: str, windows: StoredRows) -> TimedScores | None:
        """When in each window the sentence fits, by the other score: of its parts, which share the time evenly or say
        which share of it they are; None: as the vectors say.
        """
        ...


@runtime_checkable
class EncodesPictures(Protocol):
    """A `SearchModel` whose space holds pictures too."""

    def encode_picture(self, pixels: Picture) -> Vector:
        """The unit vector of a picture, red green blue.

        Raises:
            DataError: the encoder of the frames cannot be opened, or is another one than that of the index.
        """
        ...
