"""Clip constructions, which say what the rows of the clip branch are, and poolings of frames.

A construction is given the clip branch as a function, so that it can cut a video before the branch encodes it (adaptive
segments), or join what the branch has encoded (proposals).
"""

from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.config.model import merge_stages
from prvr.data.sampling import EPSILON
from prvr.models.layers import AttentionPooling, attention_pooled
from prvr.scoring import full_precision
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

    Attributes:
        rows: p, how many rows a video has.
        has_spans: whether it says which part of the video each row is; if not, rows are equal parts in order of time.
    """

    rows: int
    has_spans: bool

    def __call__(
        self, encode: Encode, clips: Float[Tensor, "v c f"], frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v p d"], Float[Tensor, "v p 2"] | None] | tuple[Tensor, Tensor, Merged]:
        """The rows of videos and their spans; of `MergedClips` also what was merged.

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


def merge_rows(
    x: Float[Tensor, "v n f"], sizes: Float[Tensor, "v n"], group: Int[Tensor, "v n"], count: int
) -> tuple[Float[Tensor, "v m f"], Float[Tensor, "v m"]]:
    """The mean of the rows of each of `count` groups, weighted by size, and the sum of their sizes.

    Examples:
        >>> x, sizes = torch.tensor([[[1.0], [4.0], [6.0]]]), torch.tensor([[1.0, 2.0, 1.0]])
        >>> [tensor.flatten().tolist() for tensor in merge_rows(x, sizes, torch.tensor([[0, 0, 1]]), 2)]
        [[3.0, 6.0], [3.0, 1.0]]
    """
    own = group[:, None] == torch.arange(count, device=group.device)[:, None]
    shares = own * sizes[:, None]
    total = shares.sum(2)
    with full_precision(x.device):
        return shares @ x.to(shares.dtype) / total[..., None], total


def as_read(frames: Float[Tensor, "v l f"]) -> Float[Tensor, "v l f"]:
    """The same frames, which are of unit length already."""
    return frames


def unit_length(frames: Float[Tensor, "v l f"]) -> Float[Tensor, "v l f"]:
    """Each row divided by (its norm + 1e-5), as `prvr.data.sampling.normalise_rows` does."""
    return frames / (frames.norm(dim=2, keepdim=True) + EPSILON)


class MergedClips(nn.Module):
    """Order-preserving token merging (MSC-PRVR): neighbouring frames that are alike become one clip.

    A video with fewer frames than `max_frames` repeats some, evenly. In each of three stages the rows 2i and 2i + 1
    merge, weighted by size, where their dot product is highest, until `prvr.config.model.merge_stages` many are left.
    The attention of the clip branch adds log(size) to the logits of a row.

    Examples:
        >>> part = MergedClips(ModelConfig(video_dim=1, query_dim=1, num_clips=4, max_frames=8))
        >>> frames, mask = part.repeated(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[True, True]]))
        >>> frames.flatten().tolist()
        [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
        >>> part.merge(torch.tensor([[[3.0], [3.0], [1.0], [1.0], [2.0], [2.0], [1.0], [1.0]]])).clip_of.tolist()
        [[0, 0, 1, 1, 2, 2, 3, 3]]
    """

    has_spans = True

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.frames, self.rows = model.max_frames, model.num_clips
        self.stages = merge_stages(model.max_frames, model.num_clips)

    def repeated(
        self, frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v m f"], Bool[Tensor, "v m"]]:
        """As many frames of each video as a model takes, and their mask, all True: row i is frame i l / m, rounded."""
        count = mask.sum(1, keepdim=True)
        at = torch.arange(self.frames, device=mask.device) / self.frames * count
        at = at.round().long().minimum(count - 1)
        return frames.gather(1, at[..., None].expand(-1, -1, frames.shape[2])), torch.ones_like(at, dtype=torch.bool)

    def merge(self, frames: Float[Tensor, "v l f"]) -> Merged:
        """The clips of frames, as many as a model takes."""
        x, sizes = frames, torch.ones_like(frames[..., 0])
        clip_of = torch.arange(self.frames, device=x.device).expand(len(x), -1)
        for length, count in pairwise(self.stages):
            pairs = x.unflatten(1, (-1, 2)).prod(2).sum(2)
            closest = torch.sort(pairs, dim=1, descending=True, stable=True)[1][:, : length - count]
            starts = torch.ones_like(sizes, dtype=torch.long).scatter(1, 2 * closest + 1, 0)
            group = starts.cumsum(1) - 1
            (x, sizes), clip_of = merge_rows(x, sizes, group, count), group.gather(1, clip_of)
        return Merged(unit_length(x), sizes, clip_of)

    def forward(
        self, encode: Encode, clips: Float[Tensor, "v c f"], frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v c d"], Float[Tensor, "v c 2"], Merged]:
        """The rows, see `ClipConstruction`, and what was merged; of frames that are `repeated`."""
        merged = self.merge(frames)
        ends = merged.sizes.cumsum(1)
        spans = torch.stack([ends - merged.sizes, ends], 2) / self.frames
        return encode(merged.features, None, merged.sizes), spans, merged


@runtime_checkable
class FramePooling(Protocol):
    """What queries are compared with of the encoded frames.

    Attributes:
        by_clip: whether there is a row for each row of the clip branch, which counts for queries whose best clip it is
            (`scores` says how); if not, the best row counts.
    """

    by_clip: bool

    def __call__(
        self,
        frames: Float[Tensor, "v l d"],
        valid: Bool[Tensor, "v l"],
        scored: Bool[Tensor, "v l"] | None,
        clips: Float[Tensor, "v p d"] | None,
    ) -> tuple[Float[Tensor, "v r d"], Bool[Tensor, "v r"] | None]:
        """The rows that queries are compared with, and which of them count; None = all.

        Args:
            frames: `(v, l, d)` encoded frames, 0 where invalid.
            valid: `(v, l)` True = a frame of the video.
            scored: `(v, l)` True = a frame that counts where frames are compared one by one; None = all.
            clips: `(v, p, d)` rows of the clip branch, or None without it.
        """
        ...


class EveryFrame(nn.Module):
    """Frames one by one."""

    by_clip = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()

    def forward(
        self,
        frames: Float[Tensor, "v l d"],
        valid: Bool[Tensor, "v l"],
        scored: Bool[Tensor, "v l"] | None,
        clips: Float[Tensor, "v p d"] | None,
    ) -> tuple[Float[Tensor, "v l d"], Bool[Tensor, "v l"] | None]:
        """The frames, see `FramePooling`."""
        return frames, scored


class PooledFrames(nn.Module):
    """One vector of all frames by attention pooling (GMMFormer)."""

    by_clip = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.weight = AttentionPooling(model.hidden).weight  # a parameter of its own, under the name in saved models

    def forward(
        self,
        frames: Float[Tensor, "v l d"],
        valid: Bool[Tensor, "v l"],
        scored: Bool[Tensor, "v l"] | None,
        clips: Float[Tensor, "v p d"] | None,
    ) -> tuple[Float[Tensor, "v 1 d"], None]:
        """One row per video, see `FramePooling`."""
        return attention_pooled(frames, self.weight, valid)[:, None], None
