"""Cross-branch video alignment (MSC-PRVR): frames and segments of a video that belong together are drawn together."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.config import AnyModelConfig
from prvr.losses.term import LossInputs, Term
from prvr.models.layers import initialise
from prvr.published.msc import AlignmentSettings
from prvr.published.msc.clips import merge_rows
from prvr.types import Merged


def segment_contrast(
    frames: Float[Tensor, "v l d"], segments: Float[Tensor, "v s d"], own: Bool[Tensor, "v l s"]
) -> Float[Tensor, " v"]:
    r"""Contrast of the frames and the segments of each video, from frames and from segments.

    Mean over frames of $-\log \frac{P}{P + N}$, and the same over segments: P is the mean of $e^{f \cdot s}$ over
    the pairs of a frame, or segment, that belong together, N over its others. The first does not move segments, the
    second does not move frames.

    Args:
        frames, segments: their embeddings, two segments or more.
        own: whether a frame is part of a segment. Each frame is part of one, and each segment has frames.
    """

    def one_way(products: Tensor, dim: int) -> Tensor:
        means = [
            products.masked_fill(~part, -torch.inf).logsumexp(dim) - part.sum(dim).to(products.dtype).log()
            for part in (own, ~own)
        ]
        return F.softplus(means[1] - means[0]).mean(1)

    return one_way(frames @ segments.detach().mT, 2) + one_way(frames.detach() @ segments.mT, 1)


def linked_share(clips: Float[Tensor, "v c f"], similarity: float) -> Float[Tensor, " v"]:
    """Which share of the pairs of clips is connected, by way of others, through cosines above `similarity`."""
    unit = F.normalize(clips, dim=2)
    linked = (unit @ unit.mT > similarity).to(clips.dtype)
    for _ in range(clips.shape[1].bit_length()):
        linked = (linked @ linked > 0).to(clips.dtype)
    off_diagonal = linked.sum((1, 2)) - linked.diagonal(dim1=1, dim2=2).sum(1)
    return off_diagonal / (clips.shape[1] * (clips.shape[1] - 1))


def greedy_groups(clips: Float[Tensor, "v n f"], count: int) -> Int[Tensor, "v n"]:
    """Which of `count` rows each of n rows becomes part of, where even rows merge with odd ones, most alike first.

    Each takes part once; a merged row stands in the place of the even one.
    """
    unit = F.normalize(clips, dim=2)
    cosines = unit[:, ::2] @ unit[:, 1::2].mT
    pairs, half = [], cosines.shape[2]
    place = torch.arange(half, device=clips.device)
    for _ in range(clips.shape[1] - count):
        best = cosines.flatten(1).argmax(1)[:, None]
        pairs.append((2 * (best // half), 2 * (best % half) + 1))
        taken = (place == best // half)[:, :, None] | (place == best % half)[:, None]
        cosines = cosines.masked_fill(taken, -torch.inf)
    starts = torch.ones(clips.shape[:2], dtype=torch.long, device=clips.device)
    if not pairs:
        return starts.cumsum(1) - 1
    even, odd = (torch.cat(rows, 1) for rows in zip(*pairs, strict=True))
    group = starts.scatter(1, odd, 0).cumsum(1) - 1
    return group.scatter(1, odd, group.gather(1, even))


class Alignment(Term[AlignmentSettings]):
    """`segment_contrast` of the frames with 32, 20, 12, 8 or 5 segments, of encodings that one linear map has mapped.

    The 32 clips merge, weighted by size, even with odd ones, until so many are left as `linked_share` asks for: 20 from
    a share of 0.2, 12 from 0.4, 8 from 0.6, 5 from 0.8; of another number of clips in proportion, and at least two.
    """

    def __init__(self, settings: AlignmentSettings, model: AnyModelConfig) -> None:
        super().__init__(settings, model)
        self.project = nn.Linear(model.hidden, model.hidden)
        initialise(self.project)
        even = [2 * max(1, round(model.num_clips * share / 64)) for share in (20, 12, 8)]
        self.counts = (*even, max(2, round(model.num_clips * 5 / 32)))

    def levels(
        self, segments: Float[Tensor, "v c d"], merged: Merged
    ) -> Iterator[tuple[Float[Tensor, "v s d"], Int[Tensor, "v l"]]]:
        """Segments and the one of each frame, from all clips to the fewest."""
        clips, sizes, segment_of = merged.features, merged.sizes, merged.clip_of
        yield segments, segment_of
        for count in self.counts:
            group = greedy_groups(clips, count)
            segments, _ = merge_rows(segments, sizes, group, count)
            clips, sizes = merge_rows(clips, sizes, group, count)
            segment_of = group.gather(1, segment_of)
            yield segments, segment_of

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The alignment loss."""
        video = inputs.output.video
        assert video.clips is not None
        assert video.frames is not None
        assert video.merged is not None  # the configuration sees to it
        frames, losses = self.project(video.frames), []
        for segments, segment_of in self.levels(self.project(video.clips), video.merged):
            own = segment_of[..., None] == torch.arange(segments.shape[1], device=segments.device)
            losses.append(segment_contrast(frames, segments, own))
        share = linked_share(video.merged.features, self.settings.similarity)
        level = torch.stack([share >= bound for bound in (0.2, 0.4, 0.6, 0.8)], 1).sum(1, keepdim=True)
        return torch.stack(losses, 1).gather(1, level).mean()
