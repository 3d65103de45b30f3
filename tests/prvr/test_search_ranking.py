"""The list of a search is that of scoring every video by itself, however close their scores are."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_files import TOY, make_features, make_index

from prvr.encoders import VideoFeatures
from prvr.errors import DataError
from prvr_search import SearchFilter, VideoIndex, WindowVectors, open_model
from prvr_search.ranking.scores import nearly_best, window_timelines

DIM, CLIPS, VIDEOS = 384, 3, 90
SPEC = replace(TOY, dim=DIM, joint_dim=DIM)


class Rows:
    """A model whose vectors are the features; a sentence is the seed of a direction near those of videos, or away."""

    dim, clips, frames_by_clip, frame_means, stored = DIM, CLIPS, False, False, {}

    def __init__(self, clip_weight: float, frame_weight: float) -> None:
        self.clip_weight, self.frame_weight = clip_weight, frame_weight
        self.identity = open_model("zero-shot", TOY).identity

    def encode_video(self, rows: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, list[WindowVectors]]:
        parts = [rows[slice(*span)] for span in windows]
        return windows, [WindowVectors(np.resize(part, (CLIPS, DIM)), part, len(part)) for part in parts]

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        rows = [directions()[int(text) % 3] + np.random.default_rng(int(text)).normal(size=DIM) for text in texts]
        signed = np.array([-row if int(text) % 2 else row for text, row in zip(texts, rows, strict=True)], np.float32)
        return signed / np.linalg.norm(signed, axis=1, keepdims=True)


def directions() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, DIM))


@cache
def drawn(weights: tuple[float, float], near: float) -> VideoIndex:
    """Videos of one to three windows around three directions, in several files; one has rows of zeros, each tenth is a
    copy, and no other two are as long as each other, so that none are shown as one.
    """
    random, videos = np.random.default_rng(1), {}
    for number in range(VIDEOS):
        rows = directions()[number % 3] + near * random.normal(size=(4 + 5 * (number % 3), DIM))
        videos[f"{number:03}"] = (rows * (number != 4)).astype(np.float32)
    videos |= {f"{number:03}": videos[f"{number // 2:03}"] for number in range(0, VIDEOS, 10)}
    features = make_features(videos, SPEC)
    contents = sorted({entry.sha256 for entry in features.entries.values()})
    entries = {
        video: replace(entry, duration=10.0 + contents.index(entry.sha256)) for video, entry in features.entries.items()
    }
    index = make_index(Path(mkdtemp()), Rows(*weights), VideoFeatures(SPEC, {}, features.read), window=2.0, stride=1.5)
    for end in (1, 30, 50, VIDEOS):
        index.update(VideoFeatures(SPEC, dict([*entries.items()][:end]), lambda entry: videos[entry.id]))
    return index


def plain(index: VideoIndex, text: str, pattern: str, k: int) -> list[tuple[str, float]]:
    """Each video scored by itself; of copies, the first one counts."""
    snapshot, (query,) = index.snapshot, index.model.encode_texts([text])
    scores, seen = {}, set[int]()
    for video, original in zip(index.video_ids, snapshot.originals.tolist(), strict=True):
        if fnmatch(video, pattern) and original not in seen:
            seen.add(original)
            windows = window_timelines(snapshot.model, snapshot.vectors(original), query)
            scores[video] = max(window.score for window in windows)
    return sorted(scores.items(), key=lambda one: (-one[1], one[0]))[:k]


@given(
    texts=st.lists(st.integers(0, 10**6).map(str), min_size=1, max_size=5),
    weights=st.sampled_from([(0.7, 0.3), (1.0, 0.0), (0.0, 1.0)]),
    near=st.sampled_from([0.0, 3e-5, 3e-4, 1e-2, 1.0]),
    k=st.sampled_from([1, 2, 7, 40, VIDEOS]),
    names=st.sampled_from(["*", "*[02468]", "0[3-5]*"]),
)
def test_the_best_are_those_of_scoring_each_by_itself(
    texts: list[str], weights: tuple[float, float], near: float, k: int, names: str
) -> None:
    """Copies, scores that rounding cannot tell apart, negative ones, filters, several queries at once."""
    index = drawn(weights, near)
    where = None if names == "*" else SearchFilter(names=[names])
    for text, result in zip(texts, index.search_many(texts, k, where=where), strict=True):
        assert [(hit.video_id, hit.score) for hit in result.hits] == plain(index, text, names, k)


def test_what_rounding_may_have_put_behind_the_best_is_scored_again() -> None:
    scores = np.float32([0.5, 0.500003, 0.499998, 0.4])
    assert sorted(nearly_best(np.arange(4), scores, 1)) == [0, 1, 2]


def test_a_score_that_is_not_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "encode_texts", lambda model, texts: np.full((1, DIM), np.nan, np.float32))
    for where in (None, SearchFilter(names=["00*"])):
        with pytest.raises(DataError, match="not a number"):
            drawn((0.7, 0.3), 1.0).search("1", where=where)
