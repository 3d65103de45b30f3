"""The parts of MSC-PRVR: merged clips, which are neighbouring frames that are alike, and its losses.

Frames and segments of a video that belong together are drawn together, and relations of queries stay as their features
have them.
"""

from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from prvr.config import AnyModelConfig, LossSettings, ModelConfig
from prvr.data.sampling import EPSILON
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.models.clips import Encode
from prvr.models.layers import initialise
from prvr.published.msc import AlignmentSettings, merge_stages
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
    unit, rows = F.normalize(clips, dim=2), torch.arange(clips.shape[1], device=clips.device)
    cosines = unit[:, ::2] @ unit[:, 1::2].mT
    half, into = cosines.shape[2], rows.repeat(len(clips), 1)
    for _ in range(len(rows) - count):
        best = cosines.flatten(1).argmax(1)[:, None]
        even, odd = best // half, best % half
        into = into.scatter(1, 2 * odd + 1, 2 * even)
        taken = (rows[:half] == even)[:, :, None] | (rows[:half] == odd)[:, None]
        cosines = cosines.masked_fill(taken, -torch.inf)
    group = (into == rows).cumsum(1) - 1
    return group.gather(1, into)


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

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The alignment loss."""
        video = inputs.output.video
        assert video.clips is not None
        assert video.frames is not None
        assert video.merged is not None  # the configuration sees to it
        clips, sizes, segment_of = video.merged.features, video.merged.sizes, video.merged.clip_of
        share = linked_share(clips, self.settings.similarity)
        frames, segments, losses = self.project(video.frames), self.project(video.clips), []
        for count in (None, *self.counts):
            if count is not None:  # at first every clip is a segment
                group = greedy_groups(clips, count)
                segments, _ = merge_rows(segments, sizes, group, count)
                clips, sizes = merge_rows(clips, sizes, group, count)
                segment_of = group.gather(1, segment_of)
            own = segment_of[..., None] == torch.arange(segments.shape[1], device=segments.device)
            losses.append(segment_contrast(frames, segments, own))
        level = torch.stack([share >= bound for bound in (0.2, 0.4, 0.6, 0.8)], 1).sum(1, keepdim=True)
        return torch.stack(losses, 1).gather(1, level).mean()


_ANGLES = 2**24  # cosines that are computed at a time


def _products(x: Float[Tensor, "q d"]) -> tuple[Float[Tensor, "q q"], Float[Tensor, "q q"]]:
    """Products of rows from which their mean is taken, and the squared distances of rows."""
    centred = x - x.mean(0)
    products = centred @ centred.mT
    return products, products.diagonal()[:, None] + products.diagonal() - 2 * products


def distance_geometry_loss(text: Float[Tensor, "q d"], fixed: Float[Tensor, "q e"]) -> Scalar:
    r"""Keeps the proportions of the distances between queries (MSC-PRVR; RKD-D of Park et al., CVPR 2019).

    Mean over all pairs of $\mathrm{smooth}_{L1}(d_{pq} / \bar d - f_{pq} / \bar f)$: d distances of embeddings, f
    those of fixed vectors, each divided by its mean over different queries. Smooth L1 is $x^2 / 2$ up to 1, then
    $|x| - 1/2$.

    Args:
        text: embeddings of queries.
        fixed: vectors of the same queries that training does not change, of any width.

    Examples:
        >>> distance_geometry_loss(2 * torch.eye(3), torch.eye(3)).item()
        0.0
    """
    itself = torch.eye(len(text), dtype=torch.bool, device=text.device)
    relative = []
    for x in (text, fixed.detach()):
        distances = _products(x)[1].clamp_min(1e-12).sqrt().masked_fill(itself, 0)
        relative.append(distances * max(distances.numel() - len(text), 1) / distances.sum().clamp_min(1e-12))
    return F.smooth_l1_loss(relative[0], relative[1])


def angle_geometry_loss(text: Float[Tensor, "q d"], fixed: Float[Tensor, "q e"]) -> Scalar:
    r"""Keeps the angles between queries (MSC-PRVR; RKD-A of Park et al., CVPR 2019).

    Mean over all triples of $\mathrm{smooth}_{L1}(\cos\angle_{qpr} - \cos\angle^*_{qpr})$: the angle at p between
    q and r, of embeddings and of fixed vectors; 0 where p equals q or r up to rounding. The angles at a few p at a time
    are computed, and again for the gradient: memory grows with the second power of the number of queries.

    Args:
        text: embeddings of queries.
        fixed: vectors of the same queries that training does not change, of any width.

    Examples:
        >>> angle_geometry_loss(2 * torch.eye(3), torch.eye(3)).item()
        0.0
    """
    queries, both = len(text), []
    for x in (text, fixed.detach()):
        products, squares = _products(x)
        distinct = squares > 1e-6 * products.diagonal().mean()
        both += [products, squares.masked_fill(~distinct, torch.inf).rsqrt()]

    def cosines(at: slice, products: Tensor, inverse: Tensor) -> Tensor:
        dots = products - products[at, None] - products[at, :, None] + products.diagonal()[at, None, None]
        return dots * inverse[at, None] * inverse[at, :, None]

    def loss(at: slice, *both: Tensor) -> Tensor:
        return F.smooth_l1_loss(cosines(at, *both[:2]), cosines(at, *both[2:]), reduction="sum")

    step = max(1, _ANGLES // queries**2)
    again = partial(checkpoint, loss, use_reentrant=False, preserve_rng_state=False)
    parts = [again(slice(first, first + step), *both) for first in range(0, queries, step)]
    return torch.stack(parts).sum() / queries**3


class TextDistances(Term[LossSettings]):
    """`distance_geometry_loss` of the queries and the features of their last words."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """How far the distances of the queries are from those of their features."""
        return distance_geometry_loss(inputs.text, inputs.last_words)


class TextAngles(Term[LossSettings]):
    """`angle_geometry_loss` of the queries and the features of their last words."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """How far the angles between the queries are from those of their features."""
        return angle_geometry_loss(inputs.text, inputs.last_words)
