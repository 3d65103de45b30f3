r"""Which clips of a video each of its queries is about, as targets and as a loss (Holmes, intra-video transport).

Blocks are padded: `v` videos, `m` queries of each at most, `c` clips; a mask says which queries there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from prvr.config import COMPAT, AnyModelConfig, ModelConfig
from prvr.config.losses import LossSettings, TransportSettings
from prvr.losses.evidence import dirichlet_loss, evidence_of
from prvr.losses.term import LossInputs, Term


def queries_of_videos(
    query_to_video: Int[Tensor, " q"], videos: int, most: int | None = None
) -> tuple[Int[Tensor, "v m"], Bool[Tensor, "v m"]]:
    """Indices of the queries of each video, padded, and which of these entries count.

    Args:
        query_to_video: the video of each query, in any order.
        videos: how many there are.
        most: the most queries of any video m; None = it is counted, for which the host waits for a GPU.

    Examples:
        >>> queries, mask = queries_of_videos(torch.tensor([1, 0, 1]), 2)
        >>> queries.masked_fill(~mask, -1).tolist()
        [[1, -1], [0, 2]]
    """
    counts = (query_to_video == torch.arange(videos, device=query_to_video.device)[:, None]).sum(1)
    places = torch.arange(int(counts.max()) if most is None else most, device=counts.device)
    order, mask = query_to_video.argsort(stable=True), places < counts[:, None]
    return order[(counts.cumsum(0) - counts)[:, None].add(places).clamp_max(len(order) - 1)], mask


def block_cosines(text: Float[Tensor, "v m d"], clips: Float[Tensor, "v c d"]) -> Float[Tensor, "v m c"]:
    """Cosines of the queries of each video with its clips."""
    return F.normalize(text, dim=-1) @ F.normalize(clips, dim=-1).mT


def unit_interval(cosines: Float[Tensor, "v m c"], mask: Bool[Tensor, "v m"]) -> Float[Tensor, "v m c"]:
    """Cosines of each video moved and scaled into [0, 1] by the lowest and the highest of its queries.

    Args:
        cosines: of `block_cosines`.
        mask: True = a query; padding takes no part.

    Examples:
        >>> cosines = torch.tensor([[[0.5, -0.5], [9.0, 9.0]]])
        >>> unit_interval(cosines, torch.tensor([[True, False]]))[0, 0].tolist()
        [1.0, 0.0]
    """
    own = mask[..., None]
    lowest = cosines.masked_fill(~own, torch.inf).amin((1, 2), keepdim=True)
    highest = cosines.masked_fill(~own, -torch.inf).amax((1, 2), keepdim=True)
    none = ~own.any(1, keepdim=True)  # a video without a query has neither
    lowest, highest = lowest.masked_fill(none, 0), highest.masked_fill(none, 1)
    return (cosines - lowest) / (highest - lowest + 1e-8)


def sinkhorn(
    logits: Float[Tensor, "v m c"],
    log_rows: Float[Tensor, "v m"],
    log_columns: Float[Tensor, " c"],
    iterations: int,
) -> tuple[Float[Tensor, "v m"], Float[Tensor, "v c"]]:
    r"""Potentials f, g of the plan $\exp(C_{ij} + f_i + g_j)$ with fixed masses, by log-domain iterations from 0.

    One iteration sets f so that rows have their masses, then g for the columns (Cuturi, "Sinkhorn Distances", 2013).

    Args:
        logits: C, similarities divided by the entropic regularisation.
        log_rows: logarithms of the masses of rows; -inf = the row is not there.
        log_columns: logarithms of the masses of columns.
        iterations: how many.
    """
    g = logits.new_zeros(logits.shape[0], logits.shape[2])
    f = torch.zeros_like(log_rows)
    for _ in range(iterations):
        f = log_rows - (logits + g[:, None]).logsumexp(2)
        g = log_columns - (logits + f[..., None]).logsumexp(1)
    return f, g


def bucket_problem(
    similarity: Float[Tensor, "v m c"], mask: Bool[Tensor, "v m"], epsilon: float
) -> tuple[Float[Tensor, "v n c"], Float[Tensor, "v n"], Float[Tensor, " c"]]:
    """Logits and logarithms of masses for `sinkhorn`, with one more row, the bucket for clips that no query is about.

    A video of M queries and N clips has mass 1 / (N + M) for each query, N / (N + M) for the bucket and 1 / N for each
    clip. The similarity of the bucket is the same with all clips: its value has no effect, as the row's potential
    absorbs it, and is 0 here.
    """
    clips = similarity.shape[2]
    everything = (mask.sum(1, keepdim=True) + clips).to(similarity.dtype)
    queries = (1 / everything).expand(mask.shape).masked_fill(~mask, 0)
    log_columns = (similarity.new_ones(clips) / clips).log()
    return F.pad(similarity / epsilon, (0, 0, 0, 1)), torch.cat([queries, clips / everything], 1).log(), log_columns


@torch.no_grad()
def transport_targets(
    similarity: Float[Tensor, "v m c"], mask: Bool[Tensor, "v m"], epsilon: float, iterations: int = 50
) -> Float[Tensor, "v m c"]:
    """Distributions over clips by entropic optimal transport between the queries of a video, a bucket, and its clips.

    Queries compete for clips, which have equal masses; see `bucket_problem`. Rows of the plan are scaled to a sum of 1.

    Args:
        similarity: for example of `unit_interval`.
        mask: True = a query.
        epsilon: entropic regularisation, in units of similarity.
        iterations: of `sinkhorn`.

    Returns:
        Rows that add up to 1; 0 where the mask is False. No gradient reaches them.

    Examples:
        >>> similarity, mask = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), torch.tensor([[True, True]])
        >>> softer = transport_targets(similarity, mask, 0.5)[0, 0, 0] < softmax_targets(similarity, mask, 0.5)[0, 0, 0]
        >>> bool(softer)  # both want the same clip
        True
    """
    problem = bucket_problem(similarity, mask, epsilon)
    _, columns = sinkhorn(*problem, iterations)
    # A row of the plan divided by its sum is a softmax, in which the potential of the row cancels.
    return (problem[0][:, :-1] + columns[:, None]).softmax(-1) * mask[..., None]


@torch.no_grad()
def softmax_targets(
    similarity: Float[Tensor, "v m c"], mask: Bool[Tensor, "v m"], epsilon: float
) -> Float[Tensor, "v m c"]:
    """Distributions over clips without competition, softmax(similarity / epsilon): the control of `transport_targets`.

    Args:
        similarity: for example of `unit_interval`.
        mask: True = a query; other rows of the result are 0.
        epsilon: temperature.
    """
    return (similarity / epsilon).softmax(-1) * mask[..., None]


def intra_video_loss(
    similarity: Float[Tensor, "v m c"],
    target: Float[Tensor, "v m c"],
    mask: Bool[Tensor, "v m"],
    temperature: float,
) -> Float[Tensor, ""]:
    """`dirichlet_loss` of the evidence of each query for the clips of its video: mean over queries, then over videos.

    Args:
        similarity: for example of `unit_interval`.
        target: rows that add up to 1.
        mask: True = a query; a video without one does not count.
        temperature: tau of `prvr.losses.evidence.evidence_of`.
    """
    losses = dirichlet_loss(evidence_of(similarity, temperature), target) * mask
    counts = mask.sum(1)
    return (losses.sum(1) / counts.clamp_min(1)).sum() / (counts > 0).sum().clamp_min(1)


_NO_QUERY = 2.0  # more than any cosine


class _Assignment(torch.autograd.Function):
    """Which query takes which clip, as zeros and ones: no gradient passes through the choice."""

    @staticmethod
    def forward(cosines: Tensor, mask: Tensor) -> Tensor:
        if cosines.device.type == "meta":  # on which shapes alone are computed
            return torch.zeros_like(cosines)
        table = cosines.detach().float().masked_fill(~mask[..., None], _NO_QUERY).cpu().numpy()  # waits once
        matches = np.zeros_like(table)
        for v, queries in enumerate(table[:, :, 0] < _NO_QUERY):
            rows, columns = linear_sum_assignment(table[v, queries], maximize=True)
            matches[v, rows, columns] = float(queries.sum() > 1)
        return torch.from_numpy(matches).to(cosines)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


def matching_loss(
    text: Float[Tensor, "q d"],
    clips: Float[Tensor, "v c d"],
    query_to_video: Int[Tensor, " q"],
    most: int | None = None,
) -> Float[Tensor, ""]:
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
    chosen = torch.as_tensor(_Assignment.apply(cosines, mask))
    pairs = chosen.sum()
    return ((1 - cosines) * chosen).sum() / pairs.clamp_min(1)


class Matching(Term[LossSettings]):
    """`matching_loss` of queries and clips."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The optimal matching loss."""
        clips, labels = inputs.output.video.clips, inputs.labels
        assert clips is not None
        return matching_loss(inputs.text, clips, labels.query_to_video, labels.most_queries)


@dataclass(frozen=True)
class TransportParts:
    """Functions of `Transport` that `compat.transport` names.

    Args:
        scale: as `unit_interval`.
        targets: as `transport_targets`.
    """

    scale: Callable[[Tensor, Tensor], Tensor] = unit_interval
    targets: Callable[[Tensor, Tensor, float], Tensor] = transport_targets


MASKED = TransportParts()
"""Rows without a query are left out."""


class Transport(Term[TransportSettings]):
    """`intra_video_loss` of queries and clips with targets by optimal transport, or without (Holmes); 0 in the warm-up.

    The similarities are targets and logits at once: gradients pass through the logits, and through their range.
    """

    def __init__(self, settings: TransportSettings, model: AnyModelConfig) -> None:
        super().__init__(settings, model)
        assert isinstance(model, ModelConfig)
        parts = COMPAT["transport"][model.compat.transport].part
        self.scale = parts.scale
        self.targets = {"transport": parts.targets, "softmax": softmax_targets}[settings.targets]

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
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
