"""Ranks from blocks of scores: the matrix of all queries with all videos is never in memory."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from prvr.evaluation.metrics import RankCounts, count_ranks, reject_nan, require_relevant


def stream_counts(
    score: Callable[[slice, slice], Tensor],
    pairs: Int[Tensor, "n 2"],
    queries: Sequence[slice],
    videos: Sequence[slice],
    *,
    query_ids: Sequence[str] = (),
    video_ids: Sequence[str] = (),
) -> tuple[RankCounts, RankCounts]:
    """Ranks in both directions from blocks of a score matrix.

    A first pass over the blocks with relevant pairs finds the best relevant score of every query and every video. A
    second pass compares every block with both. If queries are ordered by their video, the first pass needs little more
    than the diagonal. Memory is that of one block and of the pairs.

    Args:
        score: computes the block `(rows, columns)` of the score matrix.
        pairs: (query, video) indices of all relevant pairs; every query at least once, no pair twice.
        queries: consecutive slices that cover the rows.
        videos: consecutive slices that cover the columns.
        query_ids: names of the rows, for messages.
        video_ids: names of the columns, for messages.

    Returns:
        Counts of each query against the videos, and of each video that has a query, in order of its index, against the
        queries (the videos are `pairs[:, 1].unique()`).

    Raises:
        ValueError: a score is NaN, or a query has no relevant video.

    Examples:
        >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> both = stream_counts(lambda rows, columns: scores[rows, columns], torch.tensor([[0, 0], [1, 0], [2, 1]]),
        ...     [slice(0, 2), slice(2, 3)], [slice(0, 1), slice(1, 2)])
        >>> [counts.ranks().tolist() for counts in both]
        [[1, 1, 1], [1, 1]]
    """
    pairs = pairs.cpu()
    rows, columns = pairs.T.contiguous()
    num_queries, num_videos = queries[-1].stop, videos[-1].stop
    require_relevant(torch.bincount(rows, minlength=num_queries) == 0, query_ids)

    starts = [torch.tensor([part.start for part in parts]) for parts in (queries, videos)]
    block_of = torch.bucketize(rows, starts[0], right=True) - 1, torch.bucketize(columns, starts[1], right=True) - 1
    number = block_of[0] * len(videos) + block_of[1]
    order = number.argsort(stable=True)
    rows, columns = rows[order], columns[order]
    numbers, sizes = torch.unique_consecutive(number[order], return_counts=True)
    parts, offset = [], 0
    for block, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
        q, v = queries[block // len(videos)], videos[block % len(videos)]
        scores = score(q, v)
        here = slice(offset, offset + size)
        parts.append(scores[(rows[here] - q.start).to(scores.device), (columns[here] - v.start).to(scores.device)])
        offset += size
    own = torch.cat(parts)
    rows, columns = rows.to(own.device), columns.to(own.device)

    lists = [_Counter(own, rows, num_queries), _Counter(own, columns, num_videos)]
    for v in videos:
        for q in queries:
            scores = score(q, v)
            lists[0].add(scores, q)
            lists[1].add(scores.T, v)
    reject_nan(lists[0].nan, lists[1].nan, query_ids, video_ids)
    return lists[0].counts(), lists[1].counts()[columns.unique()]


def stream_set_counts(
    score: Callable[[slice, slice], Tensor],
    owner: Int[Tensor, " q"],
    queries: Sequence[slice],
    videos: Sequence[slice],
) -> RankCounts:
    """Rank of each video's own set of queries among the sets of all videos, from blocks of a score matrix.

    The set of a video holds its own queries and scores as its best query: video to text for videos with several
    captions, as in CLIP4Clip and its successors. Memory is one score for each set and each video of a block.

    Args:
        score: computes the block `(rows, columns)` of the score matrix.
        owner: `(q,)` the video that each query was written for.
        queries: consecutive slices that cover the rows.
        videos: consecutive slices that cover the columns.

    Returns:
        Counts of each video that has a query, in order of its index.

    Raises:
        ValueError: a score is NaN.

    Examples:
        >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7], [0.3, 0.6], [0.2, 0.5]])
        >>> counts = stream_set_counts(lambda q, v: scores[q, v], torch.tensor([0, 0, 1, 1]), [slice(0, 4)],
        ...     [slice(0, 2)])
        >>> counts.ranks().tolist()  # two queries of video 0, but only one set, rank above video 1
        [1, 2]
    """
    present, group = owner.unique(return_inverse=True)
    counts = []
    for v in videos:
        best = None
        for q in queries:
            scores = score(q, v)
            if best is None:
                best = scores.new_full((len(present), scores.shape[1]), -torch.inf)
            index = group[q].to(scores.device)[:, None].expand_as(scores)
            best = best.scatter_reduce(0, index, scores, "amax")  # a maximum keeps NaN
        if best is None:
            continue
        inside = present[(present >= v.start) & (present < v.stop)] - v.start
        own = torch.searchsorted(present, inside + v.start)
        here = best.T[inside.to(best.device)]
        positives = torch.zeros(here.shape, dtype=torch.bool, device=here.device)
        positives[torch.arange(len(own), device=here.device), own.to(here.device)] = True
        counts.append(count_ranks(here, positives))
    return RankCounts.cat(counts)


class _Counter:
    """Counts, for each row, the scores above and equal to its best relevant score."""

    def __init__(self, own: Tensor, rows: Tensor, size: int) -> None:
        self.best = own.new_full((size,), -torch.inf).scatter_reduce(0, rows, own, "amax")
        # Relevant items equal to the best are part of `level`, and are subtracted.
        self.own = torch.zeros(size, dtype=torch.int64, device=own.device).index_add(
            0, rows, (own == self.best[rows]).long()
        )
        self.above, self.level = torch.zeros_like(self.own), torch.zeros_like(self.own)
        self.nan = torch.zeros(size, dtype=torch.bool, device=own.device)

    def add(self, scores: Tensor, rows: slice) -> None:
        best = self.best[rows, None]
        self.above[rows] += (scores > best).sum(1)
        self.level[rows] += (scores == best).sum(1)
        self.nan[rows] |= scores.amax(1).isnan()

    def counts(self) -> RankCounts:
        return RankCounts(self.above, self.level - self.own)
