"""The list of a search is that of scoring every video by itself, however close their scores are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prvr.encoders import VideoEntry
from prvr.errors import DataError
from prvr_search.ranking import scores as ranking
from prvr_search.ranking.scores import near_best, rank, window_timelines
from prvr_search.ranking.snapshot import Snapshot
from prvr_search.vectors.files import Content, VideoVectors
from prvr_search.vectors.joint import JointModel
from prvr_search.vectors.rows import pack_rows, unit

DIM, CLIPS, VIDEOS = 24, 3, 90


class Weights(JointModel):
    """What ranking reads of a model."""

    def __init__(self, clip_weight: float, frame_weight: float) -> None:
        self.dim, self.clips, self.clip_weight, self.frame_weight = DIM, CLIPS, clip_weight, frame_weight
        self.frame_means = self.identity = False


def drawn(seed: int, weights: tuple[float, float], near: float) -> Snapshot:
    """Videos of one to three windows around a few directions, which are `near` each other's copies; one has rows of
    zeros, some were removed, and some lie beside the pack."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((3, DIM))

    def rows(number: int, count: int) -> np.ndarray:
        whole = centres[number % 3] + near * generator.standard_normal((count, DIM))
        return pack_rows((whole * (number != 4)).astype(np.float32))

    entries, parts = {}, []
    for number in range(VIDEOS):
        windows, name = 1 + number % 3, f"{number:03}"
        steps, clips = generator.integers(1, 6, windows), np.full(windows, CLIPS)
        arrays = {
            "times": np.stack([np.arange(windows), np.arange(windows) + 1.0], 1),
            "steps": steps,
            "clips": rows(number, CLIPS * windows),
            "clips.counts": clips,
            "frames": rows(number, int(steps.sum())),
            "frames.counts": steps,
        }
        entries[name] = VideoEntry(name, name, 0, 0, name.zfill(64), float(windows), 2 * windows, 64, 48, "h264")
        parts.append(VideoVectors({Content.of(entries[name]): windows}, arrays))
    packed = parts[: VIDEOS - 10]
    arrays = {name: np.concatenate([part.arrays[name] for part in packed]) for name in packed[0].arrays}
    videos = {video: windows for part in packed for video, windows in part.videos.items()}
    left = {name: entry for name, entry in entries.items() if int(name) >= VIDEOS // 2 or int(name) % 9}
    return Snapshot(left, Weights(*weights), [VideoVectors(videos, arrays, "pack"), *parts[VIDEOS - 10 :]])


def plain(snapshot: Snapshot, text: np.ndarray, videos: np.ndarray, k: int) -> list[tuple[int, float]]:
    lines = [(video, window_timelines(snapshot, video, text)) for video in videos.tolist()]
    found = [(video, max(window.score for window in windows)) for video, windows in lines]
    return sorted(found, key=lambda one: (-one[1], one[0]))[:k]


@given(
    seed=st.integers(0, 10**6),
    weights=st.sampled_from([(0.7, 0.3), (1.0, 0.0), (0.0, 1.0)]),
    near=st.sampled_from([0.0, 3e-5, 3e-4, 1e-2, 1.0]),
    k=st.sampled_from([1, 2, 7, 40, VIDEOS]),
    queries=st.integers(1, 5),
    against=st.booleans(),
)
def test_the_best_are_those_of_scoring_each_by_itself(
    seed: int, weights: tuple[float, float], near: float, k: int, queries: int, against: bool
) -> None:
    """Copies, scores that half precision cannot tell apart, negative ones, filters, removed videos."""
    snapshot = drawn(seed, weights, near)
    generator = np.random.default_rng(seed + 1)
    first = snapshot.stored_rows("clips", [30])[0][:1] * (-1 if against else 1)
    text = unit((first + generator.standard_normal((queries, DIM))).astype(np.float32))
    every = np.arange(len(snapshot.video_ids))
    some = np.flatnonzero(generator.random(len(every)) < 0.5)
    for videos, asked in ((every, None), (some, [some] * queries)):
        rough = ranking.ApproximateScores()
        rank(snapshot, text, asked, (k + 1) // 2, rough)
        found = rank(snapshot, text, asked, k, rough)
        assert [[*one.items()] for one in found] == [plain(snapshot, row, videos, k) for row in text]


@pytest.mark.parametrize("near", [3e-5, 1.0])
def test_half_precision_leaves_out_none_of_the_best(near: float) -> None:
    """Where scores are far apart, it leaves out nearly all others."""
    snapshot = drawn(0, (0.7, 0.3), near)
    for text in unit(np.random.default_rng(1).standard_normal((20, DIM)).astype(np.float32)):
        found = near_best(snapshot, text, None, 5)
        assert found is not None
        best = plain(snapshot, text, np.arange(len(snapshot.video_ids)), 5)
        assert {video for video, _ in best} <= set(found.tolist())
        assert len(found) < 10 or near < 1


def test_without_sums_in_float32_all_videos_are_scored_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor or with a version of torch that adds up products of float16 in float16."""
    snapshot = drawn(0, (0.7, 0.3), 3e-4)
    text = unit(np.random.default_rng(1).standard_normal((1, DIM)).astype(np.float32))
    expected = [*rank(snapshot, text, None, 5)[0].items()]
    monkeypatch.setattr(ranking, "_adds_in_float32", lambda: False)
    assert near_best(snapshot, text[0], None, 5) is None
    assert [*rank(snapshot, text, None, 5)[0].items()] == expected


@pytest.mark.parametrize("asked", [None, [np.arange(3)]])
def test_a_score_that_is_not_a_number_is_refused(asked: list[np.ndarray] | None) -> None:
    snapshot = drawn(0, (0.7, 0.3), 1.0)
    with pytest.raises(DataError, match="not a number"):
        rank(snapshot, np.full((1, DIM), np.nan, np.float32), asked, 5)
