"""Ranks and recalls: the place of the relevant video in the list of each query.

Ranks are counted, not sorted: the rank of a query is 1 + the number of irrelevant videos that score at least as high as
its best relevant one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from prvr.errors import InputError
from prvr.types import Embeddings

Ties = Literal["worst", "mean", "best"]

RECALLS = (1, 5, 10, 100)
"""The cut-offs that SumR adds up."""
HEADINGS = {
    **{f"r{k}": f"R@{k}" for k in RECALLS},
    **{"sumr": "SumR", "rsum": "Rsum", "mdr": "MdR", "mnr": "MnR"},
}
"""What a table calls the fields of `RetrievalMetrics`."""


@dataclass(frozen=True)
class RankCounts(Embeddings):
    """The numbers of irrelevant items above, and equal to, the best relevant item of each row.

    Args:
        above: `(q,)` irrelevant items with a higher score.
        tied: `(q,)` irrelevant items with exactly the same score.
    """

    above: Int[Tensor, " q"]
    tied: Int[Tensor, " q"]

    def ranks(self, ties: Ties = "worst") -> Real[Tensor, " q"]:
        """`(q,)` 1-based ranks: integers, or halves for `ties="mean"`."""
        first = 1 + self.above
        return {"worst": first + self.tied, "mean": first + self.tied / 2, "best": first}[ties]

    def metrics(self, ties: Ties = "worst") -> "RetrievalMetrics":
        """The metrics of these rows, at least one."""
        return RetrievalMetrics.from_ranks(self.ranks(ties), int((self.tied > 0).sum()) / len(self.tied))

    @classmethod
    def cat(cls, parts: Sequence["RankCounts"]) -> "RankCounts":
        """The counts of several blocks of rows, one after the other; at least one block."""
        return cls(torch.cat([part.above for part in parts]), torch.cat([part.tied for part in parts]))


def count_ranks(scores: Float[Tensor, "q v"], relevant: Bool[Tensor, "q v"]) -> RankCounts:
    """Counts the irrelevant videos above and equal to the best relevant video of each query.

    Args:
        scores: `(q, v)` similarities, higher is better; infinities are allowed.
        relevant: `(q, v)` relevant videos, at least one per row; they never count against each other.

    Raises:
        ValueError: a score is NaN, or a query has no relevant video.

    Examples:
        >>> scores = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
        >>> counts = count_ranks(scores, torch.tensor([[False, True, False, False]]))
        >>> counts.above.tolist(), counts.tied.tolist()
        ([1], [1])
    """
    require_relevant(~relevant.any(1))
    nan = scores.amax(1).isnan()  # a maximum keeps NaN, and is one pass
    if bool(nan.any()):
        reject_nan(nan, scores.isnan().any(0))
    best = scores.masked_fill(~relevant, -torch.inf).amax(1, keepdim=True)
    return RankCounts((scores > best).sum(1), ((scores == best) & ~relevant).sum(1))


def ranks(scores: Float[Tensor, "q v"], relevant: Bool[Tensor, "q v"], ties: Ties = "worst") -> Real[Tensor, " q"]:
    """1-based rank of each query's best relevant video.

    `rank = 1 + #{irrelevant v: s(q, v) > s*} + t`, where `s*` is the highest score of a relevant video and `t` is the
    number of irrelevant videos at exactly `s*` (worst), half of it (mean) or 0 (best).

    Args:
        scores: `(q, v)` similarities, higher is better.
        relevant: `(q, v)` relevant videos, at least one per row; they never count against each other.
        ties: the rank among irrelevant videos with the same score.

    Returns:
        `(q,)` integers; floating halves for `ties="mean"`.

    Raises:
        ValueError: a score is NaN, or a query has no relevant video.

    Examples:
        >>> scores, relevant = torch.tensor([[0.9, 0.5, 0.5]]), torch.tensor([[False, True, False]])
        >>> [ranks(scores, relevant, ties).item() for ties in ("worst", "mean", "best")]
        [3, 2.5, 2]
    """
    return count_ranks(scores, relevant).ranks(ties)


def require_relevant(queries: Bool[Tensor, " q"], query_ids: Sequence[str] = ()) -> None:
    """Raises ValueError if any query is marked as having no relevant video."""
    if bool(queries.any()):
        raise InputError(
            f"{int(queries.sum())} of {len(queries)} queries have no relevant video, the first is "
            f"{_named(queries, query_ids)}. Every query needs at least one"
        )


def reject_nan(
    queries: Bool[Tensor, " q"],
    videos: Bool[Tensor, " v"],
    query_ids: Sequence[str] = (),
    video_ids: Sequence[str] = (),
) -> None:
    """Raises ValueError if any query or video is marked as having a NaN among its scores."""
    if bool(queries.any()):
        raise InputError(
            f"scores are NaN for {int(queries.sum())} of {len(queries)} queries (first: {_named(queries, query_ids)}) "
            f"and {int(videos.sum())} of {len(videos)} videos (first: {_named(videos, video_ids)}): "
            "check their features and the model's weights"
        )


def _named(marked: Tensor, ids: Sequence[str]) -> str:
    first = int(marked.nonzero()[0])
    return repr(ids[first]) if ids else f"index {first}"


def text_to_text_ranks(
    text: Float[Tensor, "q d"], query_to_video: Int[Tensor, " q"], ties: Ties = "worst", chunk: int = 256
) -> Real[Tensor, " n"]:
    """Rank of each caption's nearest sibling among all other captions, by cosine (text-to-text recall, DreamPRVR).

    Args:
        text: `(q, d)` pooled query embeddings of a split.
        query_to_video: `(q,)` the video each caption was written for; siblings share it.
        ties: the rank among captions of other videos with the same similarity.
        chunk: number of captions that are compared at a time.

    Raises:
        ValueError: an embedding is not finite.

    Returns:
        `(n,)` ranks of the n captions that have a sibling; the other q - n are misses.

    Examples:
        >>> text = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> text_to_text_ranks(text, torch.tensor([4, 4, 7])).tolist()
        [1, 1]
    """
    if not bool(text.isfinite().all()):
        raise InputError(
            f"text embedding {int((~text.isfinite()).any(1).nonzero()[0])} is not finite: check its features"
        )
    unit, ranks = F.normalize(text, dim=-1), []
    for start in range(0, len(text), chunk):
        rows = torch.arange(start, min(start + chunk, len(text)), device=text.device)
        itself = rows[:, None] == torch.arange(len(text), device=text.device)
        siblings = (query_to_video[rows, None] == query_to_video) & ~itself
        with_sibling = siblings.any(1)
        scores = (unit[rows] @ unit.T).masked_fill(itself, -torch.inf)
        ranks.append(count_ranks(scores[with_sibling], siblings[with_sibling]).ranks(ties))
    return torch.cat(ranks)


def recall_at_k(ranks: Real[Tensor, " q"], k: int) -> float:
    """Share of queries whose rank is at most k, in percent.

    Examples:
        >>> recall_at_k(torch.tensor([1, 3, 7, 2]), 3)
        75.0
    """
    if len(ranks) == 0:
        raise InputError("no ranks: expected at least one query")
    return 100 * int((ranks <= k).sum()) / len(ranks)


def chance_recall(num_videos: int, relevant: Int[Tensor, " q"], k: int) -> float:
    """Expected R@k in percent if every order of the gallery is equally likely.

    `100 mean_q (1 - C(V - r_q, k) / C(V, k))`, with r_q relevant videos of V.

    Args:
        num_videos: size V of the gallery.
        relevant: `(q,)` number of relevant videos of each query, from 1 to V.
        k: the cut-off.

    Examples:
        >>> round(chance_recall(500, torch.ones(3, dtype=torch.int64), 5), 6)
        1.0
    """
    count = relevant.cpu().double()[:, None]
    drawn = torch.arange(min(k, num_videos), dtype=torch.float64)
    missed = ((num_videos - count - drawn) / (num_videos - drawn)).clamp(min=0).prod(1)
    return float(100 * (1 - missed).mean())


@dataclass(frozen=True)
class RetrievalMetrics:
    """Recalls in percent, their sum, median and mean rank, the number of queries and the share of them that is tied.

    Args:
        r1, r5, r10, r100: recall at 1, 5, 10 and 100, in percent.
        sumr: the sum of the four; 400 is perfect.
        mdr: the median of the ranks, of an even number the mean of the middle two.
        mnr: the mean of the ranks.
        queries: their number.
        tied: share of queries in [0, 1] whose rank depends on how ties count.
    """

    r1: float
    r5: float
    r10: float
    r100: float
    sumr: float
    mdr: float
    mnr: float
    queries: int
    tied: float = 0.0

    @property
    def rsum(self) -> float:
        """Rsum = R@1 + R@5 + R@10, the sum in papers on text-to-video retrieval; 300 is perfect.

        Examples:
            >>> RetrievalMetrics.from_ranks(torch.tensor([1, 3, 7, 200])).rsum
            150.0
        """
        return self.r1 + self.r5 + self.r10

    @classmethod
    def from_ranks(cls, ranks: Real[Tensor, " q"], tied: float = 0.0, misses: int = 0) -> "RetrievalMetrics":
        """Metrics of a set of queries.

        Args:
            ranks: `(q,)` 1-based ranks, at least one.
            tied: share of tied queries in [0, 1].
            misses: further queries without a rank, which lower the recalls and do not change MdR and MnR.

        Raises:
            ValueError: no rank.

        Examples:
            >>> RetrievalMetrics.from_ranks(torch.tensor([1, 3, 7, 200])).sumr
            225.0
        """
        share = len(ranks) / max(len(ranks) + misses, 1)
        r1, r5, r10, r100 = (share * recall_at_k(ranks, k) for k in RECALLS)
        numbers = ranks.cpu().double().numpy()
        median, mean = float(np.median(numbers)), float(numbers.mean())
        return cls(r1, r5, r10, r100, r1 + r5 + r10 + r100, median, mean, len(ranks) + misses, tied)
