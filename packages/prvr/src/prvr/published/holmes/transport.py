r"""Which clips of a video each of its queries is about, as targets and as a loss (Holmes, intra-video transport).

Blocks are padded: `v` videos, `m` queries of each at most, `c` clips; a mask says which queries there are.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from prvr.config import COMPAT, ModelConfig
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.published.blocks_of_queries import block_cosines, queries_of_videos
from prvr.published.holmes import TransportSettings
from prvr.published.holmes.evidence import dirichlet_loss, evidence_of

Block = Float[Tensor, "v m c"]
BlockMask = Bool[Tensor, "v m"]


def unit_interval(cosines: Block, mask: BlockMask) -> Block:
    """Cosines of each video moved and scaled into [0, 1] by the lowest and the highest of its queries.

    Args:
        cosines: of `block_cosines`.
        mask: True = a query; padding takes no part.

    Examples:
        >>> cosines = torch.tensor([[[0.5, -0.5], [9.0, 9.0]]])
        >>> unit_interval(cosines, torch.tensor([[True, False]]))[0, 0].tolist()
        [1.0, 0.0]
    """
    own = (mask | ~mask.any(1, keepdim=True))[..., None]  # all rows of a video without a query, which does not count
    lowest = cosines.masked_fill(~own, torch.inf).amin((1, 2), keepdim=True)
    highest = cosines.masked_fill(~own, -torch.inf).amax((1, 2), keepdim=True)
    return (cosines - lowest) / (highest - lowest + 1e-8)


def sinkhorn(
    similarity: Block, mask: BlockMask, epsilon: float
) -> tuple[Float[Tensor, "v n c"], Float[Tensor, "v n"], Float[Tensor, "v c"]]:
    r"""Logits C and potentials f, g of the plan $\exp(C_{ij} + f_i + g_j)$, by 50 log-domain iterations from 0.

    One iteration sets f so that rows have their masses, then g for the columns (Cuturi, "Sinkhorn Distances", 2013).
    The queries have one more row after them, the bucket for clips that no query is about. A video of M queries and N
    clips has mass 1 / (N + M) for each query, N / (N + M) for the bucket and 1 / N for each clip. The similarity of the
    bucket is the same with all clips: its value has no effect, as the row's potential absorbs it, and is 0 here.

    Args:
        similarity: for example of `unit_interval`.
        mask: True = a query; other rows have no mass.
        epsilon: entropic regularisation, in units of similarity.
    """
    clips = similarity.shape[2]
    everything = (mask.sum(1, keepdim=True) + clips).to(similarity.dtype)
    queries = (1 / everything).expand(mask.shape).masked_fill(~mask, 0)
    log_rows = torch.cat([queries, clips / everything], 1).log()
    logits = F.pad(similarity / epsilon, (0, 0, 0, 1))
    f, g = torch.zeros_like(log_rows), logits.new_zeros(len(logits), clips)
    for _ in range(50):
        f = log_rows - (logits + g[:, None]).logsumexp(2)
        g = -math.log(clips) - (logits + f[..., None]).logsumexp(1)
    return logits, f, g


@torch.no_grad()
def transport_targets(similarity: Block, mask: BlockMask, epsilon: float) -> Block:
    """Distributions over clips by entropic optimal transport between the queries of a video, a bucket, and its clips.

    Queries compete for clips, which have equal masses; see `sinkhorn`. Rows of the plan are scaled to a sum of 1.

    Args:
        similarity: for example of `unit_interval`.
        mask: True = a query.
        epsilon: entropic regularisation, in units of similarity.

    Returns:
        Rows that add up to 1; 0 where the mask is False. No gradient reaches them.

    Examples:
        >>> similarity, mask = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), torch.tensor([[True, True]])
        >>> softer = transport_targets(similarity, mask, 0.5)[0, 0, 0] < softmax_targets(similarity, mask, 0.5)[0, 0, 0]
        >>> bool(softer)  # both want the same clip
        True
    """
    logits, _, columns = sinkhorn(similarity, mask, epsilon)
    # A row of the plan divided by its sum is a softmax, in which the potential of the row cancels.
    return (logits[:, :-1] + columns[:, None]).softmax(-1) * mask[..., None]


@torch.no_grad()
def softmax_targets(similarity: Block, mask: BlockMask, epsilon: float) -> Block:
    """Distributions over clips without competition, softmax(similarity / epsilon): the control of `transport_targets`.

    Args:
        similarity: for example of `unit_interval`.
        mask: True = a query; other rows of the result are 0.
        epsilon: temperature.
    """
    return (similarity / epsilon).softmax(-1) * mask[..., None]


def intra_video_loss(
    similarity: Block,
    target: Block,
    mask: BlockMask,
    temperature: float,
) -> Scalar:
    """`dirichlet_loss` of the evidence of each query for the clips of its video: mean over queries, then over videos.

    Args:
        similarity: for example of `unit_interval`.
        target: rows that add up to 1.
        mask: True = a query; a video without one does not count.
        temperature: tau of `prvr.published.holmes.evidence.evidence_of`.
    """
    losses = dirichlet_loss(evidence_of(similarity, temperature), target) * mask
    counts = mask.sum(1)
    return (losses.sum(1) / counts.clamp_min(1)).sum() / (counts > 0).sum().clamp_min(1)


MASKED = (unit_interval, transport_targets)
"""How similarities are scaled, and what targets they give: rows without a query are left out."""


class Transport(Term[TransportSettings]):
    """`intra_video_loss` of queries and clips with targets by optimal transport, or without (Holmes); 0 in the warm-up.

    The similarities are targets and logits at once: gradients pass through the logits, and through their range.
    """

    def __init__(self, settings: TransportSettings, model: ModelConfig) -> None:
        super().__init__(settings, model)
        self.scale, self.targets = COMPAT["transport"][model.compat.transport].part
        if settings.targets == "softmax":
            self.targets = softmax_targets

    def forward(self, inputs: LossInputs) -> Scalar:
        """The intra-video loss."""
        clips = inputs.output.video.clips
        assert clips is not None
        if inputs.warm_up:
            return 0 * clips[0, 0, 0]  # part of the graph: it may be the only term
        labels = inputs.labels
        queries, mask = queries_of_videos(labels.query_to_video, len(clips), labels.most_queries)
        similarity = self.scale(block_cosines(inputs.text[queries], clips), mask)
        target = self.targets(similarity, mask, self.settings.epsilon)
        return intra_video_loss(similarity, target, mask, self.settings.temperature)
