"""Hits that score alike at the same moment are one: no video is lost, and as many hits as were asked for remain."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_files import QUERY, make_features, make_index, some_videos

from prvr.encoders import VideoEntry
from prvr_search import CURVE_PARTS, Moment, SearchHit
from prvr_search.ranking.results import fold


def hit(
    name: str, score: float, duration: float = 100.0, peak: int = 20, width: int = 5, low: float = 0.1
) -> SearchHit:
    """A hit whose curve is low but for a peak, which is its best moment."""
    entry = VideoEntry(name, f"/videos/{name}", 1000, 0, name, duration, 200, 64, 48, "h264")
    start, end = (duration * part / CURVE_PARTS for part in (peak, peak + width))
    curve = tuple(score if peak <= part < peak + width else low for part in range(CURVE_PARTS))
    return SearchHit(entry, score, (Moment(start, end, score),), curve)


def names(one: SearchHit) -> list[str]:
    return [one.video_id, *(video.id for video in (*one.copies, *one.alike))]


ORIGINAL = hit("a.mp4", 0.9)


@pytest.mark.parametrize(
    ("other", "folded"),
    [
        (hit("a.webm", 0.88), True),
        (hit("short", 0.88, duration=98.8), False),  # more than 1 %
        (hit("worse", 0.8), False),
        (hit("later", 0.88, peak=22), False),
        (hit("other", 0.88, low=0.2), False),  # alike in its moment alone
        (replace(hit("flat", 0.9), relevance=(0.9,) * CURVE_PARTS), False),
        (replace(ORIGINAL, relevance=(-np.inf, *ORIGINAL.relevance[1:])), False),
    ],
)
def test_what_is_folded(other: SearchHit, folded: bool) -> None:
    assert len(fold([ORIGINAL, other])) == 2 - folded
    if folded:  # parts without a score are alike
        first, second = (replace(each, relevance=(*each.relevance[:-9], *[-np.inf] * 9)) for each in (ORIGINAL, other))
        assert [names(each) for each in fold([first, second])] == [[ORIGINAL.video_id, other.video_id]]


@pytest.mark.parametrize("between", [9, 10])
def test_a_hit_is_folded_into_one_of_the_ten_before_it(between: int) -> None:
    others = [hit(f"other {place}", 0.9, peak=place, width=1) for place in range(20, 20 + between)]
    assert len(fold([ORIGINAL, *others, hit("a.webm", 0.88)])) == 1 + between + (between == 10)


def test_short_videos_may_differ_by_half_a_second() -> None:
    lengths = (3.0, 3.4, 3.6)
    first, *others = (hit(str(length), 0.9, duration=length, peak=0, width=CURVE_PARTS // 2) for length in lengths)
    assert [names(each) for each in fold([first, *others])] == [["3.0", "3.4"], ["3.6"]]


HITS = st.lists(
    st.tuples(st.floats(0.5, 1), st.sampled_from([3.0, 3.3, 100.0, 100.9, 102.0]), st.integers(0, 3)), max_size=40
)


@given(HITS)
def test_no_video_is_lost_and_the_order_stays(rows: list[tuple[float, float, int]]) -> None:
    """Durations that differ much are never folded, and of ten neighbours no two are alike any more."""
    ranked = sorted(rows, key=lambda row: -row[0])
    hits = [hit(f"v{i}", score, length, 20 + peak) for i, (score, length, peak) in enumerate(ranked)]
    for i, each in enumerate(hits[::3]):  # every third has a copy
        hits[3 * i] = replace(each, copies=(replace(each.video, id=f"copy of {each.video_id}"),))
    folded = fold(hits)
    assert sorted(name for each in folded for name in names(each)) == sorted(
        name for each in hits for name in names(each)
    )
    place = {each.video_id: i for i, each in enumerate(hits)}
    order = [place[each.video_id] for each in folded]
    assert order == sorted(order)
    for each in folded:
        own = place[each.video_id]
        assert replace(each, alike=()) == hits[own]
        behind = [place[video.id] for video in each.alike if video.id in place]
        assert [own, *behind] == sorted({own, *behind})
        for video in each.alike:
            longer = max(video.duration, each.video.duration)
            assert abs(video.duration - each.video.duration) <= max(0.5, 0.01 * longer)
    few = fold(hits[:10])
    assert fold(few) == few


COUNT, ENCODINGS = 30, 4


def test_as_many_hits_as_were_asked_for_remain(tmp_path: Path) -> None:
    """Of videos in four encodings each, whose features differ a little; a search for all names every video once."""
    rng = np.random.default_rng(0)
    videos = {}
    for name, rows in some_videos(range(40, 40 + 8 * COUNT, 8)).items():
        scale = 0.005 * np.linalg.norm(rows, axis=1, keepdims=True) / np.sqrt(rows.shape[1])
        for number in range(ENCODINGS):
            videos[f"{number}/{name}"] = rows + scale * rng.standard_normal(rows.shape).astype(np.float32)
    with make_index(tmp_path / "index", features=make_features(videos)) as index:
        for k in (7, COUNT):
            for result in index.search_many([QUERY, "a blue circle rises", "something large"], k):
                assert len(result.hits) == k
                assert result.folded >= k - 1
                for each in result.hits:
                    assert len({name.split("/")[1] for name in names(each)}) == 1
        everything = index.search(QUERY, 1000)
        assert sorted(name for each in everything.hits for name in names(each)) == list(index.video_ids)
        assert len(everything.hits) < 1.5 * COUNT
