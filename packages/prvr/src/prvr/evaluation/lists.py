"""Ranked lists: the videos of each query after all stages, mAP and nDCG of them, and the moments in them."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from prvr.data.atomic import write_output
from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import evaluation_mode
from prvr.evaluation.metrics import RECALLS, Ties, recall_at_k
from prvr.evaluation.report import ListMetrics, MomentBaselines, MomentMetrics
from prvr.evaluation.significance import Interval, bootstrap_intervals
from prvr.models.pretrained import PretrainedModel
from prvr.scoring import MomentLists, overlaps, own_moments, ranked_moments, ranked_spans, row_scores
from prvr.stages.matrix import EncodedSplit, ScoreMatrix, best_columns
from prvr.stages.pipelines import Pipeline, rescored
from prvr.types import Direction, GivesMoments, Texts, VideoEmbedding, pad_to

IOUS = (0.3, 0.5, 0.7)
"""The overlaps with the true moment at which a moment is right."""
_TASKS: tuple[Literal["vcmr", "svmr"], ...] = ("vcmr", "svmr")
_LEVEL: dict[Ties, float] = {"worst": 1.0, "mean": 0.5, "best": 0.0}
"""The share of items at the same score that counts as above."""
_PART = 0.7
"""Moments below this share of their video are judged by themselves: the whole video is no answer to them."""
_EDGES = torch.arange(33.0, dtype=torch.float64) / 32
_CONSTANT = {
    "whole": _EDGES[None, [0, 32]],
    "middle": torch.tensor([[1.0, 2.0]], dtype=torch.float64) / 3,
    "random": torch.combinations(_EDGES),
}
"""`(m, 2)` moments that read no query, as shares of the video."""
DEPTH = 100
"""The number of videos of each query whose moments are ranked."""


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
        pipeline: computes the scores.
        encoded: the result of `encode_split` for the pipeline, or for one with further stages.
        direction: rows are texts ("t2v") or videos ("v2t").
        size: number of rows at a time.
        only: indices of rows, which are computed one at a time; None for all.

    Yields:
        The rows, and their scores with the whole gallery.

    Raises:
        InputError: a stage has an encoder of its own, and `encoded` was computed without it.
    """
    first = ScoreMatrix(pipeline.first, encoded, block=size)
    own = encoded.stages or (None,) * len(pipeline.stages)
    matrices = []
    for stage, some in zip(pipeline.stages, own, strict=False):  # `encoded` may be that of more stages
        if stage.encoder is not None and some is None:
            raise InputError(f"stage {stage.kind!r} has an encoder of its own: pass the pipeline to encode_split")
        matrices.append(
            first if stage.encoder is None or some is None else ScoreMatrix(stage.encoder, some, block=size)
        )
    bound = pipeline.bind(direction, matrices, pipeline.prepare(direction, partial(first.with_bank, direction)))
    for rows in first.blocks(direction, size) if only is None else (slice(row, row + 1) for row in only):
        yield rows, rescored(bound, first.rows(direction, rows), rows)


def write_run(
    path: Path | str,
    pipeline: Pipeline,
    encoded: EncodedSplit,
    *,
    names: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """Writes the best 100 videos of every query after all stages, as other evaluation programs read them.

    In the format of TREC, a line `QUERY Q0 VIDEO RANK SCORE prvr` for each; or, if the file's name ends in `.json`, one
    object of objects, `{QUERY: {VIDEO: SCORE}}`. Of equal scores the video that comes first in the gallery is first.

    Args:
        path: the file, written whole or not at all.
        pipeline: computes the scores.
        encoded: the result of `encode_split`.
        names: of the queries in the file, `PackedSplit.query_names`; None: their ids.
        device: of the embeddings.

    Raises:
        DataError: the file cannot be written.
    """
    lists: dict[str, dict[str, float]] = {}
    names = encoded.query_ids if names is None else names
    with evaluation_mode(pipeline, torch.device(device), 0):
        for rows, scores in ranked_rows(pipeline, encoded, "t2v"):
            columns = best_columns(scores, min(DEPTH, scores.shape[1]))
            values = scores.gather(1, columns).tolist()
            for query, videos, line in zip(names[rows], columns.tolist(), values, strict=True):
                lists[query] = {str(encoded.video_ids[v]): float(f"{x:.9g}") for v, x in zip(videos, line, strict=True)}
    if Path(path).suffix == ".json":
        text = json.dumps(lists, allow_nan=False) + "\n"
    else:
        text = "".join(
            f"{query} Q0 {video} {rank} {score} prvr\n"
            for query, videos in lists.items()
            for rank, (video, score) in enumerate(videos.items(), 1)
        )
    write_output(Path(path), text.encode())


def positives_places(
    scores: Float[Tensor, "q v"], relevant: Bool[Tensor, "q v"], ties: Ties = "worst"
) -> Real[Tensor, "q k"]:
    """The place of each relevant video in the list of its query, ascending; NaN where a query has fewer than others.

    The j-th of them, by score, stands at j plus the number of irrelevant videos that score higher, and at the same
    score all (worst), half (mean) or none (best) of those.

    Args:
        scores: `(q, v)` similarities, higher is better.
        relevant: `(q, v)` relevant videos.
        ties: the place among irrelevant videos with the same score.

    Returns:
        `(q, k)` 1-based places, k the most relevant videos that a query has.

    Examples:
        >>> scores, relevant = torch.tensor([[0.9, 0.5, 0.5, 0.1]]), torch.tensor([[True, False, True, False]])
        >>> [positives_places(scores, relevant, ties).tolist() for ties in ("worst", "mean", "best")]
        [[[1.0, 3.0]], [[1.0, 2.5]], [[1.0, 2.0]]]
    """
    count = relevant.sum(1, keepdim=True)
    own = scores.masked_fill(~relevant, -torch.inf).topk(int(count.max()), 1).values
    wrong = scores.masked_fill(relevant, -torch.inf).sort(1).values  # of these, the relevant ones are not counted
    higher, level = (
        (scores.shape[1] - torch.searchsorted(wrong, own, right=right)).clamp(max=scores.shape[1] - count)
        for right in (True, False)
    )
    number = torch.arange(1, own.shape[1] + 1, device=scores.device)
    return (number + higher + _LEVEL[ties] * (level - higher)).masked_fill(number > count, torch.nan)


def graded_gain(scores: Float[Tensor, "q v"], gains: Float[Tensor, "q v"], ties: Ties = "worst") -> Float[Tensor, " q"]:
    """nDCG of each query, with a gain for each video (Jarvelin and Kekalainen 2002).

    Args:
        scores: `(q, v)` similarities, higher is better.
        gains: `(q, v)`, 0 for irrelevant videos; one of each query is not.
        ties: at the same score, smaller gains come first (worst), larger ones (best), or the mean of the two counts.

    Examples:
        >>> graded_gain(torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[1.0, 0.0, 3.0]]))
        tensor([0.6885])
    """
    discounts = (2 + torch.arange(scores.shape[1], device=scores.device)).to(gains.dtype).log2().reciprocal()

    def total(first: Tensor) -> Tensor:
        order = first.argsort(1)
        order = order.gather(1, scores.gather(1, order).argsort(dim=1, descending=True, stable=True))
        return (gains.gather(1, order) * discounts).sum(1)

    ideal = (gains.sort(1, descending=True).values * discounts).sum(1)
    return ((1 - _LEVEL[ties]) * total(-gains) + _LEVEL[ties] * total(gains)) / ideal


class RankedLists:
    """What is kept of the lists of all queries, row by row, for the metrics of a report.

    Args:
        split: a packed split.
        ties: the place among equal scores.
        wanted: False keeps nothing.
    """

    def __init__(self, split: PackedSplit, ties: Ties, wanted: bool = True) -> None:
        self.split = split
        self.ties: Ties = ties
        start, end, _ = split.moments
        own = np.array([owner in videos for owner, videos in zip(split.query_to_video, split.relevant, strict=True)])
        self.timed = own & (end > start) & (split.durations[split.query_to_video] > 0)
        """`(q,)` queries with a known moment in a video that is right for them."""
        self.several = wanted and any(len(videos) > 1 for videos in split.relevant)
        self.needed = wanted and (self.several or bool(self.timed.any()))
        """Whether any metric needs these lists."""
        self.precision, self.gain = list[Tensor](), list[Tensor]()
        self.columns = list[Tensor]()
        self.scores = list[Tensor]()
        self.right = list[Tensor]()

    def add(self, rows: slice, scores: Float[Tensor, "r v"]) -> None:
        """Adds the scores of some queries with the whole gallery; all queries, in order, before anything is asked."""
        relevant = torch.zeros(scores.shape, dtype=torch.bool)
        for row, videos in zip(relevant, self.split.relevant[rows], strict=True):
            row[list(videos)] = True
        relevant = relevant.to(scores.device)
        if self.several:
            places = positives_places(scores, relevant, self.ties).double()
            number = torch.arange(1, places.shape[1] + 1, device=places.device).double()
            self.precision.append((number / places).nanmean(1).cpu())
            if self.split.levels is None:
                ideal = (1 + number).log2().reciprocal().masked_fill(places.isnan(), 0).sum(1)
                self.gain.append(((1 + places).log2().reciprocal().nansum(1) / ideal).cpu())
            else:
                gains = torch.zeros(scores.shape, dtype=torch.float64)
                for row, levels in zip(gains, self.split.levels[rows], strict=True):
                    row[list(levels)] = 2.0 ** torch.tensor([*levels.values()]).double() - 1
                self.gain.append(graded_gain(scores, gains.to(scores.device), self.ties).cpu())
        columns = best_columns(scores, min(DEPTH, scores.shape[1]))
        self.columns.append(columns.cpu())
        self.scores.append(scores.gather(1, columns).double().cpu())
        self.right.append(relevant.gather(1, columns).cpu())

    def metrics(self) -> ListMetrics | None:
        """mAP and nDCG; None if every query has one right video."""
        if not self.several:
            return None
        precision, gain = (float(100 * torch.cat(parts).mean()) for parts in (self.precision, self.gain))
        return ListMetrics(precision, gain, float(np.mean([len(videos) for videos in self.split.relevant])))

    def moment_metrics(
        self, pipeline: Pipeline, encoded: EncodedSplit, *, bootstrap: int = 0, seed: int = 0
    ) -> tuple[tuple[MomentMetrics, ...], tuple[MomentBaselines, ...]]:
        """Moment retrieval in the corpus and in the query's own video, and beside answers that read no query.

        Both are empty if no moment is known, the first one also if the system has no moments.

        A moment of a video scores as its video does, less by as much as its highest step is below that of the best
        moment there: so the best moments stand in the order of their videos. Moments of another right video are left
        out, since the true times in it are unknown.

        Args:
            pipeline: ranks videos and gives moments, see `video_moments`.
            encoded: the result of `encode_split` for this split.
            bootstrap: number of resamples of videos for the intervals; 0 for none.
            seed: of the bootstrap.
        """
        if not (self.needed and self.timed.any()):
            return (), ()
        columns = torch.cat(self.columns)
        scores = torch.cat(self.scores)
        right = torch.cat(self.right)
        timed = torch.from_numpy(self.timed)
        owner = torch.from_numpy(self.split.query_to_video)
        own_score = scores.masked_fill(columns != owner[:, None], -torch.inf).amax(1)  # -inf: beyond the videos listed
        is_first = (torch.ge if self.ties == "best" else torch.gt)(
            own_score, scores.masked_fill(right, -torch.inf).amax(1)
        )
        # By task, IoU and query: the score of the best right moment, the wrong ones above it, and those level with it.
        best = torch.full((len(_TASKS), len(IOUS), len(owner)), -torch.inf, dtype=torch.float64)
        above, level = torch.zeros_like(best), torch.zeros_like(best)
        ious = torch.tensor(IOUS, dtype=torch.float64)[:, None, None]

        queries = timed.nonzero()[:, 0]
        for video, some in _by_video(owner[queries]):
            rows = queries[some]
            moments = self._moments(pipeline, encoded, video, rows)
            if moments is None:
                return (), self._baselines(is_first, None)
            unit = float(self.split.durations[video]) / moments.length
            wrong = self._overlaps(moments.start * unit, moments.stop * unit, rows) < ious
            score = torch.stack([own_score[rows, None] + moments.score, moments.score])[:, None]
            best[:, :, rows] = top = score.masked_fill(wrong, -torch.inf).amax(3)
            above[:, :, rows] = (wrong & (score > top[..., None])).sum(3).double()
            level[:, :, rows] = (wrong & (score == top[..., None])).sum(3).double()

        queries, places = (timed[:, None] & ~right).nonzero().T
        for video, some in _by_video(columns[queries, places]):
            rows = queries[some]
            moments = self._moments(pipeline, encoded, video, rows)
            assert moments is not None
            score, top = scores[rows, places[some], None] + moments.score, best[0][:, rows, None]
            above[0][:, rows] += (score > top).sum(2)
            level[0][:, rows] += (score == top).sum(2)

        ranks = (1 + above + _LEVEL[self.ties] * level).masked_fill(best == -torch.inf, torch.inf)[:, :, timed]
        baselines = self._baselines(is_first, ranks)
        owners, metrics = owner[timed].numpy(), list[MomentMetrics]()
        for i, j in np.ndindex(len(_TASKS), len(IOUS)):
            places, intervals = ranks[i, j], dict[str, Interval]()
            if bootstrap:
                intervals = bootstrap_intervals(places.numpy(), owners, samples=bootstrap, seed=seed)
                del intervals["sumr"]
            recalls = (recall_at_k(places, k) for k in RECALLS)
            metrics.append(MomentMetrics(_TASKS[i], IOUS[j], *recalls, queries=len(places), intervals=intervals))
        return tuple(metrics), baselines

    def _baselines(
        self, is_first: Bool[Tensor, " q"], ranks: Float[Tensor, "2 i n"] | None
    ) -> tuple[MomentBaselines, ...]:
        """The shares of queries that the first moment answers; `is_first`: no wrong video stands above the own one."""
        queries = torch.from_numpy(self.timed).nonzero()[:, 0]
        lengths = torch.from_numpy(self.split.durations[self.split.query_to_video]).double()[queries, None]
        bounds, hits = torch.tensor(IOUS, dtype=torch.float64)[:, None, None], dict[str, Tensor]()
        for name, spans in _CONSTANT.items():
            shares = list[Tensor]()
            for rows, length in zip(queries.split(1024), lengths.split(1024), strict=True):
                start, stop = spans.T[:, None] * length
                shares.append((self._overlaps(start, stop, rows) >= bounds).double().mean(2))
            hits[name] = torch.cat(shares, 1)
        start, end, _ = (torch.from_numpy(part)[queries] for part in self.split.moments)
        share, baselines = (end - start) / lengths[:, 0], list[MomentBaselines]()
        for below, (i, task), (j, iou) in itertools.product((1.0, _PART), enumerate(_TASKS), enumerate(IOUS)):
            some = share < below if below < 1 else torch.ones_like(share, dtype=torch.bool)
            if bool(some.any()):
                ranked = is_first[queries] | (task == "svmr")
                rates = {name: float(100 * (hit[j] * ranked)[some].mean()) for name, hit in hits.items()}
                model = None if ranks is None else recall_at_k(ranks[i, j, some], 1)
                baselines.append(MomentBaselines(task, iou, below, int(some.sum()), model, **rates))
        return tuple(baselines)

    def _moments(
        self, pipeline: Pipeline, encoded: EncodedSplit, video: int, rows: Int[Tensor, " n"]
    ) -> MomentLists | None:
        """Moments of a video for some queries, scored relative to the best one; -inf is no moment."""
        moments = video_moments(pipeline, encoded, self.split, rows, video)
        if moments is None:
            return None
        return replace(moments, score=(moments.score - moments.score[:, :1]).masked_fill(~moments.valid, -torch.inf))

    def _overlaps(
        self, start: Float[Tensor, "n m"], stop: Float[Tensor, "n m"], rows: Int[Tensor, " n"]
    ) -> Float[Tensor, "n m"]:
        """Intersection over union of moments, in seconds, with the true one of each query; of several the largest."""
        windows = torch.from_numpy(self.split.windows)[:, rows, :, None]
        return torch.stack([overlaps(start, stop, *times.unbind(1)) for times in windows]).amax(0)


def _by_video(videos: Int[Tensor, " n"]) -> Iterator[tuple[int, Int[Tensor, " _"]]]:
    """Each video that occurs, and where it does."""
    order = videos.argsort(stable=True)
    numbers, sizes = videos[order].unique_consecutive(return_counts=True)
    return zip(numbers.tolist(), order.split(sizes.tolist()), strict=True)


def video_moments(
    pipeline: Pipeline, encoded: EncodedSplit, split: PackedSplit, queries: Int[Tensor, " n"], video: int
) -> MomentLists | None:
    """The moments of a video for some queries, the best first, on the host; the best one is that of search.

    Those of the last stage that gives moments, else those of the first stage (`moments`), else those of its rows, by
    the score that ranks videos (`prvr.scoring.row_scores`). None if there are no rows.

    Args:
        pipeline: ranks videos.
        encoded: the result of `encode_split` for this split.
        split: the packed split.
        queries: the numbers of the queries.
        video: the number of the video.

    Raises:
        InputError: moments that a part gives are NaN, reversed or outside the video.
    """
    first, inputs = pipeline.first, encoded.stages or (None,) * len(pipeline.stages)
    for part, own in (*reversed([*zip(pipeline.stages, inputs, strict=False)]), (first, None)):
        if not isinstance(part, GivesMoments):
            continue
        moments = part.moments(*_compared(encoded if own is None else own, split, queries, video))
        if moments is not None:
            heads = ", ".join(part.moment_heads) if isinstance(part, PretrainedModel) else ""  # losses, by name
            return own_moments(*moments, f"{heads or type(part).__name__}, video {split.video_ids[video]!r}")
    rows = row_scores(first, *_compared(encoded, split, queries, video))
    if rows is None:
        return None
    line, spans = (None if part is None else part.double().cpu() for part in rows)
    assert line is not None
    return ranked_moments(line) if spans is None else ranked_spans(line, spans)


def _compared(
    encoded: EncodedSplit, split: PackedSplit, queries: Int[Tensor, " n"], video: int
) -> tuple[Texts, VideoEmbedding]:
    """Some queries and one video, as long as the longest, so that it may be told from one whose frames are pooled."""
    index = next(i for i, part in enumerate(encoded.slices) if part.stop > video)
    number = video - encoded.slices[index].start
    one = encoded.videos[index][slice(number, number + 1)]
    if one.frames is not None:
        mask = one.frame_mask
        if mask is None:  # padding is no time
            places = torch.arange(one.frames.shape[1], device=one.frames.device)
            mask = places[None] < max(1, int(split.frame_counts[video]))
        longest = max(part.frames.shape[1] for part in encoded.videos if part.frames is not None)
        one = replace(one, frames=pad_to(one.frames, longest), frame_mask=pad_to(mask, longest))
    return encoded.text[queries.to(encoded.text.device)], one
