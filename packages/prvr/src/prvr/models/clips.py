"""Clip constructions, which say what the rows of the clip branch are, and poolings of frames.

A construction is given the clip branch as a function, so that it can cut a video before the branch encodes it (adaptive
segments), or join what the branch has encoded (proposals).
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.types import Merged


@runtime_checkable
class Encode(Protocol):
    """The clip branch."""

    def __call__(
        self,
        rows: Float[Tensor, "v c f"],
        mask: Bool[Tensor, "v c"] | None = None,
        sizes: Float[Tensor, "v c"] | None = None,
    ) -> Float[Tensor, "v c d"]:
        """Features of rows, `num_clips` of each video or those that a mask says, to their encodings.

        `sizes` say how many rows each of `num_clips` stands for, see `prvr.models.rows.Sequences`.
        """
        ...


@runtime_checkable
class ClipConstruction(Protocol):
    """What the rows of the clip branch are.

    One that has a method `repeated` gives both branches other frames: all that a model takes, from frames and a mask.

    Attributes:
        rows: p, how many rows a video has.
        has_spans: whether it says which part of the video each row is; if not, rows are equal parts in order of time.
    """

    rows: int
    has_spans: bool

    def __call__(
        self, encode: Encode, clips: Float[Tensor, "v c f"], frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v p d"], Float[Tensor, "v p 2"] | None] | tuple[Tensor, Tensor, Merged]:
        """The rows of videos and their spans; of merged frames also what was merged.

        Args:
            encode: the clip branch.
            clips: `(v, c, f)` features of c equal parts.
            frames: `(v, l, f)` features of frames.
            mask: `(v, l)` True = valid.

        Returns:
            Rows, and where each begins and ends as shares of the video, 0 to 1; None for equal parts. A video with
            fewer parts than p repeats one.
        """
        ...


class EqualClips(nn.Module):
    """The encoded clips: equal parts of the video."""

    has_spans = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.rows = model.num_clips

    def forward(
        self, encode: Encode, clips: Float[Tensor, "v c f"], frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v c d"], None]:
        """The rows, see `ClipConstruction`."""
        return encode(clips), None


def as_read(frames: Float[Tensor, "v l f"]) -> Float[Tensor, "v l f"]:
    """The same frames, which are of unit length already."""
    return frames


class EncodedFrames(NamedTuple):
    """What a pooling of frames reads of videos.

    Attributes:
        rows: `(v, l, d)` encoded frames, 0 where invalid.
        valid: `(v, l)` True = a frame of the video.
        scored: `(v, l)` True = a frame that counts where frames are compared one by one; None = all.
        clips: `(v, p, d)` rows of the clip branch, or None without it.
    """

    rows: Float[Tensor, "v l d"]
    valid: Bool[Tensor, "v l"]
    scored: Bool[Tensor, "v l"] | None
    clips: Float[Tensor, "v p d"] | None


@runtime_checkable
class FramePooling(Protocol):
    """What queries are compared with of the encoded frames.

    Attributes:
        by_clip: whether there is a row for each row of the clip branch, which counts for queries whose best clip it is
            (`scores` says how); if not, the best row counts.
    """

    by_clip: bool

    def __call__(self, frames: EncodedFrames) -> tuple[Float[Tensor, "v r d"], Bool[Tensor, "v r"] | None]:
        """The rows that queries are compared with, and which of them count; None = all."""
        ...


class EveryFrame(nn.Module):
    """Frames one by one."""

    by_clip = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()

    def forward(self, frames: EncodedFrames) -> tuple[Float[Tensor, "v l d"], Bool[Tensor, "v l"] | None]:
        """The frames, see `FramePooling`."""
        return frames.rows, frames.scored
