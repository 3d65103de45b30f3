"""nDCG@20 of moments, of many videos and each with how well it fits a query: TVR-Ranking (arXiv 2407.06597).

A corpus has the `query_id` of TVR-Ranking as the own id of its captions (column `id` of `prvr convert features`), and
its videos are named as in `test.json` or `val.json`, whose repository is under the MIT licence. A system is asked for
the best moment of each of its 20 best videos.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2
from pathlib import Path
from statistics import fmean

from prvr.corpora.annotations import read_json
from prvr.data.packed import PackedSplit
from prvr.errors import DataError
from prvr.evaluation.lists import IOUS
from prvr.evaluation.moments import find_moments
from prvr.reading import parse_record
from prvr.stages import EncodedSplit, Pipeline
from prvr.types import FirstStage


@dataclass(frozen=True)
class GradedMoment:
    """A moment in seconds, and how well it fits: 0 to 4, a mean over annotators."""

    video_name: str
    timestamp: tuple[float, float]
    relevance: float

    @property
    def gain(self) -> float:
        return 2**self.relevance - 1

    def overlap(self, start: float, end: float) -> float:
        """Intersection over union with another moment of its video, in [0, 1]."""
        first, last = self.timestamp
        shared = max(0.0, min(end, last) - max(start, first))
        union = end - start + last - first - shared
        return shared / union if union > 0 else 0.0


@dataclass(frozen=True)
class Query:
    """A query of TVR-Ranking and its moments."""

    query_id: int
    relevant_moment: tuple[GradedMoment, ...]


def read_labels(path: Path) -> dict[str, tuple[GradedMoment, ...]]:
    """The moments of each query, by its id, from a file of TVR-Ranking: an array of queries.

    Raises:
        DataError: the file is missing or has another form; names the query.
    """
    rows = [parse_record(Query, row, f"{path}, query {n}") for n, row in enumerate(read_json(path, list), 1)]
    return {str(row.query_id): row.relevant_moment for row in rows}


def ndcg(found: Sequence[tuple[str, float, float]], graded: Sequence[GradedMoment], iou: float, k: int = 20) -> float:
    """nDCG@k of moments (video, start, end), the best first, with gain 2^relevance - 1; in [0, 1].

    Each takes the moment of its video that it overlaps most, if by more than `iou`; others cannot take that one again.
    """
    left, gains = list(graded), list[float]()
    for video, start, end in found[:k]:
        same = [moment for moment in left if moment.video_name == video]
        best = max(same, key=lambda moment: moment.overlap(start, end), default=None)
        gains.append(0.0)
        if best is not None and best.overlap(start, end) > iou:
            gains[-1] = best.gain
            left.remove(best)
    ideal = discounted(sorted((moment.gain for moment in graded), reverse=True)[:k])
    return discounted(gains) / ideal if ideal else 0.0


def discounted(gains: Iterable[float]) -> float:
    """The discounted cumulative gain of gains in their order."""
    return sum(gain / log2(place) for place, gain in enumerate(gains, 2))


def mean_ndcg(
    labels: Mapping[str, Sequence[GradedMoment]],
    system: FirstStage | Pipeline,
    split: PackedSplit,
    encoded: EncodedSplit | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """The mean nDCG@20 over the queries that have labels, by the overlap that counts; empty without moments.

    Args:
        labels: the moments of each query by its id, `PackedSplit.query_names`.
        system: ranks videos and gives moments.
        split: a packed split.
        encoded: the result of `encode_split` for this split; None encodes it.
        seed: the seed of samples that the model draws.

    Raises:
        DataError: no query of the split has labels.
    """
    names = split.query_names
    queries = [query for query, name in enumerate(names) if name in labels]
    if not queries:
        raise DataError(f"{split.name}: none of its {len(names)} queries has an id of these labels.")
    lists = [
        [(hit.video_id, hit.start, hit.end) for hit in each.hits if hit.start is not None and hit.end is not None]
        for each in find_moments(system, split, queries, 20, encoded=encoded, seed=seed)
    ]
    if not any(lists):
        return {}
    graded = [labels[names[query]] for query in queries]
    return {str(iou): fmean(ndcg(*pair, iou) for pair in zip(lists, graded, strict=True)) for iou in IOUS}


def read_graded(path: Path) -> Callable[..., dict[str, float]]:
    """`mean_ndcg` with the labels of a file."""
    return partial(mean_ndcg, read_labels(path))
