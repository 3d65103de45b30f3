"""Which videos are worth an exact score: a backend is asked for more clips until enough videos are among them."""

import numpy as np
from jaxtyping import Float32, Int64

from prvr.search.backends import CandidateBackend
from prvr.search.snapshot import Snapshot

__all__ = ["enough", "find_candidates"]


def enough(k: int) -> int:
    """How many videos are scored exactly to find the k best of them.

    Examples:
        >>> enough(10), enough(100)
        (50, 400)
    """
    return max(4 * k, 50)


def find_candidates(
    backend: CandidateBackend, snapshot: Snapshot, text: Float32[np.ndarray, "q d"], k: int
) -> list[Int64[np.ndarray, " _"]]:
    """For each query, numbers of the videos of its nearest clips, ascending: `enough(k)` of them, if there are.

    Args:
        backend: in step with the snapshot.
        snapshot: of the index.
        text: `(q, d)` unit rows.
        k: how many videos are wanted in the end.
    """
    total = sum(len(one.keys) for one in snapshot.opened) * snapshot.manifest.clips
    wanted, vectors = min(enough(k), len(snapshot.video_ids)), 4 * enough(k)
    found: list[np.ndarray] = [np.empty(0, np.int64)] * len(text)
    missing = list(range(len(text)))
    while missing:
        vectors = min(vectors, total)
        for q, videos in zip(missing, _videos(snapshot, backend.nearest(text[missing], vectors)), strict=True):
            found[q] = videos
        missing = [q for q in missing if len(found[q]) < wanted] if vectors < total else []
        vectors *= 2
    return found


def _videos(snapshot: Snapshot, keys: list[Int64[np.ndarray, " _"]]) -> list[Int64[np.ndarray, " _"]]:
    """Numbers of the videos of windows; where queries share one array of keys, they share the result."""
    known: dict[int, np.ndarray] = {}
    for some in keys:
        if id(some) not in known:
            videos = np.unique(snapshot.videos_of(some))
            known[id(some)] = videos[videos >= 0]
    return [known[id(some)] for some in keys]
