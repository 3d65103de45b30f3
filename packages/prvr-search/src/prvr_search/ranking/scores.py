"""Which videos are worth an exact score, and this score: that of the retriever, of the best window of each.

A query is a row with one unit vector, or with two: the first is compared with clips, the second with frames.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float32

from prvr.data.sampling import GROWTH, level_counts, segment_mean
from prvr.errors import DataError
from prvr.scoring import at_steps, unit_rows
from prvr_search.ranking.backends import CandidateBackend
from prvr_search.ranking.results import CURVE_PARTS, WindowTimeline, highest
from prvr_search.ranking.snapshot import Numbers, Snapshot, unpacked
from prvr_search.vectors.files import Arrays
from prvr_search.vectors.model import CLIP_TIMES, Queries, Rescores, Rows, SearchModel, Vector, scored_kinds, unit

Cosines = Float32[np.ndarray, "_ q"]
_ROUNDING = 1e-5  # how far sums in another order may be off
_TIES = 64  # so many more than k are scored by themselves, where they are as good


def num_candidates(k: int) -> int:
    """How many videos are scored exactly to find the k best of them.

    Examples:
        >>> num_candidates(10), num_candidates(100)
        (100, 400)
    """
    return max(4 * k, 100)


def fuse(*rankings: Sequence[int]) -> list[int]:
    """Rankings joined by reciprocal rank fusion: video v scores the sum of 1 / (60 + rank of v).

    The equation of Cormack, Clarke and Buettcher (SIGIR 2009), with their constant; where a ranking lacks a video, it
    adds nothing.

    Args:
        rankings: numbers of videos, best first.

    Examples:
        >>> fuse([1, 2, 3], [3, 1])
        [1, 3, 2]
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, video in enumerate(ranking, 1):
            scores[video] = scores.get(video, 0.0) + 1 / (60 + rank)
    return sorted(scores, key=lambda video: (-scores[video], video))


def find_candidates(
    backend: CandidateBackend | None, snapshot: Snapshot, text: Queries, k: int
) -> list[Numbers] | None:
    """For each query, numbers of the videos of its nearest clips, ascending: `num_candidates(k)` of them, if there are.

    Of copies of a video, only the first is a candidate.

    A backend is asked for more clips until enough videos are among them. It is not asked where there are not more than
    enough, so that every video is scored. Videos whose clips it does not have are always candidates.

    Args:
        backend: the backend, in step with the snapshot; None: every video is scored.
        snapshot: the state of the index that is searched.
        text: `(q, e)` queries.
        k: how many videos are wanted in the end.

    Returns:
        None where all videos are candidates for every query.
    """
    wanted = num_candidates(k)
    if backend is None or not snapshot.files or len(snapshot.entries) <= wanted:
        return None
    owners = snapshot.clip_owners
    others = np.setdiff1d(snapshot.originals, owners)
    queries = np.ascontiguousarray(text[:, : snapshot.model.dim])
    vectors, total = 4 * wanted, len(owners) * snapshot.model.clips
    while True:
        nearest = backend.nearest(queries, min(vectors, total))
        if nearest is None:
            return None
        ranked = (dict.fromkeys(owners[windows].tolist()) for windows in nearest)  # each once, in order
        best = ([video for video in videos if video >= 0][:wanted] for videos in ranked)
        candidates = [np.union1d(others, np.array(videos, np.int64)) for videos in best]
        fewest = min(map(len, candidates))
        if fewest >= wanted or vectors >= total:
            return None if fewest < k else candidates
        vectors *= 2


def video_scores(snapshot: Snapshot, text: Queries) -> Rows:
    """Scores of every query with every video of the index, by its best window.

    Args:
        snapshot: the state of the index that is searched.
        text: `(q, e)` queries.

    Raises:
        DataError: a score is not a number, or as `Snapshot.blocks`.
    """
    best = np.full((len(text), len(snapshot.entries) + 1), -np.inf, np.float32)  # the last one is that of other videos
    for videos, starts, arrays in snapshot.blocks():
        scores = window_scores(snapshot.model, arrays, cosines_of(snapshot.model, arrays, text))
        best[:, videos] = np.maximum.reduceat(scores, starts, axis=0).T
    best = best[:, snapshot.originals]
    if np.isnan(best).any():
        raise DataError("a score is not a number: the model returns NaN for this query. Use another model, or the CPU.")
    return best


def nearly_best(videos: Numbers, scores: Vector | None, k: int) -> list[int]:
    """The k best of some videos, and those that are as good but for rounding, best first; all without scores."""
    if scores is None:
        return videos.tolist()
    values = scores[videos]
    if len(videos) > k:
        is_near = values >= np.partition(values, len(videos) - k)[len(videos) - k] - _ROUNDING
        videos, values = videos[is_near], values[is_near]
    return videos[np.argsort(-values, kind="stable")][: k + _TIES].tolist()


def cosines_of(model: SearchModel, arrays: Arrays, text: Queries) -> dict[str, Cosines]:
    """The cosines of queries with the rows of each kind that counts."""
    queries = {"clips": text[:, : model.dim], "frames": text[:, -model.dim :]}  # the same, where there is one vector
    return {name: _unit_cosines(unpacked(arrays, name), queries[name]) for name in scored_kinds(model)}


def window_scores(model: SearchModel, arrays: Arrays, cosines: Mapping[str, Cosines]) -> Cosines:
    """The score of every window with every query, as the model weighs clips and frames."""
    windows, total = len(arrays["steps"]), np.float32(0)
    for name, weight in (("clips", model.clip_weight), ("frames", model.frame_weight)):
        if not weight:
            continue
        counts = arrays[f"{name}.counts"]
        best = np.full((windows, cosines[name].shape[1]), -np.inf, np.float32)
        best[counts > 0] = np.maximum.reduceat(cosines[name], (np.cumsum(counts) - counts)[counts > 0])
        if name == "frames" and model.frames_by_clip:
            clips, frames = (cosines[kind].reshape(windows, model.clips, -1) for kind in ("clips", "frames"))
            best = np.take_along_axis(frames, clips.argmax(1)[:, None], 1)[:, 0]
        total = total + np.float32(weight) * best
    return np.asarray(total)


def candidate_clips(model: SearchModel, arrays: Arrays) -> Float32[np.ndarray, "w c d"]:
    """The clips of windows, by which candidates are found: those that are stored, or means of their frames."""
    if "clips" in arrays:
        clips = unpacked(arrays, "clips")
    else:
        frames = zip(_by_window(arrays, unpacked(arrays, "frames")), arrays["steps"].tolist(), strict=True)
        clips = np.concatenate([unit(segment_mean(rows[: count or None], model.clips)) for rows, count in frames])
    return clips.reshape(len(arrays["steps"]), model.clips, model.dim)


def window_timelines(model: SearchModel, arrays: Arrays, text: Vector) -> list[WindowTimeline]:
    """Score and timeline of each window of a video, in order of time.

    The timeline is that of its frames (where means follow them, by `mean_lines`) and clips, weighted as in the score,
    or of its clips where frames do not share the time evenly. Where clips say which part of the window they are, its
    best moment is that of its best clip.

    Args:
        model: of the index.
        arrays: the vectors of the video.
        text: `(e)` the query.
    """
    windows, spans = len(arrays["steps"]), clip_spans(model, arrays)
    steps = arrays["steps"].tolist() if model.frame_weight else [0] * windows
    cosines = cosines_of(model, arrays, text[None])
    scores = window_scores(model, arrays, cosines)[:, 0].tolist()
    if "clips" not in cosines and (spans is not None or min(steps) <= 1):
        cosines["clips"] = _unit_cosines(candidate_clips(model, arrays).reshape(-1, model.dim), text[None, : model.dim])
    clips = cosines.get("clips", np.empty((0, 1), np.float32)).reshape(windows, -1)
    lines = _by_window(arrays, cosines["frames"][:, 0]) if model.frame_weight else []
    lines = mean_lines(lines, steps) if model.frame_means else lines
    timelines = []
    for number, (start, end) in enumerate(arrays["times"].tolist()):
        even, peak = clips[number], None
        if spans is not None:
            even = highest(clips[number], spans[number], CURVE_PARTS)
            first, last = (spans[number][clips[number].argmax()] * (end - start)).tolist()
            peak = start + first, start + last
        line = even
        if (length := steps[number]) > 1:
            line = np.float32(model.frame_weight) * lines[number][:length]
            if model.clip_weight:
                line += np.float32(model.clip_weight) * at_steps(torch.from_numpy(even), length).numpy()
        timelines.append(WindowTimeline(start, end, scores[number], line, peak))
    return timelines


def rescored_timelines(
    model: Rescores, arrays: Arrays, sentence: str, windows: Sequence[WindowTimeline]
) -> Sequence[WindowTimeline]:
    """The windows of a video with the timelines of the score that orders videos.

    Parts that say when they are become windows of their own: the best ones, as far as they do not touch.

    Args:
        model: of the index.
        arrays: the vectors of the video.
        sentence: the query.
        windows: the result of `window_timelines`.
    """
    if (moments := model.moments(sentence, stored_windows(model, arrays))) is None:
        return windows
    whole, parts = list[WindowTimeline](), list[WindowTimeline]()
    for window, (scores, spans) in zip(windows, moments, strict=True):
        if spans is None:
            whole.append(window._replace(scores=scores, moment=None))
            continue
        times = window.start + spans.astype(float) * (window.end - window.start)
        for score, (start, end) in zip(scores, times.tolist(), strict=True):
            parts.append(WindowTimeline(start, end, window.score, score[None], (start, end)))
    for part in sorted(parts, key=lambda part: -part.scores[0]):
        if all(part.end < other.start or other.end < part.start for other in whole):
            whole.append(part)
    return whole


def stored_windows(model: SearchModel, arrays: Arrays) -> list[dict[str, np.ndarray]]:
    """Of each window the rows that the model keeps beside clips and frames, by the name of their set."""
    sets = {
        name: _by_window(arrays, unpacked(arrays, name, raw=kind.lengths), name) for name, kind in model.stored.items()
    }
    return [{name: rows[number] for name, rows in sets.items()} for number in range(len(arrays["steps"]))]


def _by_window(arrays: Arrays, rows: np.ndarray, name: str = "frames") -> list[np.ndarray]:
    """What there is for each row of a set, divided by windows."""
    return np.split(rows, np.cumsum(arrays[f"{name}.counts"])[:-1])


def clip_spans(model: SearchModel, arrays: Arrays) -> Float32[np.ndarray, "n c 2"] | None:
    """Where the clips of windows begin and end, as shares of the window; None for equal parts."""
    if CLIP_TIMES not in model.stored:
        return None
    times = unpacked(arrays, CLIP_TIMES, raw=True)
    return np.ascontiguousarray(times.reshape(-1, 2, model.clips).swapaxes(1, 2))


def mean_lines(scores: Sequence[Vector], steps: Sequence[int]) -> list[Vector]:
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
def _level_ends(count: int) -> Numbers:
    """Where each level ends in the rows of a window, see `prvr.data.sampling.level_counts`; cached."""
    return np.cumsum(level_counts(count))


def _unit_cosines(rows: Rows, queries: Float32[np.ndarray, "q d"]) -> Cosines:
    """Cosines of unit rows with queries."""
    return (torch.from_numpy(rows) @ unit_rows(torch.from_numpy(queries)).mT).numpy()
