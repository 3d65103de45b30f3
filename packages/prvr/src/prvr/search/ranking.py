"""The exact score of videos: that of the retriever, of the best window of each."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64

from prvr.errors import DataError
from prvr.scoring import clip_scores, packed_max_scores
from prvr.search.results import WindowCosines
from prvr.search.snapshot import RowBlock, Snapshot

__all__ = ["Ranked", "best_windows", "rank", "rank_among", "video_scores", "window_cosines", "window_scores"]

_QUERIES = 32  # scored at a time over everything: their scores of all videos are held
_ROUNDING = 1e-5  # how far sums in another order may be off
_TIES = 64  # so many more than k are scored by themselves, where they are as good


class Ranked(NamedTuple):
    """A video that was found, by number: its score, and what its windows show, in order of time."""

    video: int
    score: float
    windows: list[WindowCosines]


def rank(
    snapshot: Snapshot, text: Float32[np.ndarray, "q d"], candidates: Sequence[Int64[np.ndarray, " _"]], k: int
) -> list[list[Ranked]]:
    """The k best videos of the candidates of each query, by score and then by id.

    Args:
        snapshot: of the index.
        text: `(q, d)` unit rows.
        candidates: for each query, numbers of the videos that are scored, ascending.
        k: how many; all candidates where these are fewer.
    """
    everything = len(snapshot.video_ids)
    whole = [q for q, some in enumerate(candidates) if len(some) == everything]
    best: dict[int, list[int]] = {}
    for first in range(0, len(whole), _QUERIES):
        some = whole[first : first + _QUERIES]
        best |= dict(zip(some, rank_among(snapshot, text[some], None, k), strict=True))
    for q, videos in enumerate(candidates):
        if q not in best:
            best[q] = rank_among(snapshot, text[q : q + 1], videos, k)[0]
    return [_settled(snapshot, text[q], best[q], k) for q in range(len(text))]


def _settled(snapshot: Snapshot, text: np.ndarray, videos: list[int], k: int) -> list[Ranked]:
    """Each video scored by itself: its score then does not depend on what it was compared with, to the last bit."""
    found = []
    for video in videos:
        windows = window_cosines(snapshot, video, text)
        found.append(Ranked(video, max(window.score for window in windows), windows))
    return sorted(found, key=lambda one: (-one.score, one.video))[:k]  # numbers are in the order of ids


def rank_among(
    snapshot: Snapshot, text: Float32[np.ndarray, "q d"], videos: Int64[np.ndarray, " v"] | None, k: int
) -> list[list[int]]:
    """Numbers of the k best of some videos, or of all of them, the same ones for every query; a few more near ties.

    Raises:
        DataError: a score is not a number.
    """
    return [_best(line, k) for line in video_scores(snapshot, text, videos)]


def video_scores(
    snapshot: Snapshot, text: Float32[np.ndarray, "q d"], videos: Int64[np.ndarray, " v"] | None
) -> Float32[np.ndarray, "q n"]:
    """Scores of every query with every video of the index, by its best window; -inf for those that are not asked for.

    Args:
        snapshot: of the index.
        text: `(q, d)` unit rows.
        videos: numbers of the videos that are scored, ascending; None = all.
    """
    rows = np.flatnonzero(snapshot.owners >= 0) if videos is None else snapshot.rows_of_videos(videos)
    best = np.full((len(text), len(snapshot.video_ids)), -np.inf, np.float32)
    for block in snapshot.row_blocks(rows):
        scores, owners = window_scores(snapshot, text, block), snapshot.owners[block.rows]
        starts = np.flatnonzero(np.diff(owners, prepend=-1))  # windows of a video lie together
        highest = np.maximum.reduceat(scores, starts, axis=1)
        best[:, owners[starts]] = np.maximum(best[:, owners[starts]], highest)
    return best


def best_windows(
    snapshot: Snapshot, text: Float32[np.ndarray, " d"], videos: Int64[np.ndarray, " v"] | None
) -> tuple[Int64[np.ndarray, " n"], Float32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Some videos, their scores for one query, and the window of each that has this score.

    Args:
        snapshot: of the index.
        text: `(d)` unit vector of the query.
        videos: numbers of the videos, ascending; None = all.

    Returns:
        Their numbers, their scores, and numbers of windows through the whole snapshot; of equal windows the first.

    Raises:
        DataError: a score is not a number.
    """
    rows = np.flatnonzero(snapshot.owners >= 0) if videos is None else snapshot.rows_of_videos(videos)
    parts = [window_scores(snapshot, text[None], block)[0] for block in snapshot.row_blocks(rows)]
    scores = np.concatenate([np.empty(0, np.float32), *parts])
    _expect_numbers(scores)
    owners = snapshot.owners[rows]
    order = np.lexsort((rows, -scores, owners))
    first = order[np.flatnonzero(np.diff(owners[order], prepend=-1))]
    return owners[first], scores[first], rows[first]


def window_scores(snapshot: Snapshot, text: Float32[np.ndarray, "q d"], block: RowBlock) -> Float32[np.ndarray, "q w"]:
    """Of every query with every window of a block."""
    about, total = snapshot.manifest, np.zeros((len(text), len(block.rows)), np.float32)
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


def window_cosines(snapshot: Snapshot, video: int, text: Float32[np.ndarray, " d"]) -> list[WindowCosines]:
    """Score and time line of each window of a video, in order of time."""
    rows = snapshot.rows_of_videos(np.array([video]))
    scores = np.concatenate([window_scores(snapshot, text[None], block)[0] for block in snapshot.row_blocks(rows)])
    query = torch.from_numpy(text)[None]
    found = []
    for score, (start, end, tokens) in zip(scores.tolist(), snapshot.tokens(snapshot.video_ids[video]), strict=True):
        cosines = clip_scores(query, torch.from_numpy(tokens)[None])[0, 0]
        found.append(WindowCosines(start, end, score, cosines.numpy()))
    return found


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
