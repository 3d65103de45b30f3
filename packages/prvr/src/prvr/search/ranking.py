"""Which videos are worth an exact score, and this score: that of the retriever, of the best window of each."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from prvr.errors import DataError
from prvr.scoring import at_steps, clip_scores, packed_max_scores
from prvr.search.backends import CandidateBackend
from prvr.search.manifest import Manifest
from prvr.search.results import WindowTimeline
from prvr.search.snapshot import RowBlock, Snapshot

_QUERIES = 32  # scored at a time over everything: their scores of all videos are held
_ROUNDING = 1e-5  # how far sums in another order may be off
_TIES = 64  # so many more than k are scored by themselves, where they are as good


class Ranked(NamedTuple):
    """A video that was found, by number: its score, and what its windows show, in order of time."""

    video: int
    score: float
    windows: list[WindowTimeline]


def enough(k: int) -> int:
    """How many videos are scored exactly to find the k best of them.

    Examples:
        >>> enough(10), enough(100)
        (50, 400)
    """
    return max(4 * k, 50)


def find_candidates(
    backend: CandidateBackend, snapshot: Snapshot, text: Float32[np.ndarray, "q d"], k: int
) -> list[Int64[np.ndarray, " _"]] | None:
    """For each query, numbers of the videos of its nearest clips, ascending: `enough(k)` of them, if there are.

    Of copies of a film, only the first is a candidate.

    A backend is asked for more clips until enough videos are among them. It is not asked where every video is scored:
    because it is exhaustive, or because there are not more than enough.

    Args:
        backend: the backend, in step with the snapshot.
        snapshot: the state of the index that is searched.
        text: `(q, d)` unit rows.
        k: how many videos are wanted in the end.

    Returns:
        None where all videos are candidates for every query.
    """
    if backend.exhaustive or len(snapshot.video_ids) <= enough(k):
        return None
    total = len(snapshot.owners) * snapshot.clips
    vectors = 4 * enough(k)
    found: list[np.ndarray] = [np.empty(0, np.int64)] * len(text)
    missing = list(range(len(text)))
    while missing:
        vectors = min(vectors, total)
        for q, keys in zip(missing, backend.nearest(text[missing], vectors), strict=True):
            videos = snapshot.videos_of(keys)
            found[q] = np.unique(snapshot.originals[videos[videos >= 0]])
        missing = [q for q in missing if len(found[q]) < enough(k)] if vectors < total else []
        vectors *= 2
    return found


def rank(
    snapshot: Snapshot, text: Float32[np.ndarray, "q d"], candidates: Sequence[Int64[np.ndarray, " _"]] | None, k: int
) -> list[list[Ranked]]:
    """The k best videos of the candidates of each query, by score and then by id.

    Args:
        snapshot: the state of the index that is searched.
        text: `(q, d)` unit rows.
        candidates: the numbers of the videos that are scored for each query, ascending; None = all.
        k: how many videos are wanted; all candidates, if there are fewer.

    Raises:
        DataError: a score is not a number.
    """
    if candidates is None:
        groups = [(text[first : first + _QUERIES], None) for first in range(0, len(text), _QUERIES)]
    elif all(videos is candidates[0] for videos in candidates):  # one pass over the same videos, as a filter gives them
        groups = [(text[first : first + _QUERIES], candidates[0]) for first in range(0, len(text), _QUERIES)]
    else:
        groups = [(text[q : q + 1], videos) for q, videos in enumerate(candidates)]
    best = [_best(line, k) for some, videos in groups for line in video_scores(snapshot, some, videos)]
    return [_settled(snapshot, row, videos, k) for row, videos in zip(text, best, strict=True)]


def _settled(snapshot: Snapshot, text: np.ndarray, videos: list[int], k: int) -> list[Ranked]:
    """Each video scored by itself: its score then does not depend on what it was compared with, to the last bit."""
    found = []
    for video in videos:
        windows = window_timelines(snapshot, video, text)
        found.append(Ranked(video, max(window.score for window in windows), windows))
    return sorted(found, key=lambda one: (-one.score, one.video))[:k]  # numbers are in the order of ids


def video_scores(
    snapshot: Snapshot, text: Float32[np.ndarray, "q d"], videos: Int64[np.ndarray, " v"] | None
) -> Float32[np.ndarray, "q n"]:
    """Scores of every query with every video of the index, by its best window; -inf for those that are not asked for.

    Args:
        snapshot: the state of the index that is searched.
        text: `(q, d)` unit rows.
        videos: numbers of the videos that are scored, ascending; None = all.
    """
    rows = snapshot.rows_of_videos(videos)
    best = np.full((len(text), len(snapshot.video_ids)), -np.inf, np.float32)
    for block in snapshot.row_blocks(rows):
        scores, owners = window_scores(snapshot.manifest, text, block), snapshot.owners[block.rows]
        starts = np.flatnonzero(np.diff(owners, prepend=-1))  # windows of a video lie together
        highest = np.maximum.reduceat(scores, starts, axis=1)
        best[:, owners[starts]] = np.maximum(best[:, owners[starts]], highest)
    return best


def best_windows(
    snapshot: Snapshot, text: Float32[np.ndarray, " d"], videos: Int64[np.ndarray, " v"] | None
) -> tuple[Int64[np.ndarray, " n"], Float32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Some videos, their scores for one query, and the window of each that has this score.

    Args:
        snapshot: the state of the index that is searched.
        text: `(d)` unit vector of the query.
        videos: numbers of the videos, ascending; None = all.

    Returns:
        Their numbers, their scores, and numbers of windows through the whole snapshot; of equal windows the first.

    Raises:
        DataError: a score is not a number.
    """
    rows = snapshot.rows_of_videos(videos)
    parts = [window_scores(snapshot.manifest, text[None], block)[0] for block in snapshot.row_blocks(rows)]
    scores = np.concatenate([np.empty(0, np.float32), *parts])
    _expect_numbers(scores)
    owners = snapshot.owners[rows]
    order = np.lexsort((rows, -scores, owners))
    first = order[np.flatnonzero(np.diff(owners[order], prepend=-1))]
    return owners[first], scores[first], rows[first]


def window_scores(about: Manifest, text: Float32[np.ndarray, "q d"], block: RowBlock) -> Float32[np.ndarray, "q w"]:
    """Of every query with every window of a block, as the manifest weighs clips and frames."""
    total = np.zeros((len(text), len(block.rows)), np.float32)
    queries = torch.from_numpy(text)
    if about.clip_weight:
        w, c, d = block.clips.shape
        found = packed_max_scores(
            queries, torch.from_numpy(block.clips.reshape(w * c, d)), torch.arange(w + 1) * c, unit=True
        )
        total += np.float32(about.clip_weight) * found.numpy()
    if about.frame_weight:
        found = packed_max_scores(queries, torch.from_numpy(block.frames), torch.from_numpy(block.offsets), unit=True)
        total += np.float32(about.frame_weight) * found.numpy()
    return total


def window_timelines(snapshot: Snapshot, video: int, text: Float32[np.ndarray, " d"]) -> list[WindowTimeline]:
    """Score and timeline of each window of a video, in order of time.

    The timeline is that of its frames and clips, weighted as in the score, or of its clips where frames do not share
    the time evenly.
    """
    about = snapshot.manifest
    rows = snapshot.rows_of_videos(np.array([video]))
    scores = np.concatenate([window_scores(about, text[None], block)[0] for block in snapshot.row_blocks(rows)])
    query = torch.from_numpy(text)[None]

    def cosines(kind: str) -> Sequence[Tensor]:
        parts = snapshot.stored_rows(kind, rows)
        return clip_scores(query, torch.from_numpy(np.concatenate(parts))[None])[0, 0].split([*map(len, parts)])

    steps = snapshot.steps[rows].tolist()
    timed = bool(about.frame_weight) and max(steps) > 1
    frames = cosines("frames") if timed else None
    clips = cosines("clips") if about.clip_weight or not timed or min(steps) <= 1 else None
    found = []
    for number, (start, end) in enumerate(snapshot.spans[rows].tolist()):
        if frames is not None and steps[number] > 1:
            line = about.frame_weight * frames[number][: steps[number]]
            if clips is not None and about.clip_weight:
                line = line + at_steps(about.clip_weight * clips[number], steps[number])
        else:
            assert clips is not None
            line = clips[number]
        found.append(WindowTimeline(start, end, float(scores[number]), line.numpy()))
    return found


def timed_rows(snapshot: Snapshot, row: int) -> Float32[np.ndarray, "l d"]:
    """Unit rows that share the time of a window evenly: its frames, or its clips where its frames do not.

    Args:
        snapshot: the state of the index.
        row: number of the window through the whole snapshot.
    """
    steps = int(snapshot.steps[row])
    if steps > 1 and snapshot.manifest.frame_weight:
        return snapshot.stored_rows("frames", [row])[0][:steps]
    return snapshot.stored_rows("clips", [row])[0]


def _best(scores: Float32[np.ndarray, " v"], k: int) -> list[int]:
    """Numbers of the k best videos, and of those that are as good but for rounding."""
    _expect_numbers(scores)
    known = np.flatnonzero(scores > -np.inf)
    if len(known) > k:
        level = np.partition(scores[known], len(known) - k)[len(known) - k]
        known = known[scores[known] >= level - _ROUNDING]
    return known[np.argsort(-scores[known], kind="stable")][: k + _TIES].tolist()


def _expect_numbers(scores: np.ndarray) -> None:
    if np.isnan(scores).any():
        raise DataError(
            "a score is not a number: the model gives NaN for this query, or the index is damaged. `prvr index verify` "
            "tells which."
        )
