"""Merged clips (MSC-PRVR): neighbouring frames that are alike become one clip."""

from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.data.sampling import EPSILON
from prvr.models.clips import Encode
from prvr.published.msc import merge_stages
from prvr.scoring import full_precision
from prvr.types import Merged

Frames = Float[Tensor, "v l f"]
FrameMask = Bool[Tensor, "v l"]
"""The frames of each video, and which are valid."""


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


def unit_length(frames: Frames) -> Frames:
    """Each row divided by (its norm + 1e-5), as `prvr.data.sampling.normalise_rows` does."""
    return frames / (frames.norm(dim=2, keepdim=True) + EPSILON)


class MergedClips(nn.Module):
    """Order-preserving token merging (MSC-PRVR): neighbouring frames that are alike become one clip.

    A video with fewer frames than `max_frames` repeats some, evenly. In each of three stages the rows 2i and 2i + 1
    merge, weighted by size, where their dot product is highest, until `prvr.published.msc.merge_stages` many are left.
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

    def repeated(self, frames: Frames, mask: FrameMask) -> tuple[Float[Tensor, "v m f"], Bool[Tensor, "v m"]]:
        """As many frames of each video as a model takes, and their mask, all True: row i is frame i l / m, rounded."""
        count = mask.sum(1, keepdim=True)
        at = torch.arange(self.frames, device=mask.device) / self.frames * count
        at = at.round().long().minimum(count - 1)
        return frames.take_along_dim(at[..., None], 1), torch.ones_like(at, dtype=torch.bool)

    def merge(self, frames: Frames) -> Merged:
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
        self, encode: Encode, clips: Float[Tensor, "v c f"], frames: Frames, mask: FrameMask
    ) -> tuple[Float[Tensor, "v c d"], Float[Tensor, "v c 2"], Merged]:
        """The rows, see `ClipConstruction`, and what was merged; of frames that are `repeated`."""
        merged = self.merge(frames)
        ends = merged.sizes.cumsum(1)
        spans = torch.stack([ends - merged.sizes, ends], 2) / self.frames
        return encode(merged.features, None, merged.sizes), spans, merged
