"""Evaluation: rank every video of a split for every query, report recalls with their uncertainty."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from prvr.data.packed import Moments, PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import EncodedSplit, Progress, TextVideoModel, device_of, encode_split, evaluation_mode
from prvr.evaluation.metrics import RECALLS, RankCounts, RetrievalMetrics, Ties, chance_recall, text_to_text_ranks
from prvr.evaluation.report import EvaluationReport, GroupMetrics, TagMetrics
from prvr.evaluation.significance import bootstrap_intervals
from prvr.evaluation.streaming import stream_counts, stream_set_counts
from prvr.text import sentences
from prvr.types import VideoEmbedding

__all__ = [
    "RATIO_EDGES",
    "EvaluationReport",
    "GroupMetrics",
    "TagMetrics",
    "evaluate",
    "moment_groups",
    "report_from_counts",
    "report_from_scores",
    "tag_metrics",
]

RATIO_EDGES = (0.0, 0.2, 0.4, 1.0)
"""Edges of the moment-to-video-ratio groups (0, .2], (.2, .4], (.4, 1]."""


def evaluate(
    retriever: TextVideoModel,
    split: PackedSplit,
    *,
    encoded: EncodedSplit | None = None,
    device: torch.device | str | None = None,
    video_batch: int = 64,
    query_batch: int = 256,
    ties: Ties = "worst",
    bootstrap: int = 1000,
    seed: int = 0,
    ratio_edges: Sequence[float] = RATIO_EDGES,
    caption_sets: bool = False,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Ranks every video for every query, and every query for every video, and reports all metrics.

    Scores come from `retriever.score` alone, block by block: the matrix of all queries with all videos is never held.

    Args:
        retriever: the model; moved to `device`, its training mode and the random state are as before afterwards.
        split: a packed split.
        encoded: what `encode_split` gave for this split, on the same device; default: encode it now.
        device: where to compute; default: where the model's parameters are.
        video_batch: how many videos are encoded and scored at a time; memory and speed only.
        query_batch: how many queries are encoded and scored at a time; memory and speed only.
        ties: how irrelevant videos with the same score count: "worst" (against us), "mean", "best".
        bootstrap: resamples behind the 95 % intervals; 0 = no intervals.
        seed: of the bootstrap, and of whatever the model samples.
        ratio_edges: ascending edges of the moment-to-video-ratio groups.
        caption_sets: also rank, for each video, the sets of queries of all videos (`EvaluationReport.video_to_sets`);
            scores everything once more.
        progress: called with ("videos", "queries" or "scores", done, total).

    Raises:
        ValueError: a score is NaN (names a query and a video), or an option is out of range.
    """
    where = device_of(retriever, device)
    if encoded is None:
        encoded = encode_split(
            retriever,
            split,
            device=where,
            video_batch=video_batch,
            query_batch=query_batch,
            seed=seed,
            progress=progress,
        )
    owner = torch.from_numpy(split.query_to_video)
    rows, columns = _relevant_pairs(split).T
    # In order of their videos: the blocks that hold relevant pairs then lie along the diagonal.
    order = owner.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    with evaluation_mode(retriever, where, seed):
        text = encoded.text[order.to(where)]
        gallery = _Gallery(retriever, encoded)
        to_video, to_text = stream_counts(
            lambda q, v: retriever.score(text[q], gallery[v]).total,
            torch.stack([place[rows], columns], 1),
            [slice(i, min(i + query_batch, len(text))) for i in range(0, len(text), query_batch)],
            encoded.slices,
            query_ids=[split.query_ids[i] for i in order.tolist()],
            video_ids=split.video_ids,
            progress=None if progress is None else lambda done, total: progress("scores", done, total),
        )
        to_sets = None
        if caption_sets:
            to_sets = stream_set_counts(
                lambda q, v: retriever.score(text[q], gallery[v]).total,
                owner[order],
                [slice(i, min(i + query_batch, len(text))) for i in range(0, len(text), query_batch)],
                encoded.slices,
            ).cpu()
        siblings = text_to_text_ranks(sentences(encoded.text), owner.to(where), ties, query_batch).cpu()
    misses = len(owner) - len(siblings)
    return report_from_counts(
        split,
        to_video.cpu()[place],
        to_text.cpu(),
        RetrievalMetrics.from_ranks(siblings, misses=misses) if len(siblings) else None,
        to_sets,
        ties=ties,
        bootstrap=bootstrap,
        seed=seed,
        ratio_edges=ratio_edges,
    )


def report_from_scores(
    scores: Float[Tensor, "q v"],
    split: PackedSplit,
    *,
    ties: Ties = "worst",
    bootstrap: int = 1000,
    seed: int = 0,
    ratio_edges: Sequence[float] = RATIO_EDGES,
    caption_sets: bool = False,
) -> EvaluationReport:
    """The report that `evaluate` gives for these scores, without text-to-text: for baselines that are no model.

    Args:
        scores: `(q, v)` similarity of every query with every video, in the split's order; higher is better.
        split: a packed split.
        ties: how irrelevant videos with the same score count: "worst" (against us), "mean", "best".
        bootstrap: resamples behind the 95 % intervals; 0 = no intervals.
        seed: of the bootstrap.
        ratio_edges: ascending edges of the moment-to-video-ratio groups.
        caption_sets: also rank, for each video, the sets of queries of all videos.

    Raises:
        ValueError: another shape than queries x videos, a score is NaN (names a query and a video), or an option is out
            of range.

    Example:
        >>> from prvr.data import pack, write_corpus
        >>> split = pack(write_corpus("data", "tiny"), "test", cache_dir="data/cache")  # doctest: +SKIP
        >>> oracle = report_from_scores(torch.from_numpy(split.relevant_matrix).float(), split)  # doctest: +SKIP
        >>> oracle.text_to_video.sumr  # doctest: +SKIP
        400.0
    """
    expected = (len(split.query_ids), len(split.video_ids))
    if tuple(scores.shape) != expected:
        raise InputError(f"scores {tuple(scores.shape)}: expected (queries, videos) of {split.name}, {expected}")
    to_video, to_text = stream_counts(
        lambda q, v: scores[q, v],
        _relevant_pairs(split),
        [slice(0, expected[0])],
        [slice(0, expected[1])],
        query_ids=split.query_ids,
        video_ids=split.video_ids,
    )
    to_sets = None
    if caption_sets:
        owner = torch.from_numpy(split.query_to_video)
        whole = [slice(0, size) for size in expected]
        to_sets = stream_set_counts(lambda q, v: scores[q, v], owner, whole[:1], whole[1:]).cpu()
    return report_from_counts(
        split,
        to_video.cpu(),
        to_text.cpu(),
        None,
        to_sets,
        ties=ties,
        bootstrap=bootstrap,
        seed=seed,
        ratio_edges=ratio_edges,
    )


def moment_groups(
    counts: RankCounts, moments: Moments, ties: Ties = "worst", edges: Sequence[float] = RATIO_EDGES
) -> tuple[GroupMetrics, ...]:
    """Metrics by moment-to-video ratio (end - start) / duration, as MS-SL groups them; bins are (low, high].

    A ratio above 1 (a moment annotated past the end of its video) counts as 1. Queries without a known moment, or with
    one of no length, are in no group; groups without queries are left out.

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
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = torch.from_numpy(np.minimum((moments.end - moments.start) / moments.duration, 1.0))
    groups = []
    for low, high in pairwise(edges):
        inside = (ratio > low) & (ratio <= high)
        if bool(inside.any()):
            group = counts[inside]
            groups.append(GroupMetrics(low, high, RetrievalMetrics.from_ranks(group.ranks(ties), group.tied_share)))
    return tuple(groups)


def tag_metrics(counts: RankCounts, tags: Sequence[frozenset[str]], ties: Ties = "worst") -> tuple[TagMetrics, ...]:
    """Metrics by tag, sorted by tag; a query counts under each of its tags, one without tags under none.

    Args:
        counts: text-to-video counts of all queries.
        tags: of each query.
        ties: how ties count.
    """
    rows: dict[str, list[int]] = {}
    for query, some in enumerate(tags):
        for tag in some:
            rows.setdefault(tag, []).append(query)
    parts = ((tag, counts[torch.tensor(queries)]) for tag, queries in sorted(rows.items()))
    return tuple(TagMetrics(tag, RetrievalMetrics.from_ranks(part.ranks(ties), part.tied_share)) for tag, part in parts)


def _relevant_pairs(split: PackedSplit) -> Int[Tensor, "n 2"]:
    """(query, video) of all relevant pairs, in order of the queries."""
    return torch.tensor([(query, video) for query, videos in enumerate(split.relevant) for video in sorted(videos)])


def report_from_counts(
    split: PackedSplit,
    to_video: RankCounts,
    to_text: RankCounts,
    text_to_text: RetrievalMetrics | None,
    to_sets: RankCounts | None,
    *,
    ties: Ties,
    bootstrap: int,
    seed: int,
    ratio_edges: Sequence[float],
) -> EvaluationReport:
    """All that follows from the counts of every query and of every video that has one, in the split's order."""
    ranks, video_ranks = to_video.ranks(ties), to_text.ranks(ties)
    sizes = torch.tensor([len(videos) for videos in split.relevant])
    return EvaluationReport(
        split=split.name,
        ties=ties,
        seed=seed,
        chance=sum(chance_recall(len(split.video_ids), sizes, k) for k in RECALLS),
        text_to_video=RetrievalMetrics.from_ranks(ranks, to_video.tied_share),
        video_to_text=RetrievalMetrics.from_ranks(video_ranks, to_text.tied_share),
        text_to_text=text_to_text,
        intervals=(
            bootstrap_intervals(ranks.numpy(), split.query_to_video, samples=bootstrap, seed=seed) if bootstrap else {}
        ),
        groups=moment_groups(to_video, split.moments, ties, ratio_edges),
        tags=tag_metrics(to_video, split.tags, ties),
        query_ids=split.query_ids,
        video_ids=split.video_ids,
        query_to_video=split.query_to_video,
        ranks=ranks.numpy(),
        video_ranks=video_ranks.numpy(),
        video_to_sets=None if to_sets is None else RetrievalMetrics.from_ranks(to_sets.ranks(ties), to_sets.tied_share),
    )


class _Gallery:
    """The parts of a gallery, the one in use made ready for scoring.

    Blocks come with all queries of one part after the other: rows are normalised once per part and not once per block,
    and no more than one part is held twice.
    """

    def __init__(self, retriever: TextVideoModel, encoded: EncodedSplit) -> None:
        self.ready: Callable[[VideoEmbedding], VideoEmbedding] = getattr(retriever, "for_scoring", lambda video: video)
        self.parts = dict(zip((videos.start for videos in encoded.slices), encoded.videos, strict=True))
        self.held: tuple[int, VideoEmbedding] | None = None

    def __getitem__(self, videos: slice) -> VideoEmbedding:
        if self.held is None or self.held[0] != videos.start:
            self.held = (videos.start, self.ready(self.parts[videos.start]))
        return self.held[1]
