"""Hits that score alike at the same moment are one: no video is lost, and as many hits as were asked for remain."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_files import QUERY, make_features, make_index, some_videos, tiny_model, walk

from prvr.encoders import VideoEntry
from prvr_search import CURVE_PARTS, Moment, SearchHit, VideoIndex, open_model
from prvr_search.results import fold


def hit(
    name: str, score: float, duration: float = 100.0, peak: int = 20, width: int = 5, low: float = 0.1
) -> SearchHit:
    """A hit whose curve is low but for a peak, which is its best moment."""
    entry = VideoEntry(name, f"/videos/{name}", 1000, 0, name, duration, 200, 64, 48, "h264")
    start, end = (duration * part / CURVE_PARTS for part in (peak, peak + width))
    curve = tuple(score if peak <= part < peak + width else low for part in range(CURVE_PARTS))
    return SearchHit(entry, score, start, end, (Moment(start, end, score),), curve)


def names(one: SearchHit) -> list[str]:
    return [one.video_id, *(video.id for video in (*one.copies, *one.alike))]


ORIGINAL = hit("a.mp4", 0.9)


@pytest.mark.parametrize(
    ("other", "folded"),
    [
        (hit("a.webm", 0.88), True),
        (hit("a.webm", 0.88, duration=100.9), True),
        (hit("short", 0.88, duration=98.8), False),  # more than 1 %
        (hit("worse", 0.8), False),
        (hit("later", 0.88, peak=22), False),
        (hit("longer", 0.88, width=9), False),
        (hit("other", 0.88, low=0.2), False),  # alike in its moment alone
        (replace(hit("flat", 0.9), relevance=(0.9,) * CURVE_PARTS), False),
        (replace(ORIGINAL, relevance=(-np.inf, *ORIGINAL.relevance[1:])), False),
    ],
)
def test_what_is_folded(other: SearchHit, folded: bool) -> None:
    assert len(fold([ORIGINAL, other])) == 2 - folded


def test_short_videos_may_differ_by_half_a_second() -> None:
    lengths = (3.0, 3.4, 3.6)
    first, *others = (hit(str(length), 0.9, duration=length, peak=0, width=CURVE_PARTS // 2) for length in lengths)
    assert [names(one) for one in fold([first, *others])] == [["3.0", "3.4"], ["3.6"]]


def test_parts_without_a_score_are_alike() -> None:
    first, second = (
        replace(one, relevance=(*one.relevance[:-9], *[-np.inf] * 9)) for one in (ORIGINAL, hit("a.webm", 0.89))
    )
    assert [names(one) for one in fold([first, second])] == [["a.mp4", "a.webm"]]


HITS = st.lists(
    st.tuples(st.floats(0.5, 1), st.sampled_from([3.0, 3.3, 100.0, 100.9, 102.0]), st.integers(0, 3)), max_size=40
)


def made(rows: list[tuple[float, float, int]]) -> list[SearchHit]:
    """Hits, best first; every third has a copy."""
    ranked = sorted(rows, key=lambda row: -row[0])
    hits = [hit(f"v{i}", score, length, 20 + peak) for i, (score, length, peak) in enumerate(ranked)]
    return [
        one if i % 3 else replace(one, copies=(replace(one.video, id=f"copy of {one.video_id}"),))
        for i, one in enumerate(hits)
    ]


@given(HITS)
def test_no_video_is_lost_and_the_order_stays(rows: list[tuple[float, float, int]]) -> None:
    hits = made(rows)
    folded = fold(hits)
    assert sorted(name for one in folded for name in names(one)) == sorted(name for one in hits for name in names(one))
    place = {one.video_id: i for i, one in enumerate(hits)}
    kept = [place[one.video_id] for one in folded]
    assert kept == sorted(kept)
    for one in folded:
        assert replace(one, alike=()) == hits[place[one.video_id]]
        behind = [place[video.id] for video in one.alike if video.id in place]
        assert behind == sorted(behind)
        assert all(i > place[one.video_id] for i in behind)


@given(HITS)
def test_distinct_durations_are_never_folded(rows: list[tuple[float, float, int]]) -> None:
    for one in fold(made(rows)):
        for video in one.alike:
            difference = abs(video.duration - one.video.duration)
            assert difference <= max(0.5, 0.01 * max(video.duration, one.video.duration))


@given(HITS)
def test_folding_again_changes_nothing_that_is_close(rows: list[tuple[float, float, int]]) -> None:
    """Of ten neighbours no two are alike any more."""
    folded = fold(made(rows)[:10])
    assert fold(folded) == folded


COUNT, ENCODINGS = 30, 4


@pytest.fixture(scope="module")
def reencoded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VideoIndex]:
    """Videos in four encodings each: their features differ a little."""
    rng = np.random.default_rng(0)
    videos = {}
    for name, rows in some_videos(range(40, 40 + 8 * COUNT, 8)).items():
        scale = 0.005 * np.linalg.norm(rows, axis=1, keepdims=True) / np.sqrt(rows.shape[1])
        for number in range(ENCODINGS):
            noise = rng.standard_normal(rows.shape).astype(np.float32)
            videos[f"{number}/{name}"] = rows + scale * noise
    with make_index(tmp_path_factory.mktemp("fold") / "index", features=make_features(videos)) as index:
        yield index


@pytest.mark.parametrize("k", [1, 2, 7, COUNT])
def test_as_many_hits_as_were_asked_for_remain(reencoded: VideoIndex, k: int) -> None:
    results = reencoded.search_many([QUERY, "a blue circle rises", "something large"], k)
    for result in results:
        assert len(result.hits) == k
        assert result.folded >= k - 1
        for one in result.hits:
            assert len({name.split("/")[1] for name in names(one)}) == 1


def test_a_search_for_all_names_every_video_once(reencoded: VideoIndex) -> None:
    everything = reencoded.search(QUERY, 1000)
    assert sorted(name for one in everything.hits for name in names(one)) == list(reencoded.video_ids)
    assert len(everything.hits) < 1.5 * COUNT


def test_hits_of_stages_are_folded_too(tmp_path: Path) -> None:
    rows = walk(60, 1)
    videos = some_videos([30, 41, 52, 75, 90]) | {"x.mp4": rows, "x.webm": rows * np.float32(1.001)}
    stages = [{"kind": "zero_shot", "weight": 10.0, "top_k": 3}]
    features = make_features(videos)
    model = open_model(tiny_model(tmp_path / "model"), features.spec, stages=stages)
    with make_index(tmp_path / "index", model, features) as index:
        for k in range(1, 7):
            result = index.search(QUERY, k)
            assert len(result.hits) == k
        (pair,) = (names(one) for one in result.hits if one.alike)
        assert sorted(pair) == ["x.mp4", "x.webm"]
