"""Long videos: how they are cut, that a short moment in a long video is found, and where in it."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_files import QUERY, TOY, make_features, make_index, walk

from prvr.encoders import open_featurizer
from prvr_search import CURVE_PARTS, open_model
from prvr_search.ranking.results import WindowTimeline, merged_moments, relevance_curve
from prvr_search.vectors.files import cut_windows


@given(
    st.integers(1, 2000), st.sampled_from([0.5, 1.0, 2.0, 25.0]), st.floats(1.0, 300.0), st.floats(0.05, 1.0),
    st.floats(-0.4, 0.4),
)  # fmt: skip
def test_windows_cover_a_video(rows: int, rate: float, window: float, share: float, more: float) -> None:
    duration = (rows + more) / rate
    spans, times = cut_windows(rows, duration, rate, window, share * window)
    size = max(1, round(window * rate))
    assert (spans[0, 0], times[0, 0]) == (0, 0.0)
    assert (spans[-1, 1], times[-1, 1]) == (rows, duration)
    assert len(spans) == 1 if rows <= size else {*np.ptp(spans, axis=1)} == {size}
    assert {row for span in spans for row in range(*span)} == set(range(rows))
    assert (np.diff(spans[:, 0]) > 0).all()
    assert (times.ravel()[:-1] == spans.ravel()[:-1] / rate).all()


def plain_curve(windows: list[WindowTimeline], duration: float, parts: int) -> list[float]:
    """The rule by loops."""
    line = [-np.inf] * parts
    for w in windows:
        length = (w.end - w.start) / len(w.scores)
        for i, cosine in enumerate(w.scores.tolist()):
            low, high = w.start + i * length, w.start + (i + 1) * length
            for part in range(parts):
                overlap = min(high, (part + 1) * duration / parts) - max(low, part * duration / parts)
                if overlap > 1e-5 * duration / parts:
                    line[part] = max(line[part], cosine)
    return line


@given(st.integers(2, 300), st.integers(2, 60), st.integers(1, 70), st.integers(0, 999))
def test_the_relevance_curve_is_the_highest_score_of_each_part(rows: int, window: int, parts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    windows = [
        WindowTimeline(*times, 0.0, rng.normal(size=rng.integers(1, 9)).astype(np.float32))
        for times in cut_windows(rows, float(rows), 1.0, float(window), window / 2)[1].tolist()
    ]
    found = relevance_curve(windows, float(rows), parts)
    assert found == pytest.approx(plain_curve(windows, float(rows), parts))
    assert np.isfinite(found).all()


@given(rows=st.integers(2, 200), window=st.integers(2, 60), most=st.integers(1, 5), seed=st.integers(0, 999))
def test_moments_are_disjoint_inside_the_video_and_best_first(rows: int, window: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    windows = [
        WindowTimeline(*times, float(rng.normal()), rng.normal(size=rng.integers(1, 40)).astype(np.float32))
        for times in cut_windows(rows, rows - 0.3, 1.0, float(window), window / 2)[1].tolist()
    ]
    found = merged_moments(windows, most)
    assert 1 <= len(found) <= most
    highest = max(windows, key=lambda w: w.scores.max())
    peak = highest.start + (highest.end - highest.start) * (highest.scores.argmax() + 0.5) / len(highest.scores)
    assert found[0].score == highest.scores.max()
    assert found[0].start < peak < found[0].end
    assert [m.score for m in found] == sorted((m.score for m in found), reverse=True)
    ordered = sorted(found, key=lambda m: m.start)
    assert all(0 <= m.start < m.end <= rows - 0.3 + 1e-9 for m in ordered)
    assert all(a.end <= b.start + 1e-9 for a, b in pairwise(ordered))


@pytest.mark.parametrize("right", [0.8, 0.2])
def test_a_moment_across_two_windows_that_follow_each_other_is_one(right: float) -> None:
    windows = [
        WindowTimeline(0.0, 80.0, 0.9, np.array([0, 0, 0, 0, 0, 0, 0.9, 0.9], np.float32)),
        WindowTimeline(80.0, 160.0, right, np.array([right, right, 0, 0, 0, 0, 0, 0], np.float32)),
    ]
    (moment,) = merged_moments(windows, 3)
    assert (moment.start, moment.end) == (60.0, 100.0 if right > 0.3 else 80.0)


def test_a_moment_reaches_as_far_as_the_video_stands_out_from_others() -> None:
    line = np.array([0.4, 0.9, 0.45, 0.4, 0.2, 0.25], np.float32)
    for usual, end in ((np.inf, 20.0), (0.45, 20.0), (0.1, 30.0), (-0.3, 60.0)):
        assert merged_moments([WindowTimeline(0.0, 60.0, 0.9, line)], 3, usual)[0].end == end


# Of a film of two hours at 2 frames per second, 5 seconds are the answer.
LONG = 14_400


def test_a_short_moment_in_a_long_film_is_found(tmp_path: Path) -> None:
    """5 s from second 5000 on, among films without them and short videos."""
    sentence = open_featurizer("toy").sentence(QUERY)
    films = {f"film{i}": walk(LONG, i) for i in range(2)} | {"short": walk(60, 50)}
    moment = films["film1"][10_000:10_010]
    moment[:, :256] = 3 * sentence * np.linalg.norm(moment[:, :256], axis=1, keepdims=True) + moment[:, :256]
    with make_index(tmp_path / "index", features=make_features(films)) as index:
        assert [len(index.snapshot.vectors(number)["steps"]) for number in range(3)] == [119, 119, 1]
        hit, other = index.search(QUERY, 2).hits
    assert hit.video_id == "film1"
    assert hit.score > other.score + 0.2
    assert (hit.start, hit.end) == (5000, 5005)
    assert int(np.argmax(hit.relevance)) == int(5002 / 7200 * CURVE_PARTS)


def test_a_long_moment_in_noise_is_found_and_shown_whole(tmp_path: Path) -> None:
    """No frame of it is as near to the sentence as one frame of another video; means of its frames are nearer."""
    noise = np.random.default_rng(0).normal(size=(2, 240, 512)).astype(np.float32)
    (sentence,) = open_model("zero-shot", TOY).encode_texts([QUERY])
    films = dict(zip(("long", "short"), noise, strict=True))
    films["long"][100:140, :256] += 6 * sentence
    films["short"][50, :256] += 12 * sentence
    with make_index(tmp_path / "index", features=make_features(films), window=30.0, stride=30.0) as index:
        best = {hit.video_id: hit for hit in index.search(QUERY).hits}
    assert best["long"].score > best["short"].score + 0.1
    assert best["long"].start == pytest.approx(50, abs=2)
    assert best["long"].end == pytest.approx(70, abs=2)
