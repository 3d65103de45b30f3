"""Evaluation: rank every video of a split for every query, report recalls with their uncertainty."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from prvr.config import TrainConfig
from prvr.data.packed import Moments, PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import device_of, encode_split, evaluation_mode
from prvr.evaluation.lists import RankedLists, ranked_rows
from prvr.evaluation.metrics import (
    RECALLS,
    RankCounts,
    RetrievalMetrics,
    Ties,
    chance_recall,
    count_ranks,
    text_to_text_ranks,
)
from prvr.evaluation.report import EvaluationReport, GroupMetrics, TagMetrics
from prvr.evaluation.significance import bootstrap_intervals
from prvr.evaluation.streaming import stream_counts, stream_set_counts
from prvr.stages.matrix import EncodedSplit, ScoreMatrix
from prvr.stages.pipelines import Pipeline, as_pipeline
from prvr.types import Direction, FirstStage, query_vectors

RATIO_EDGES = (0.0, 0.2, 0.4, 1.0)
"""Edges of the moment-to-video-ratio groups (0, .2], (.2, .4], (.4, 1]."""


@dataclass(frozen=True)
class EvaluationConfig:
    """The settings of an evaluation.

    Args:
        ties: the rank among irrelevant videos with the same score: "worst", "mean" or "best".
        bootstrap: number of resamples for the 95 % intervals; 0 for no intervals.
        seed: the seed of the bootstrap, and of samples that the model draws.
        caption_sets: also rank, for each video, the sets of queries of all videos (`EvaluationReport.video_to_sets`);
            computes all scores a second time.
        lists: also report what takes the whole list of each query: mAP and nDCG if a query has several right videos,
            moment retrieval if moments are known; without stages, computes all scores a second time.
        video_batch: number of videos that are encoded and scored at a time; affects memory and speed only.
        query_batch: number of queries that are encoded and scored at a time; affects memory and speed only.
    """

    ties: Ties = "worst"
    bootstrap: int = 1000
    seed: int = 0
    caption_sets: bool = False
    lists: bool = True
    video_batch: int = 64
    query_batch: int = 256

    @classmethod
    def of_run(cls, train: TrainConfig, **changes: Any) -> "EvaluationConfig":
        """The settings of a run: its seed and its batch sizes, and `changes`."""
        return cls(seed=train.seed, video_batch=train.eval_videos, query_batch=train.eval_queries, **changes)

    def encode(
        self, system: FirstStage | Pipeline, split: PackedSplit, device: torch.device | str | None
    ) -> EncodedSplit:
        """The embeddings of a split, see `prvr.evaluation.encode_split`."""
        sizes: Any = {"video_batch": self.video_batch, "query_batch": self.query_batch}
        return encode_split(system, split, device=device, seed=self.seed, **sizes)


_Counts = tuple[RankCounts, RankCounts, RankCounts | None]
"""Counts of every query, of every video that has a query, and of sets of queries if `caption_sets` is set."""


def evaluate(
    system: FirstStage | Pipeline,
    split: PackedSplit,
    config: EvaluationConfig | None = None,
    *,
    encoded: EncodedSplit | None = None,
    device: torch.device | str | None = None,
) -> EvaluationReport:
    """Ranks every video for every query, and every query for every video, and reports all metrics.

    Scores are computed block by block: the matrix of all queries with all videos is never in memory. With stages a
    block is some rows with the whole gallery.

    Args:
        system: a retriever, or a pipeline; moved to `device`. Modes and the random state are restored.
        split: a packed split.
        config: the settings of the evaluation.
        encoded: the result of `encode_split` for this split, on the same device; None encodes it.
        device: None for the device of the model's parameters.

    Raises:
        InputError: a score is NaN (names a query and a video), or an option is out of range.
        DataError: the corpus of the split lacks the inputs of a stage.
    """
    pipeline, config = as_pipeline(system), config or EvaluationConfig()
    where = device_of(pipeline.first, device)
    encoded = config.encode(pipeline, split, where) if encoded is None else encoded
    with evaluation_mode(pipeline, where, config.seed):
        lists = RankedLists(split, config.ties, config.lists)
        count = _count_stages if pipeline.stages else _count_first
        counts = count(pipeline, split, encoded, config, lists)
        moments, baselines = lists.moment_metrics(pipeline, encoded, bootstrap=config.bootstrap, seed=config.seed)
        owner = torch.from_numpy(split.query_to_video)
        siblings = text_to_text_ranks(
            query_vectors(encoded.text), owner.to(where), config.ties, config.query_batch
        ).cpu()
    misses = len(owner) - len(siblings)
    text_to_text = RetrievalMetrics.from_ranks(siblings, misses=misses) if len(siblings) else None
    report = _report(split, counts, text_to_text, config, pipeline.describe())
    return replace(report, lists=lists.metrics(), moments=moments, baselines=baselines)


def _count_first(
    pipeline: Pipeline, split: PackedSplit, encoded: EncodedSplit, config: EvaluationConfig, lists: RankedLists
) -> _Counts:
    """Both directions from blocks of the first stage's scores.

    The blocks of one part of the gallery follow each other, so that one part at a time is prepared for scoring.
    """
    first = pipeline.first
    parts = dict(zip((videos.start for videos in encoded.slices), encoded.videos, strict=True))
    prepared = lru_cache(1)(lambda start: first.for_scoring(parts[start]))

    def score(queries: Int[Tensor, " r"], videos: slice) -> Tensor:
        return first.score(encoded.text[queries], prepared(videos.start)).total

    for rows, scores in ranked_rows(pipeline, encoded, "t2v", config.query_batch) if lists.needed else ():
        lists.add(rows, scores)
    return _count_blocks(score, split, encoded.slices, config, encoded.text.device)


def _count_blocks(
    score: Callable[[Int[Tensor, " r"], slice], Tensor],
    split: PackedSplit,
    videos: Sequence[slice],
    config: EvaluationConfig,
    device: torch.device,
) -> _Counts:
    """Both directions from one pass over blocks of scores, of queries by their indices and a slice of videos."""
    owner = torch.from_numpy(split.query_to_video)
    pairs = torch.tensor([(query, video) for query, videos in enumerate(split.relevant) for video in sorted(videos)])
    # In the order of their videos: the blocks that hold relevant pairs then lie along the diagonal.
    order = owner.argsort(stable=True)
    place, indices = order.argsort(), order.to(device)
    queries = [slice(i, min(i + config.query_batch, len(order))) for i in range(0, len(order), config.query_batch)]

    def block(q: slice, v: slice) -> Tensor:
        return score(indices[q], v)

    to_video, to_text = stream_counts(
        block,
        torch.stack([place[pairs[:, 0]], pairs[:, 1]], 1),
        queries,
        videos,
        query_ids=[split.query_ids[i] for i in order.tolist()],
        video_ids=split.video_ids,
    )
    sets = stream_set_counts(block, owner[order], queries, videos).to("cpu") if config.caption_sets else None
    return to_video.to("cpu")[place], to_text.to("cpu"), sets


def _count_stages(
    pipeline: Pipeline, split: PackedSplit, encoded: EncodedSplit, config: EvaluationConfig, lists: RankedLists
) -> _Counts:
    """Each direction by itself, some rows with the whole gallery at a time."""
    finite = query_vectors(encoded.text).isfinite().all(1)
    if not bool(finite.all()):
        query = split.query_ids[int(finite.int().argmin())]
        raise InputError(f"the embedding of query {query!r} is not finite: a query without a valid word? Remove it")
    matrix = ScoreMatrix(pipeline.first, encoded, split.relevant)
    owner = torch.from_numpy(split.query_to_video)
    counts: dict[Direction, list[RankCounts]] = {"t2v": [], "v2t": []}
    sets: list[RankCounts] = []
    for direction, parts in counts.items():
        for rows, scores in ranked_rows(pipeline, encoded, direction, config.query_batch):
            parts.append(count_rows(matrix, direction, rows, scores))
            if direction == "t2v" and lists.needed:
                lists.add(rows, scores)
            if config.caption_sets and direction == "v2t":
                whole = [slice(0, len(owner))]
                sets.append(stream_set_counts(lambda q, _, of=scores: of.mT[q], owner, whole, [rows]))
    to_video, to_text = (RankCounts.cat(parts).to("cpu") for parts in counts.values())
    return to_video, to_text, RankCounts.cat(sets).to("cpu") if sets else None


def count_rows(matrix: ScoreMatrix, direction: Direction, rows: slice, scores: Float[Tensor, "r n"]) -> RankCounts:
    """Counts of the rows that have a relevant column; a video without queries has none and is left out.

    Args:
        matrix: a matrix with `relevant`.
        direction: rows are texts ("t2v") or videos ("v2t").
        rows: the rows of `scores`.
        scores: `(r, n)`.
    """
    positives = matrix.positives(direction, rows)
    counted = positives.any(1)
    return count_ranks(scores[counted], positives[counted])


def report_from_scores(
    scores: Float[Tensor, "q v"], split: PackedSplit, config: EvaluationConfig | None = None
) -> EvaluationReport:
    """The report of a score matrix, without text-to-text: for baselines without a model.

    Args:
        scores: `(q, v)` similarity of every query with every video, in the split's order; higher is better.
        split: a packed split.
        config: the settings of the evaluation.

    Raises:
        InputError: another shape than queries x videos, a score is NaN (names a query and a video), or an option is out
            of range.

    Examples:
        >>> from prvr.data import open_corpus, pack
        >>> split = pack(open_corpus("data", "toy-tiny"), "test", cache_dir="data/cache")  # doctest: +SKIP
        >>> oracle = report_from_scores(torch.from_numpy(split.relevant_matrix).float(), split)  # doctest: +SKIP
        >>> oracle.text_to_video.sumr  # doctest: +SKIP
        400.0
    """
    config = config or EvaluationConfig()
    expected = (len(split.query_ids), len(split.video_ids))
    if tuple(scores.shape) != expected:
        raise InputError(f"scores {tuple(scores.shape)}: expected (queries, videos) of {split.name}, {expected}")
    counts = _count_blocks(lambda q, v: scores[q, v], split, [slice(0, len(split))], config, scores.device)
    lists = RankedLists(split, config.ties, config.lists)
    if lists.needed:
        lists.add(slice(0, len(scores)), scores)
    return replace(_report(split, counts, None, config, ()), lists=lists.metrics())


def moment_groups(counts: RankCounts, moments: Moments, ties: Ties = "worst") -> tuple[GroupMetrics, ...]:
    """Metrics by moment-to-video ratio, in the groups of MS-SL; bins are (low, high].

    Queries without a known moment, or with an empty one, are in no group; groups without queries are omitted.

    Args:
        counts: text-to-video counts of all queries.
        moments: start, end and duration of each query in seconds, NaN where unknown.
        ties: the rank of equal scores.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # longer than its video: 1
        ratio = torch.from_numpy(np.minimum((moments.end - moments.start) / moments.duration, 1.0))
    groups = []
    for low, high in pairwise(RATIO_EDGES):
        inside = (ratio > low) & (ratio <= high)
        if bool(inside.any()):
            groups.append(GroupMetrics(low, high, counts[inside].metrics(ties)))
    return tuple(groups)


def tag_metrics(counts: RankCounts, tags: Sequence[frozenset[str]], ties: Ties = "worst") -> tuple[TagMetrics, ...]:
    """Metrics by tag, sorted by tag; a query counts under each of its tags.

    Args:
        counts: text-to-video counts of all queries.
        tags: the tags of each query.
        ties: the rank of equal scores.
    """
    rows: dict[str, list[int]] = {}
    for query, names in enumerate(tags):
        for tag in names:
            rows.setdefault(tag, []).append(query)
    return tuple(TagMetrics(tag, counts[torch.tensor(queries)].metrics(ties)) for tag, queries in sorted(rows.items()))


def _report(
    split: PackedSplit,
    counts: _Counts,
    text_to_text: RetrievalMetrics | None,
    config: EvaluationConfig,
    stages: tuple[str, ...],
) -> EvaluationReport:
    """The report of counts in the order of the split."""
    (to_video, to_text, to_sets), ties = counts, config.ties
    ranks = to_video.ranks(ties)
    sizes = torch.tensor([len(videos) for videos in split.relevant])
    intervals = {}
    if config.bootstrap:
        intervals = bootstrap_intervals(ranks.numpy(), split.query_to_video, samples=config.bootstrap, seed=config.seed)
    return EvaluationReport(
        split=split.name,
        ties=ties,
        seed=config.seed,
        chance=sum(chance_recall(len(split.video_ids), sizes, k) for k in RECALLS),
        text_to_video=to_video.metrics(ties),
        video_to_text=to_text.metrics(ties),
        text_to_text=text_to_text,
        intervals=intervals,
        groups=moment_groups(to_video, split.moments, ties),
        tags=tag_metrics(to_video, split.tags, ties),
        query_ids=split.query_ids,
        video_ids=split.video_ids,
        query_to_video=split.query_to_video,
        ranks=ranks.numpy(),
        video_ranks=to_text.ranks(ties).numpy(),
        video_to_sets=None if to_sets is None else to_sets.metrics(ties),
        stages=stages,
        labels=split.labels,
        left_out=split.files.about.get("left_out", 0),
    )
