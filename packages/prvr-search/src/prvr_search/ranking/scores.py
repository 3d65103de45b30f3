"""Which videos are worth an exact score, and this score: that of the retriever, of the best window of each.

A query is a row with one unit vector, or with two: the first is compared with clips, the second with frames.
"""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise

import numpy as np
import torch
from jaxtyping import Float32, Int64

from prvr.data.sampling import GROWTH, level_counts
from prvr.errors import DataError
from prvr.scoring import at_steps, key_clip_scores, packed_max_scores, unit_rows
from prvr_search.ranking.backends import CandidateBackend, each_once
from prvr_search.ranking.results import CURVE_PARTS, WindowTimeline
from prvr_search.ranking.snapshot import RowBlock, Snapshot
from prvr_search.vectors.model import SearchModel

_QUERIES = 32  # scored at a time over everything: their scores of all videos are held
_FEW = 3  # queries up to which products in half precision, one query after the other, are faster
_ROUNDING = 1e-5  # how far sums in another order may be off
_TIES = 64  # so many more than k are scored by themselves, where they are as good


ApproximateScores = dict[bytes, tuple[Float32[np.ndarray, " v"], float]]
"""For each query, by its bytes: approximate scores of all videos, and how far they may be off."""


def _of_clips(text: np.ndarray, dim: int) -> np.ndarray:
    """The vectors of queries that clips are compared with."""
    return text[..., :dim]


def _of_frames(text: np.ndarray, dim: int) -> np.ndarray:
    """The vectors of queries that frames are compared with: the same, where a query has only one."""
    return text[..., -dim:]


def num_candidates(k: int) -> int:
    """How many videos are scored exactly to find the k best of them.

    Examples:
        >>> num_candidates(10), num_candidates(100)
        (100, 400)
    """
    return max(4 * k, 100)


def fuse(*rankings: Sequence[int], constant: float = 60.0) -> list[int]:
    """Rankings joined by reciprocal rank fusion: video v scores the sum of 1 / (constant + rank of v).

    The equation of Cormack, Clarke and Buettcher (SIGIR 2009), with their constant; where a ranking lacks a video, it
    adds nothing.

    Args:
        rankings: numbers of videos, best first.
        constant: the larger it is, the less the first ranks stand out.

    Examples:
        >>> fuse([1, 2, 3], [3, 1])
        [1, 3, 2]
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, video in enumerate(ranking, 1):
            scores[video] = scores.get(video, 0.0) + 1 / (constant + rank)
    return sorted(scores, key=lambda video: (-scores[video], video))


def find_candidates(
    backend: CandidateBackend | None, snapshot: Snapshot, text: Float32[np.ndarray, "q e"], k: int
) -> list[Int64[np.ndarray, " _"]] | None:
    """For each query, numbers of the videos of its nearest clips, ascending: `num_candidates(k)` of them, if there are.

    Of copies of a video, only the first is a candidate.

    A backend is asked for more clips until enough videos are among them. It is not asked where there are not more than
    enough, or no pack, so that every video is scored. Videos beside the pack are always candidates.

    Args:
        backend: the backend, in step with the snapshot; None: every video is scored.
        snapshot: the state of the index that is searched.
        text: `(q, e)` queries.
        k: how many videos are wanted in the end.

    Returns:
        None where all videos are candidates for every query.
    """
    if backend is None or not snapshot.packed or len(snapshot.video_ids) <= num_candidates(k):
        return None
    total = snapshot.packed * snapshot.model.clips
    vectors = 4 * num_candidates(k)
    queries = np.ascontiguousarray(_of_clips(text, snapshot.model.dim))
    others = np.unique(snapshot.owners[snapshot.live[np.searchsorted(snapshot.live, snapshot.packed) :]])
    candidates: list[np.ndarray] = [others] * len(text)
    missing = list(range(len(text)))
    while missing:
        vectors = min(vectors, total)
        nearest = backend.nearest(queries[missing], vectors)
        if nearest is None:
            return None
        for q, windows in zip(missing, nearest, strict=True):
            videos = snapshot.owners[windows]
            candidates[q] = np.union1d(others, each_once(videos[videos >= 0])[: num_candidates(k)])
        missing = [q for q in missing if len(candidates[q]) < num_candidates(k)] if vectors < total else []
        vectors *= 2
    return None if min(map(len, candidates)) < k else candidates


def rank(
    snapshot: Snapshot,
    text: Float32[np.ndarray, "q e"],
    candidates: Sequence[Int64[np.ndarray, " _"]] | None,
    k: int,
    approximate_scores: ApproximateScores | None = None,
) -> list[dict[int, float]]:
    """The numbers and scores of the k best videos of the candidates of each query, best first, then by id.

    Each video is scored by itself in the end: its score does not depend on what it was compared with, to the last bit.

    Args:
        snapshot: the state of the index that is searched.
        text: `(q, e)` queries.
        candidates: the numbers of the videos that are scored for each query, ascending; None = all.
        k: how many videos are wanted; all candidates, if there are fewer.
        approximate_scores: filled by this call; passed again with the same snapshot and a larger k, they save most of
            its time.

    Raises:
        DataError: a score is not a number.
    """
    if candidates is None:
        groups = [(text[first : first + _QUERIES], None) for first in range(0, len(text), _QUERIES)]
    elif all(videos is candidates[0] for videos in candidates):  # one pass over the same videos, as a filter gives them
        groups = [(text[first : first + _QUERIES], candidates[0]) for first in range(0, len(text), _QUERIES)]
    else:
        groups = [(text[q : q + 1], videos) for q, videos in enumerate(candidates)]
    best = [
        numbers for queries, videos in groups for numbers in _possible(snapshot, queries, videos, k, approximate_scores)
    ]
    ranked = []
    for row, videos in zip(text, best, strict=True):
        scores = {video: max(w.score for w in window_timelines(snapshot, video, row)) for video in videos}
        ranked.append(dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]))
    return ranked


def _possible(
    snapshot: Snapshot,
    text: np.ndarray,
    videos: np.ndarray | None,
    k: int,
    approximate_scores: ApproximateScores | None,
) -> Iterator[list[int]]:
    """For each query, numbers of a few videos among which the k best are."""
    if len(text) > _FEW:
        yield from (_best(line, k) for line in video_scores(snapshot, text, videos))
        return
    for row in text:
        near = near_best(snapshot, row, videos, k, approximate_scores)
        if near is not None and len(near) <= k + _TIES:
            yield near.tolist()
        else:
            yield _best(video_scores(snapshot, row[None], videos if near is None else near)[0], k)


def near_best(
    snapshot: Snapshot,
    text: Float32[np.ndarray, " e"],
    videos: Int64[np.ndarray, " v"] | None,
    k: int,
    approximate_scores: ApproximateScores | None = None,
) -> Int64[np.ndarray, " n"] | None:
    """The videos whose score may be among the k highest, found by products in the precision of the stored vectors.

    A product of float16 vectors reads half of the bytes of one of float32, and is off by no more than a bound that is
    known. A video that is further than two such bounds below the k-th highest is not among the k best.

    Args:
        snapshot: the state of the index that is searched.
        text: `(e)` the query.
        videos: numbers of the videos that are compared, ascending; None = all.
        k: how many videos are wanted.
        approximate_scores: see `rank`.

    Returns:
        Their numbers, ascending; None where that cannot be told: the frames that count depend on the best clip, torch
        does not add up products of float16 in float32 on this machine, or a score is not a number.
    """
    rows = snapshot.rows_of_videos(videos)
    if not _adds_in_float32() or not len(rows) or snapshot.model.frames_by_clip:
        return None
    if approximate_scores is None or videos is not None:
        approximate_scores = {}
    query = text.tobytes()
    if query not in approximate_scores:
        scores, error = _approximate_scores(snapshot, text, rows)
        if not np.isfinite(scores).all():
            return None
        approximate_scores[query] = _of_videos(snapshot, snapshot.owners_of(rows, videos), scores[None])[0], error
    best, error = approximate_scores[query]
    scored = np.flatnonzero(best > -np.inf)
    if len(scored) > k:
        scored = scored[best[scored] >= np.partition(best[scored], len(scored) - k)[len(scored) - k] - 2 * error]
    return scored


def _approximate_scores(snapshot: Snapshot, text: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, float]:
    """The score of some windows from vectors as they are stored, and how far one may be off."""
    if len(rows) < snapshot.windows <= 2 * len(rows):  # one product with everything costs less than one for each run
        scores, error = _approximate_scores(snapshot, text, np.arange(snapshot.windows))
        return scores[rows], error
    about = snapshot.model
    total, error = np.zeros(len(rows), np.float32), _ROUNDING + about.dim * 2.0**-23  # two sums of products in float32
    for name, weight, counts, vector in (
        ("clips", about.clip_weight, np.full(len(rows), about.clips), _of_clips(text, about.dim)),
        ("frames", about.frame_weight, snapshot.frame_counts[rows], _of_frames(text, about.dim)),
    ):
        if weight:
            query = unit_rows(torch.from_numpy(vector)[None])
            narrow = query.half()
            rounded = float((query - narrow.float()).norm())
            finest = torch.finfo(narrow.dtype).eps / 2
            with torch.autocast("cpu", enabled=False):
                parts = [narrow @ torch.from_numpy(part).mT for part in snapshot.stored(name, rows)]
            best = np.full(len(rows), -np.inf, np.float32)
            if counts.all():  # torch.segment_reduce takes 20 times as long
                best = np.maximum.reduceat(torch.cat(parts, 1)[0].float().numpy(), np.cumsum(counts) - counts)
            total += np.float32(weight) * best
            # Rounding keeps the order, so only the highest counts. Rows have unit length but for a thousandth.
            error += abs(weight) * (1.001 * rounded + finest * float(np.abs(best).max()))
    return total, error


@cache
def _adds_in_float32() -> bool:
    """Whether products of float16 vectors are added up in float32: in float16 the small ones of these would be lost."""
    ones = torch.ones(8, 384, dtype=torch.float16)
    parts = torch.full((1, 384), 2.0**-12, dtype=torch.float16)
    parts[0, 0] = 1
    return bool(((parts @ ones.mT).float() == parts.float().sum().half().float()).all())


def video_scores(
    snapshot: Snapshot, text: Float32[np.ndarray, "q e"], videos: Int64[np.ndarray, " v"] | None
) -> Float32[np.ndarray, "q n"]:
    """Scores of every query with every video of the index, by its best window; -inf for those that are not asked for.

    Args:
        snapshot: the state of the index that is searched.
        text: `(q, e)` queries.
        videos: numbers of the videos that are scored, ascending; None = all.
    """
    rows = snapshot.rows_of_videos(videos)
    parts = [window_scores(snapshot.model, text, block) for block in snapshot.row_blocks(rows)]
    owners = snapshot.owners_of(rows, videos)
    return _of_videos(snapshot, owners, np.concatenate([np.empty((len(text), 0), np.float32), *parts], axis=1))


def _of_videos(
    snapshot: Snapshot, owners: Int64[np.ndarray, " w"], scores: Float32[np.ndarray, "q w"]
) -> Float32[np.ndarray, "q n"]:
    """The highest score of the windows of each video of the index, by their owners; -inf without a window."""
    best = np.full((len(scores), len(snapshot.video_ids)), -np.inf, np.float32)
    if len(owners):
        starts = np.flatnonzero(np.diff(owners, prepend=-1))  # windows of a video lie together
        best[:, owners[starts]] = np.maximum.reduceat(scores, starts, axis=1)
    return best


def best_windows(
    snapshot: Snapshot, text: Float32[np.ndarray, " e"], videos: Int64[np.ndarray, " v"] | None
) -> tuple[Int64[np.ndarray, " n"], Float32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Some videos, their scores for one query, and the window of each that has this score.

    Args:
        snapshot: the state of the index that is searched.
        text: `(e)` the query.
        videos: numbers of the videos, ascending; None = all.

    Returns:
        Their numbers, their scores, and numbers of windows through the whole snapshot; of equal windows the first.

    Raises:
        DataError: a score is not a number.
    """
    rows = snapshot.rows_of_videos(videos)
    parts = [window_scores(snapshot.model, text[None], block)[0] for block in snapshot.row_blocks(rows)]
    scores = np.concatenate([np.empty(0, np.float32), *parts])
    _expect_numbers(scores)
    owners = snapshot.owners_of(rows, videos)
    order = np.lexsort((rows, -scores, owners))
    first = order[np.flatnonzero(np.diff(owners[order], prepend=-1))]
    return owners[first], scores[first], rows[first]


def window_scores(model: SearchModel, text: Float32[np.ndarray, "q e"], block: RowBlock) -> Float32[np.ndarray, "q w"]:
    """Of every query with every window of a block, as the model weighs clips and frames."""
    total = np.zeros((len(text), len(block.rows)), np.float32)
    w, c, d = block.clips.shape
    if model.frames_by_clip:
        shape = w, c, d
        rows = (torch.from_numpy(rows.reshape(shape)) for rows in (block.clips, block.frames))
        clips, _, frames, _, _ = key_clip_scores(torch.from_numpy(_of_clips(text, d)), *rows, dots=False, unit=True)
        total += np.float32(model.clip_weight) * clips.numpy() + np.float32(model.frame_weight) * frames.numpy()
        return total
    if model.clip_weight:
        queries = torch.from_numpy(_of_clips(text, d))
        rows = torch.from_numpy(block.clips.reshape(w * c, d))
        scores = packed_max_scores(queries, rows, torch.arange(w + 1) * c, unit=True)
        total += np.float32(model.clip_weight) * scores.numpy()
    if model.frame_weight:
        queries = torch.from_numpy(_of_frames(text, model.dim))
        scores = packed_max_scores(queries, torch.from_numpy(block.frames), torch.from_numpy(block.offsets), unit=True)
        total += np.float32(model.frame_weight) * scores.numpy()
    return total


def usual_score(snapshot: Snapshot, text: Float32[np.ndarray, " e"]) -> float:
    """The mean cosine of a query with the frames of all videos, see `Snapshot.mean_frame`; infinite if not known."""
    mean = snapshot.mean_frame
    return np.inf if mean is None else float(_of_frames(text, len(mean)) @ mean)


def window_timelines(snapshot: Snapshot, video: int, text: Float32[np.ndarray, " e"]) -> list[WindowTimeline]:
    """Score and timeline of each window of a video, in order of time.

    The timeline is that of its frames (where means follow them, by `mean_lines`) and clips, weighted as in the score,
    or of its clips where frames do not share the time evenly. Where clips say which part of the window they are, its
    best moment is that of its best clip.
    """
    about = snapshot.model
    rows = snapshot.rows_of_videos(np.array([video]))
    counts = snapshot.frame_counts[rows].tolist()
    clips = frames = [np.empty(0, np.float32)] * len(rows)
    steps = snapshot.steps[rows].tolist() if about.frame_weight else [0] * len(rows)
    spans = snapshot.clip_spans(rows)
    if about.clip_weight or spans is not None or min(steps) <= 1:
        clips = _cosines(snapshot.unpacked("clips", rows), _of_clips(text, about.dim), [about.clips] * len(rows))
    if about.frame_weight:
        frames = _cosines(snapshot.unpacked("frames", rows), _of_frames(text, about.dim), counts)
    lines = mean_lines(frames, steps) if about.frame_means else frames
    best = np.max(clips, 1, initial=-np.inf)
    timelines = []
    for number, (start, end) in enumerate(snapshot.spans[rows].tolist()):
        score, even, peak = np.float32(0), clips[number], None
        if about.clip_weight:
            score += np.float32(about.clip_weight) * best[number]
        if about.frame_weight:
            cosines = frames[number][[clips[number].argmax()]] if about.frames_by_clip else frames[number]
            score += np.float32(about.frame_weight) * cosines.max(initial=-np.inf)
        if spans is not None:
            even = covering_scores(clips[number], spans[number], CURVE_PARTS)
            first, last = (spans[number][clips[number].argmax()] * (end - start)).tolist()
            peak = start + first, start + last
        line = even
        if (length := steps[number]) > 1:
            line = np.float32(about.frame_weight) * lines[number][:length]
            if about.clip_weight:
                line += np.float32(about.clip_weight) * even[_clip_at_steps(len(even), length)]
        timelines.append(WindowTimeline(start, end, float(score), line, peak))
    return timelines


def mean_lines(scores: Sequence[Float32[np.ndarray, " m"]], steps: Sequence[int]) -> list[Float32[np.ndarray, " n"]]:
    """A score for each frame of the windows of a video, of the scores of frames and means.

    It is the mean of the scores of the frame, which counts twice, and of the means that hold it: those of 4 frames, and
    on up to the level of the best row of all windows.

    Args:
        scores: `(m,)` of the rows of each window, as `prvr.data.sampling.growing_means` orders them.
        steps: the number of its frames, n.

    Examples:
        >>> mean_lines([np.float32([0, 0.75, 0, 0.75, 0.375])], [4])[0].tolist()
        [0.125, 0.625, 0.125, 0.625]
    """
    best = max(range(len(scores)), key=lambda number: scores[number].max())
    level = max(1, int(np.searchsorted(_level_ends(steps[best]), scores[best].argmax(), side="right")))
    lines = []
    for rows, count in zip(scores, steps, strict=True):
        ends = _level_ends(count)[: level + 1].tolist()
        line = rows[:count] + rows[:count]
        for i, (start, stop) in enumerate(pairwise(ends), 1):
            line += np.repeat(rows[start:stop], GROWTH**i)[:count]
        lines.append(line / np.float32(len(ends) + 1))
    return lines


@lru_cache
def _level_ends(count: int) -> Int64[np.ndarray, " n"]:
    """Where each level ends in the rows of a window, see `prvr.data.sampling.level_counts`; cached."""
    return np.cumsum(level_counts(count))


@lru_cache
def _clip_at_steps(clips: int, steps: int) -> np.ndarray:
    """The number of the clip at each of some equal steps of time; kept, since most windows have as many."""
    return at_steps(torch.arange(clips).float(), steps).long().numpy()


def _cosines(rows: Float32[np.ndarray, "n d"], query: Float32[np.ndarray, " d"], counts: list[int]) -> list[np.ndarray]:
    """Cosines of unit rows with a query, those of each window by themselves."""
    cosines = (torch.from_numpy(rows) @ unit_rows(torch.from_numpy(query)[None]).mT)[:, 0].numpy()
    return [cosines[stop - count : stop] for count, stop in zip(counts, accumulate(counts), strict=True)]


def covering_scores(
    scores: Float32[np.ndarray, " p"], spans: Float32[np.ndarray, "p 2"], steps: int
) -> Float32[np.ndarray, " t"]:
    """The highest score of the clips that touch each of t equal steps of time; -inf where there is none.

    Args:
        scores: `(p,)` of clips.
        spans: `(p, 2)` where each begins and ends, as shares of the video.
        steps: t.

    Examples:
        >>> covering_scores(np.float32([0.5, 0.9]), np.float32([[0, 1], [0.25, 0.5]]), 4).round(1).tolist()
        [0.5, 0.8999999761581421, 0.5, 0.5]
    """
    line = np.full(steps, -np.inf, np.float32)
    edges = np.asarray(spans, np.float64) * steps
    first = np.clip(np.floor(edges[:, 0] + 1e-6), 0, steps - 1).astype(int)
    last = np.clip(np.ceil(edges[:, 1] - 1e-6), first + 1, steps).astype(int)
    for score, start, stop in zip(scores, first, last, strict=True):
        line[start:stop] = np.maximum(line[start:stop], score)
    return line


def timed_rows(snapshot: Snapshot, row: int) -> Float32[np.ndarray, "l d"]:
    """Unit rows that share the time of a window evenly: its frames, or its clips where its frames do not; of clips that
    overlap, the shortest at each of `CURVE_PARTS` steps.

    Args:
        snapshot: the state of the index.
        row: number of the window through the whole snapshot.
    """
    steps = int(snapshot.steps[row])
    if steps > 1 and snapshot.model.frame_weight:
        return snapshot.stored_rows("frames", [row])[0][:steps]
    clips = snapshot.stored_rows("clips", [row])[0]
    spans = snapshot.clip_spans(np.array([row]))
    if spans is None:
        return clips
    middles = (np.arange(CURVE_PARTS) + 0.5)[:, None] / CURVE_PARTS
    lengths = np.where((spans[0][:, 0] <= middles) & (middles < spans[0][:, 1]), np.ptp(spans[0], axis=1), np.inf)
    return clips[lengths.argmin(1)]


def _best(scores: Float32[np.ndarray, " v"], k: int) -> list[int]:
    """Numbers of the k best videos, and of those that are as good but for rounding."""
    _expect_numbers(scores)
    scored = np.flatnonzero(scores > -np.inf)
    if len(scored) > k:
        level = np.partition(scores[scored], len(scored) - k)[len(scored) - k]
        scored = scored[scores[scored] >= level - _ROUNDING]
    return scored[np.argsort(-scores[scored], kind="stable")][: k + _TIES].tolist()


def _expect_numbers(scores: np.ndarray) -> None:
    if np.isnan(scores).any():
        raise DataError("a score is not a number: the model returns NaN for this query. Use another model, or the CPU.")
