"""Which videos are worth an exact score, and this score: that of the retriever, of the best window of each.

A query is a row with one unit vector, or with two: the first is compared with clips, the second with frames.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import torch
from jaxtyping import Float32, Int64

from prvr.data.sampling import GROWTH, level_counts, segment_mean
from prvr.errors import DataError
from prvr.scoring import at_steps, key_clip_scores, unit_rows
from prvr_search.ranking.backends import CandidateBackend, each_once
from prvr_search.ranking.results import CURVE_PARTS, WindowTimeline
from prvr_search.ranking.snapshot import Snapshot, unpacked
from prvr_search.vectors.files import Arrays
from prvr_search.vectors.model import CLIP_TIMES, SearchModel
from prvr_search.vectors.rows import unit

_ROUNDING = 1e-5  # how far sums in another order may be off
_TIES = 64  # so many more than k are scored by themselves, where they are as good


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
    enough, so that every video is scored. Videos that are not in the largest file are always candidates.

    Args:
        backend: the backend, in step with the snapshot; None: every video is scored.
        snapshot: the state of the index that is searched.
        text: `(q, e)` queries.
        k: how many videos are wanted in the end.

    Returns:
        None where all videos are candidates for every query.
    """
    if backend is None or not snapshot.files or len(snapshot.entries) <= num_candidates(k):
        return None
    owners = np.repeat(snapshot.owners[0], np.diff(snapshot.files[0].ends["windows"]))
    total = len(owners) * snapshot.model.clips
    vectors = 4 * num_candidates(k)
    queries = np.ascontiguousarray(_of_clips(text, snapshot.model.dim))
    others = np.setdiff1d(snapshot.originals, owners)
    candidates: list[np.ndarray] = [others] * len(text)
    missing = list(range(len(text)))
    while missing:
        vectors = min(vectors, total)
        nearest = backend.nearest(queries[missing], vectors)
        if nearest is None:
            return None
        for q, windows in zip(missing, nearest, strict=True):
            videos = owners[windows]
            candidates[q] = np.union1d(others, each_once(videos[videos >= 0])[: num_candidates(k)])
        missing = [q for q in missing if len(candidates[q]) < num_candidates(k)] if vectors < total else []
        vectors *= 2
    return None if min(map(len, candidates)) < k else candidates


def video_scores(
    snapshot: Snapshot, text: Float32[np.ndarray, "q e"], videos: Int64[np.ndarray, " v"] | None
) -> Float32[np.ndarray, "q n"]:
    """Scores of every query with every video of the index, by its best window; -inf for those that are not asked for.

    Args:
        snapshot: the state of the index that is searched.
        text: `(q, e)` queries.
        videos: numbers of the videos that are scored, of which none are copies; None = all.

    Raises:
        DataError: a score is not a number, or a file of vectors was changed.
    """
    best = np.full((len(text), len(snapshot.entries) + 1), -np.inf, np.float32)
    for block in snapshot.blocks(videos):
        scores = window_scores(snapshot.model, text, block.arrays)
        best[:, block.videos] = np.maximum.reduceat(scores, block.starts, axis=1)
    best = best[:, :-1]  # the last one is that of other videos
    if np.isnan(best).any():
        raise DataError("a score is not a number: the model returns NaN for this query. Use another model, or the CPU.")
    return best


def nearly_best(scores: Float32[np.ndarray, " v"], k: int) -> list[int]:
    """Numbers of the k best videos, and of those that are as good but for rounding; best first."""
    scored = np.flatnonzero(scores > -np.inf)
    if len(scored) > k:
        level = np.partition(scores[scored], len(scored) - k)[len(scored) - k]
        scored = scored[scores[scored] >= level - _ROUNDING]
    return scored[np.argsort(-scores[scored], kind="stable")][: k + _TIES].tolist()


def window_scores(model: SearchModel, text: Float32[np.ndarray, "q e"], arrays: Arrays) -> Float32[np.ndarray, "q w"]:
    """Of every query with every window of some videos, as the model weighs clips and frames."""
    windows = len(arrays["steps"])
    total = np.zeros((len(text), windows), np.float32)
    if model.frames_by_clip:
        shape = windows, model.clips, model.dim
        rows = (torch.from_numpy(unpacked(arrays, name).reshape(shape)) for name in ("clips", "frames"))
        texts = torch.from_numpy(_of_clips(text, model.dim))
        clips, _, frames, _, _ = key_clip_scores(texts, *rows, dots=False, unit=True)
        return total + np.float32(model.clip_weight) * clips.numpy() + np.float32(model.frame_weight) * frames.numpy()
    for name, weight, queries in (
        ("clips", model.clip_weight, _of_clips(text, model.dim)),
        ("frames", model.frame_weight, _of_frames(text, model.dim)),
    ):
        if weight:
            cosines = _unit_cosines(unpacked(arrays, name), queries)
            counts = arrays[f"{name}.counts"]
            best = np.full((windows, len(text)), -np.inf, np.float32)
            best[counts > 0] = np.maximum.reduceat(cosines, (np.cumsum(counts) - counts)[counts > 0])
            total += np.float32(weight) * best.T
    return total


def usual_score(snapshot: Snapshot, text: Float32[np.ndarray, " e"]) -> float:
    """The mean cosine of a query with the frames of all videos, see `Snapshot.mean_frame`; infinite if not known."""
    is_known = snapshot.model.frame_means and len(snapshot.entries)
    return float(_of_frames(text, snapshot.model.dim) @ snapshot.mean_frame) if is_known else np.inf


def candidate_clips(model: SearchModel, arrays: Arrays) -> Float32[np.ndarray, "w c d"]:
    """The clips of windows, by which candidates are found: those that are stored, or means of their frames."""
    if "clips" in arrays:
        clips = unpacked(arrays, "clips")
    else:
        frames = np.split(unpacked(arrays, "frames"), np.cumsum(arrays["frames.counts"])[:-1])
        steps = arrays["steps"].tolist()
        clips = np.concatenate(
            [unit(segment_mean(rows[: count or None], model.clips)) for rows, count in zip(frames, steps, strict=True)]
        )
    return clips.reshape(len(arrays["steps"]), model.clips, model.dim)


def window_timelines(model: SearchModel, arrays: Arrays, text: Float32[np.ndarray, " e"]) -> list[WindowTimeline]:
    """Score and timeline of each window of a video, in order of time.

    The timeline is that of its frames (where means follow them, by `mean_lines`) and clips, weighted as in the score,
    or of its clips where frames do not share the time evenly. Where clips say which part of the window they are, its
    best moment is that of its best clip.

    Args:
        model: of the index.
        arrays: the vectors of the video.
        text: `(e)` the query.
    """
    windows = len(arrays["steps"])
    steps = arrays["steps"].tolist() if model.frame_weight else [0] * windows
    spans = clip_spans(model, arrays)
    clips = frames = [np.empty(0, np.float32)] * windows
    if model.clip_weight or spans is not None or min(steps) <= 1:
        rows = candidate_clips(model, arrays).reshape(-1, model.dim)
        clips = _cosines(rows, _of_clips(text, model.dim), [model.clips] * windows)
    if model.frame_weight:
        counts = arrays["frames.counts"].tolist()
        frames = _cosines(unpacked(arrays, "frames"), _of_frames(text, model.dim), counts)
    lines = mean_lines(frames, steps) if model.frame_means else frames
    best = np.max(clips, 1, initial=-np.inf)
    timelines = []
    for number, (start, end) in enumerate(arrays["times"].tolist()):
        score, even, peak = np.float32(0), clips[number], None
        if model.clip_weight:
            score += np.float32(model.clip_weight) * best[number]
        if model.frame_weight:
            cosines = frames[number][[clips[number].argmax()]] if model.frames_by_clip else frames[number]
            score += np.float32(model.frame_weight) * cosines.max(initial=-np.inf)
        if spans is not None:
            even = covering_scores(clips[number], spans[number], CURVE_PARTS)
            first, last = (spans[number][clips[number].argmax()] * (end - start)).tolist()
            peak = start + first, start + last
        line = even
        if (length := steps[number]) > 1:
            line = np.float32(model.frame_weight) * lines[number][:length]
            if model.clip_weight:
                line += np.float32(model.clip_weight) * even[_clip_at_steps(len(even), length)]
        timelines.append(WindowTimeline(start, end, float(score), line, peak))
    return timelines


def clip_spans(model: SearchModel, arrays: Arrays) -> Float32[np.ndarray, "n c 2"] | None:
    """Where the clips of windows begin and end, as shares of the window; None for equal parts."""
    if CLIP_TIMES not in model.stored:
        return None
    times = unpacked(arrays, CLIP_TIMES, raw=True)
    return np.ascontiguousarray(times.reshape(-1, 2, model.clips).swapaxes(1, 2))


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


def _unit_cosines(rows: Float32[np.ndarray, "n d"], queries: Float32[np.ndarray, "q d"]) -> Float32[np.ndarray, "n q"]:
    """Cosines of unit rows with queries."""
    return (torch.from_numpy(rows) @ unit_rows(torch.from_numpy(queries)).mT).numpy()


def _cosines(rows: Float32[np.ndarray, "n d"], query: Float32[np.ndarray, " d"], counts: list[int]) -> list[np.ndarray]:
    """Cosines of unit rows with a query, those of each window by themselves."""
    cosines = _unit_cosines(rows, query[None])[:, 0]
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


def timed_rows(model: SearchModel, arrays: Arrays) -> list[Float32[np.ndarray, "l d"]]:
    """Unit rows that share the time of each window evenly: its frames, or its clips where its frames do not; of clips
    that overlap, the shortest at each of `CURVE_PARTS` steps.

    Args:
        model: of the index.
        arrays: the vectors of a video.
    """
    clips, spans = candidate_clips(model, arrays), clip_spans(model, arrays)
    frames = [*clips]
    if model.frame_weight:
        frames = np.split(unpacked(arrays, "frames"), np.cumsum(arrays["frames.counts"])[:-1])
    middles = (np.arange(CURVE_PARTS) + 0.5)[:, None] / CURVE_PARTS
    rows = []
    for number, steps in enumerate(arrays["steps"].tolist()):
        if steps > 1 and model.frame_weight:
            rows.append(frames[number][:steps])
        elif spans is None:
            rows.append(clips[number])
        else:
            is_in = (spans[number][:, 0] <= middles) & (middles < spans[number][:, 1])
            rows.append(clips[number][np.where(is_in, np.ptp(spans[number], axis=1), np.inf).argmin(1)])
    return rows
