"""Evaluation: rank every video of a split for every query, report recalls with their uncertainty."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from prvr.config import TrainConfig
from prvr.data.packed import Moments, PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import Progress, device_of, encode_split, evaluation_mode
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
from prvr.stages.pipelines import Pipeline, as_pipeline, rescored
from prvr.text import sentences
from prvr.types import Direction, FirstStage, VideoEmbedding

RATIO_EDGES = (0.0, 0.2, 0.4, 1.0)
"""Edges of the moment-to-video-ratio groups (0, .2], (.2, .4], (.4, 1]."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How a ranking is measured.

    Args:
        ties: how irrelevant videos with the same score count: "worst" (against us), "mean", "best".
        bootstrap: resamples behind the 95 % intervals; 0 = no intervals.
        seed: the seed of the bootstrap, and of whatever the model samples.
        ratio_edges: ascending edges of the moment-to-video-ratio groups.
        caption_sets: also rank, for each video, the sets of queries of all videos (`EvaluationReport.video_to_sets`);
            scores everything once more.
        video_batch: how many videos are encoded and scored at a time; memory and speed only.
        query_batch: how many queries are encoded and scored at a time; memory and speed only.
    """

    ties: Ties = "worst"
    bootstrap: int = 1000
    seed: int = 0
    ratio_edges: Sequence[float] = RATIO_EDGES
    caption_sets: bool = False
    video_batch: int = 64
    query_batch: int = 256

    @classmethod
    def of_run(cls, train: TrainConfig, **changes: Any) -> "EvaluationConfig":
        """The settings that evaluate a run: its seed, its batch sizes, and what `changes` adds to them."""
        return cls(seed=train.seed, video_batch=train.eval_videos, query_batch=train.eval_queries, **changes)


@dataclass(frozen=True)
class _Counts:
    """Ranks as counts: of every query, of every video that has a query, of sets of queries if they were asked for."""

    to_video: RankCounts
    to_text: RankCounts
    to_sets: RankCounts | None


def evaluate(
    system: FirstStage | Pipeline,
    split: PackedSplit,
    config: EvaluationConfig | None = None,
    *,
    encoded: EncodedSplit | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Ranks every video for every query, and every query for every video, and reports all metrics.

    Scores are computed block by block: the matrix of all queries with all videos is never held. With stages a block
    is some rows with the whole gallery.

    Args:
        system: a retriever, or a pipeline; moved to `device`, modes and the random state are as before afterwards.
        split: a packed split.
        config: how the ranking is measured.
        encoded: what `encode_split` gave for this split, on the same device; default: encode it now.
        device: where to compute; default: where the model's parameters are.
        progress: called with ("videos", "queries" or "scores", done, total).

    Raises:
        InputError: a score is NaN (names a query and a video), or an option is out of range.
        DataError: a stage reads what the corpus of the split does not have.
    """
    pipeline, config = as_pipeline(system), config or EvaluationConfig()
    where = device_of(pipeline.first, device)
    if encoded is None:
        encoded = encode_split(
            pipeline,
            split,
            device=where,
            video_batch=config.video_batch,
            query_batch=config.query_batch,
            seed=config.seed,
            progress=progress,
        )
    with evaluation_mode(pipeline, where, config.seed):
        count = _count_stages if pipeline.stages else _count_first
        counts = count(pipeline, split, encoded, config, progress)
        owner = torch.from_numpy(split.query_to_video)
        siblings = text_to_text_ranks(sentences(encoded.text), owner.to(where), config.ties, config.query_batch).cpu()
    misses = len(owner) - len(siblings)
    text_to_text = RetrievalMetrics.from_ranks(siblings, misses=misses) if len(siblings) else None
    return _report(split, counts, text_to_text, config, pipeline.describe())


def ranked_rows(
    pipeline: Pipeline,
    encoded: EncodedSplit,
    direction: Direction,
    size: int = 256,
    *,
    only: Sequence[int] | None = None,
) -> Iterator[tuple[slice, Float[Tensor, "r n"]]]:
    """The score matrix after all stages, some rows at a time.

    Use it within `evaluation_mode`, or in evaluation mode and without gradients.

    Args:
        pipeline: the pipeline that gives the scores.
        encoded: what `encode_split` gave for the pipeline, or for one with further stages.
        direction: whether rows are texts ("t2v") or videos ("v2t").
        size: rows at a time.
        only: numbers of rows, which then come one at a time; default: all.

    Yields:
        which rows, and their scores with the whole gallery.

    Raises:
        InputError: a stage has an encoder of its own and `encoded` was made without it.
    """
    first = ScoreMatrix(pipeline.first, encoded, block=size)
    matrices = []
    count = len(pipeline.stages)
    for stage, own in zip(pipeline.stages, (encoded.stages or (None,) * count)[:count], strict=True):
        if stage.encoder is None:
            matrices.append(first)
        elif own is None:
            raise InputError(f"stage {stage.kind!r} encodes texts and videos itself: encode_split takes the pipeline")
        else:
            matrices.append(ScoreMatrix(stage.encoder, own, block=size))
    prepared = pipeline.prepare(direction, lambda bank: first.with_bank(direction, bank))
    bound = pipeline.bind(direction, matrices, prepared)
    chosen = first.blocks(direction, size) if only is None else (slice(row, row + 1) for row in only)
    for rows in chosen:
        yield rows, rescored(bound, first.rows(direction, rows), rows)


def _count_first(
    pipeline: Pipeline, split: PackedSplit, encoded: EncodedSplit, config: EvaluationConfig, progress: Progress | None
) -> _Counts:
    gallery = _Gallery(pipeline.first, encoded)

    def score(q: Int[Tensor, " r"], v: slice) -> Tensor:
        return pipeline.first.score(encoded.text[q], gallery[v]).total

    told = None if progress is None else lambda done, total: progress("scores", done, total)
    return _count_blocks(score, split, encoded.slices, config, encoded.text.device, told)


def _count_blocks(
    score: Callable[[Int[Tensor, " r"], slice], Tensor],
    split: PackedSplit,
    videos: Sequence[slice],
    config: EvaluationConfig,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> _Counts:
    """Both directions from one pass over blocks of scores, of some queries by their numbers and a slice of videos."""
    owner = torch.from_numpy(split.query_to_video)
    rows, columns = _relevant_pairs(split).T
    # In order of their videos: the blocks that hold relevant pairs then lie along the diagonal.
    order = owner.argsort(stable=True)
    place, numbers = order.argsort(), order.to(device)
    queries = [slice(i, min(i + config.query_batch, len(order))) for i in range(0, len(order), config.query_batch)]

    def block(q: slice, v: slice) -> Tensor:
        return score(numbers[q], v)

    to_video, to_text = stream_counts(
        block,
        torch.stack([place[rows], columns], 1),
        queries,
        videos,
        query_ids=[split.query_ids[i] for i in order.tolist()],
        video_ids=split.video_ids,
        progress=progress,
    )
    sets = stream_set_counts(block, owner[order], queries, videos).cpu() if config.caption_sets else None
    return _Counts(to_video.cpu()[place], to_text.cpu(), sets)


def _count_stages(
    pipeline: Pipeline, split: PackedSplit, encoded: EncodedSplit, config: EvaluationConfig, progress: Progress | None
) -> _Counts:
    """Each direction by itself, some rows with the whole gallery at a time."""
    finite = sentences(encoded.text).isfinite().all(1)
    if not bool(finite.all()):
        query = split.query_ids[int(finite.int().argmin())]
        raise InputError(f"the embedding of query {query!r} is not finite: a query without a valid word? Leave it out")
    matrix, owner = ScoreMatrix(pipeline.first, encoded, split.relevant), torch.from_numpy(split.query_to_video)
    done, total = 0, sum(-(-rows // config.query_batch) for rows in (len(owner), len(split)))
    counts, sets = dict[Direction, RankCounts](), list[RankCounts]()
    directions: tuple[Direction, ...] = ("t2v", "v2t")
    for direction in directions:
        parts = []
        for rows, scores in ranked_rows(pipeline, encoded, direction, config.query_batch):
            parts.append(count_rows(matrix, direction, rows, scores))
            if config.caption_sets and direction == "v2t":
                whole = [slice(0, len(owner))]
                sets.append(stream_set_counts(lambda q, _, of=scores: of.mT[q], owner, whole, [rows]))
            done += 1
            if progress is not None:
                progress("scores", done, total)
        counts[direction] = RankCounts.cat(parts).cpu()
    return _Counts(counts["t2v"], counts["v2t"], RankCounts.cat(sets).cpu() if sets else None)


def count_rows(matrix: ScoreMatrix, direction: Direction, rows: slice, scores: Float[Tensor, "r n"]) -> RankCounts:
    """Counts of the rows that have a relevant column; a video without queries has none and is left out.

    Args:
        matrix: knows which columns are relevant.
        direction: whether rows are texts ("t2v") or videos ("v2t").
        rows: which rows.
        scores: `(r, n)` scores of these rows.
    """
    right = matrix.positives(direction, rows)
    kept = right.any(1)
    return count_ranks(scores[kept], right[kept])


def report_from_scores(
    scores: Float[Tensor, "q v"], split: PackedSplit, config: EvaluationConfig | None = None
) -> EvaluationReport:
    """The report that `evaluate` gives for these scores, without text-to-text: for baselines that are no model.

    Args:
        scores: `(q, v)` similarity of every query with every video, in the split's order; higher is better.
        split: a packed split.
        config: how the ranking is measured.

    Raises:
        InputError: another shape than queries x videos, a score is NaN (names a query and a video), or an option is out
            of range.

    Examples:
        >>> from prvr.data import pack, write_corpus
        >>> split = pack(write_corpus("data", "tiny"), "test", cache_dir="data/cache")  # doctest: +SKIP
        >>> oracle = report_from_scores(torch.from_numpy(split.relevant_matrix).float(), split)  # doctest: +SKIP
        >>> oracle.text_to_video.sumr  # doctest: +SKIP
        400.0
    """
    config = config or EvaluationConfig()
    expected = (len(split.query_ids), len(split.video_ids))
    if tuple(scores.shape) != expected:
        raise InputError(f"scores {tuple(scores.shape)}: expected (queries, videos) of {split.name}, {expected}")
    counts = _count_blocks(lambda q, v: scores[q, v], split, [slice(0, len(split))], config, scores.device)
    return _report(split, counts, None, config, ())


def moment_ratios(moments: Moments) -> Float[Tensor, " q"]:
    """The share (end - start) / duration of its video that each moment takes; NaN where it is not known.

    A moment annotated past the end of its video counts as 1.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return torch.from_numpy(np.minimum((moments.end - moments.start) / moments.duration, 1.0))


def moment_groups(
    counts: RankCounts, moments: Moments, ties: Ties = "worst", edges: Sequence[float] = RATIO_EDGES
) -> tuple[GroupMetrics, ...]:
    """Metrics by moment-to-video ratio, as MS-SL groups them; bins are (low, high].

    Queries without a known moment, or with one of no length, are in no group; groups without queries are left out.

    Args:
        counts: text-to-video counts of all queries.
        moments: start, end and duration of each query in seconds, NaN where unknown.
        ties: how ties count.
        edges: ascending.

    Raises:
        ValueError: fewer than two edges, or edges that do not ascend.
    """
    if len(edges) < 2 or any(low >= high for low, high in pairwise(edges)):
        raise InputError(f"ratio_edges={tuple(edges)}: expected at least two ascending numbers, e.g. {RATIO_EDGES}")
    groups, ratio = [], moment_ratios(moments)
    for low, high in pairwise(edges):
        inside = (ratio > low) & (ratio <= high)
        if bool(inside.any()):
            groups.append(GroupMetrics(low, high, counts[inside].metrics(ties)))
    return tuple(groups)


def tag_metrics(counts: RankCounts, tags: Sequence[frozenset[str]], ties: Ties = "worst") -> tuple[TagMetrics, ...]:
    """Metrics by tag, sorted by tag; a query counts under each of its tags, one without tags under none.

    Args:
        counts: text-to-video counts of all queries.
        tags: the tags of each query.
        ties: how ties count.
    """
    rows: dict[str, list[int]] = {}
    for query, some in enumerate(tags):
        for tag in some:
            rows.setdefault(tag, []).append(query)
    return tuple(TagMetrics(tag, counts[torch.tensor(some)].metrics(ties)) for tag, some in sorted(rows.items()))


def _relevant_pairs(split: PackedSplit) -> Int[Tensor, "n 2"]:
    """(query, video) of all relevant pairs, in order of the queries."""
    return torch.tensor([(query, video) for query, videos in enumerate(split.relevant) for video in sorted(videos)])


def _report(
    split: PackedSplit,
    counts: _Counts,
    text_to_text: RetrievalMetrics | None,
    config: EvaluationConfig,
    stages: tuple[str, ...],
) -> EvaluationReport:
    """All that follows from the counts of every query and of every video that has one, in the split's order."""
    ties, ranks = config.ties, counts.to_video.ranks(config.ties)
    sizes = torch.tensor([len(videos) for videos in split.relevant])
    intervals = {}
    if config.bootstrap:
        intervals = bootstrap_intervals(ranks.numpy(), split.query_to_video, samples=config.bootstrap, seed=config.seed)
    return EvaluationReport(
        split=split.name,
        ties=ties,
        seed=config.seed,
        chance=sum(chance_recall(len(split.video_ids), sizes, k) for k in RECALLS),
        text_to_video=counts.to_video.metrics(ties),
        video_to_text=counts.to_text.metrics(ties),
        text_to_text=text_to_text,
        intervals=intervals,
        groups=moment_groups(counts.to_video, split.moments, ties, config.ratio_edges),
        tags=tag_metrics(counts.to_video, split.tags, ties),
        query_ids=split.query_ids,
        video_ids=split.video_ids,
        query_to_video=split.query_to_video,
        ranks=ranks.numpy(),
        video_ranks=counts.to_text.ranks(ties).numpy(),
        video_to_sets=None if counts.to_sets is None else counts.to_sets.metrics(ties),
        stages=stages,
        labels=split.labels,
    )


class _Gallery:
    """The parts of a gallery, the one in use made ready for scoring.

    Blocks come with all queries of one part after the other: rows are normalised once per part and not once per block,
    and no more than one part is held twice.
    """

    def __init__(self, retriever: FirstStage, encoded: EncodedSplit) -> None:
        self.ready = retriever.for_scoring
        self.parts = dict(zip((videos.start for videos in encoded.slices), encoded.videos, strict=True))
        self.held: tuple[int, VideoEmbedding] | None = None

    def __getitem__(self, videos: slice) -> VideoEmbedding:
        if self.held is None or self.held[0] != videos.start:
            self.held = (videos.start, self.ready(self.parts[videos.start]))
        return self.held[1]
