"""NDCG@20 of moments, of many videos and each with how well it fits a query: TVR-Ranking (arXiv 2407.06597).

    python examples/graded_moments.py RUN test.json    # without arguments: of one query with two graded moments

RUN reads a corpus whose captions have the `query_id` of TVR-Ranking as their id (column `id` of `prvr convert
features`) and whose videos are named as in `test.json` or `val.json`. A system is asked for the best moment of each of
its 20 best videos. ReLoCLNet, trained on 40 moments a query, has 0.444, 0.406 and 0.288 on the test queries, where
moments overlap by more than 0.3, 0.5 and 0.7 (table of the authors' README; its gallery is all videos of TVR). Their
repository is under the MIT licence.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import fmean

from prvr.corpora.annotations import read_json
from prvr.data import PackedSplit
from prvr.errors import DataError
from prvr.evaluation import find_moments
from prvr.reading import parse_record
from prvr.stages import Pipeline
from prvr.systems import open_system
from prvr.types import FirstStage

IOUS = (0.3, 0.5, 0.7)


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
    query_id: int
    relevant_moment: tuple[GradedMoment, ...]


def read_labels(path: Path) -> dict[str, tuple[GradedMoment, ...]]:
    """The moments of each query, by its id, from a file of TVR-Ranking: an array of queries."""
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
    return sum(gain / log2(place) for place, gain in enumerate(gains, 2))


def mean_ndcg(
    system: FirstStage | Pipeline, split: PackedSplit, labels: Mapping[str, Sequence[GradedMoment]], k: int = 20
) -> dict[float, float]:
    """The mean over the queries that have labels, by the overlap that counts."""
    names = split.query_names
    queries = [query for query, name in enumerate(names) if name in labels]
    if not queries:
        raise DataError(f"{split.name}: none of its {len(names)} queries has an id of these labels.")
    lists = [
        [(hit.video_id, hit.start, hit.end) for hit in each.hits if hit.start is not None and hit.end is not None]
        for each in find_moments(system, split, queries, k)
    ]
    graded = [labels[names[query]] for query in queries]
    return {iou: fmean(ndcg(*pair, iou, k) for pair in zip(lists, graded, strict=True)) for iou in IOUS}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?")
    parser.add_argument("labels", type=Path, nargs="?")
    parser.add_argument("--split", default="test")
    args = parser.parse_args()
    if args.run is None or args.labels is None:
        graded = GradedMoment("a", (10.0, 20.0), 4.0), GradedMoment("b", (0.0, 10.0), 2.0)
        found = [("b", 0.0, 10.0), ("c", 3.0, 9.0), ("a", 13.0, 23.0)]
        for iou in IOUS:
            print(f"NDCG@20, IoU > {iou}: {ndcg(found, graded, iou):.4f}")
        parser.exit()
    opened = open_system(args.run)
    with closing(opened.open_split(args.split)) as packed:
        for iou, value in mean_ndcg(opened.pipeline, packed, read_labels(args.labels)).items():
            print(f"NDCG@20, IoU > {iou}: {value:.4f}")
