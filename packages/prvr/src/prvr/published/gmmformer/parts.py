"""Parts of GMMFormer, one vector of all frames, and of GMMFormer v2: one learned vector that guides the fusion, and the
optimal matching loss.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from prvr.config import LossSettings, ModelConfig
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.models.clips import EncodedFrames
from prvr.models.fusion import GuidedFusion
from prvr.models.layers import AttentionPooling
from prvr.published.blocks_of_queries import block_cosines, queries_of_videos


class PooledFrames(AttentionPooling):
    """One vector of all frames by attention pooling (GMMFormer); a `prvr.models.clips.FramePooling`."""

    by_clip = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model.hidden)

    def forward(self, frames: EncodedFrames) -> tuple[Float[Tensor, "v 1 d"], None]:
        """One row per video, see `prvr.models.clips.FramePooling`."""
        return super().forward(frames.rows, frames.valid)[:, None], None


class GuideToken(nn.Module):
    """A learned vector that guides the fusion of every video (GMMFormer v2); it starts at N(0, 1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, dim))

    def forward(
        self, blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None = None
    ) -> Float[Tensor, "v d"]:
        """The vector, for each video."""
        return self.token[0].expand(blocks.shape[1], -1)


def token_guided(model: ModelConfig, length: int, first: GuidedFusion | None = None) -> GuidedFusion:
    """Fusion by weights for which a learned vector asks each block (GMMFormer v2).

    As `GuidedFusion`, with a `GuideToken` in the place of the mean. The branches of a retriever share the vector: with
    the fusion of the `first` one the other asks with its vector.
    """
    token = GuideToken(model.hidden)  # drawn for each branch, so that a seed gives the weights it always gave
    return GuidedFusion(model, length, token if first is None else first.guide.forward)


_NO_QUERY = 2.0  # more than any cosine


@torch.no_grad()
def _assigned(cosines: Float[Tensor, "v m c"], mask: Bool[Tensor, "v m"]) -> Float[Tensor, "v m c"]:
    """Which query takes which clip, as zeros and ones: no gradient passes through the choice."""
    if cosines.device.type == "meta":  # on which shapes alone are computed
        return torch.zeros_like(cosines)
    table = cosines.float().masked_fill(~mask[..., None], _NO_QUERY).cpu().numpy()  # waits once
    matches = np.zeros_like(table)
    for v, queries in enumerate(table[:, :, 0] < _NO_QUERY):
        rows, columns = linear_sum_assignment(table[v, queries], maximize=True)
        matches[v, rows, columns] = float(queries.sum() > 1)
    return torch.from_numpy(matches).to(cosines)


def matching_loss(
    text: Float[Tensor, "q d"],
    clips: Float[Tensor, "v c d"],
    query_to_video: Int[Tensor, " q"],
    most: int | None = None,
) -> Scalar:
    r"""One minus the mean cosine of queries and clips matched one to one (optimal matching loss of GMMFormer v2).

    $1 - \frac1{|M|} \sum_{(q,j) \in M} \cos(q, c_j)$, where M holds, for each video with several queries, the pairs of
    the assignment with the highest sum (Kuhn 1955); a clip is matched with one query at most.

    Args:
        text: queries.
        clips: clips of the videos, c.
        query_to_video: the video of each query.
        most: the most queries of any video, see `queries_of_videos`.

    Returns:
        From 0 to 2; 0 where no video has several queries.

    Examples:
        >>> text, clips = torch.tensor([[1.0, 0.1], [1.0, 0.0]]), torch.eye(2)[None]
        >>> round(matching_loss(text, clips, torch.tensor([0, 0])).item(), 3)  # the first takes the second clip
        0.45
    """
    queries, mask = queries_of_videos(query_to_video, len(clips), most)
    cosines = block_cosines(text[queries], clips)
    chosen = _assigned(cosines, mask)
    return ((1 - cosines) * chosen).sum() / chosen.sum().clamp_min(1)


class Matching(Term[LossSettings]):
    """`matching_loss` of queries and clips."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """The optimal matching loss."""
        clips, labels = inputs.output.video.clips, inputs.labels
        assert clips is not None
        return matching_loss(inputs.text, clips, labels.query_to_video, labels.most_queries)
