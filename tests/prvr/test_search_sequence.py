"""First this, then that: planted pairs in both orders, how far apart they may be, and what says so."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from commands import explained
from counting_encoder import COLOURS, NAME
from hypothesis import given
from hypothesis import strategies as st

from prvr.cli import main
from prvr_search import Library, Query
from prvr_search.films.toy_videos import write_mp4
from prvr_search.ranking.results import WindowTimeline, one_after_the_other

PAIRS = [*permutations(COLOURS, 2)]


def film(path: Path, shots: dict[int, str], seconds: int, seed: int) -> None:
    """A grey film with noise in which shots of a colour begin at some seconds and last two."""
    pixels = np.random.default_rng(seed).integers(60, 140, (2 * seconds, 16, 16, 3)).astype(np.uint8)
    for start, colour in shots.items():
        pixels[2 * start : 2 * start + 4, ..., COLOURS.index(colour)] += 110
    write_mp4(path, pixels, fps=2.0)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "films"
    folder.mkdir()
    for seed, (a, b) in enumerate(PAIRS):
        first, second = np.sort(np.random.default_rng(seed).choice(9, 2, replace=False)).tolist()
        film(folder / f"{a} {b}.mp4", {3 * first: a, 3 * second: b}, 30, seed)
    return folder


def test_the_order_of_two_things_is_found(films: Path) -> None:
    with Library(films, encoder=NAME, home=films.parent / "home") as library:
        library.update()
        ordered = [library.search(Query(a, then=b), update=False).hits for a, b in PAIRS]
        both = [library.search(Query([a, b]), update=False).hits for a, b in PAIRS]
    for (a, b), hits in zip(PAIRS, ordered, strict=True):
        assert hits[0].video_id == f"{a} {b}.mp4"
        assert hits[0].end - hits[0].start >= 3
        assert [(hits[0].start, hits[0].end)] == [(moment.start, moment.end) for moment in hits[0].moments]
    right = [
        [hit.video_id for hit in hits].index(f"{a} {b}.mp4") < [hit.video_id for hit in hits].index(f"{b} {a}.mp4")
        for (a, b), hits in zip(PAIRS, both, strict=True)
    ]
    assert sum(right) == len(PAIRS) / 2  # the control: both together say nothing of their order


def test_they_may_be_so_far_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "films").mkdir()
    film(tmp_path / "films" / "late.mp4", {1: "red", 50: "blue"}, 60, 0)
    film(tmp_path / "films" / "soon.mp4", {20: "red", 30: "blue"}, 60, 1)
    for within in ("1:00", "12"):
        command = ["search", str(tmp_path / "films"), "red", "--then", "blue", "--within", within, "--json", "-"]
        assert main([*command, "--encoder", NAME]) == 0
        found = json.loads(capsys.readouterr().out)["results"][0]
        assert found["query"] == "red, then blue"
        moments = {hit["video"]["id"]: (hit["start"], hit["end"]) for hit in found["hits"]}
        assert moments["soon.mp4"] == (pytest.approx(21, abs=1.5), pytest.approx(31, abs=1.5))
        length = np.ptp(moments["late.mp4"])
        assert length == pytest.approx(50, abs=3) if within == "1:00" else length <= 14
    assert found["hits"][0]["video"]["id"] == "soon.mp4"  # the other one has no such pair


def test_what_is_no_sequence_is_refused(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["search", str(films), "--encoder", NAME]
    assert "expected a positive number of seconds" in explained(
        [*command, "red", "--then", "blue", "--within", "0"], capsys
    )
    assert "--within can only be used with --then" in explained([*command, "red", "--within", "5"], capsys)
    assert "`without` and `then` need a sentence" in explained([*command, "--subtitles", "x", "--then", "blue"], capsys)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12), st.integers(1, 9))
def test_as_a_plain_loop(values: list[tuple[int, int]], within: int) -> None:
    first, then = np.array(values, np.float32).T
    end = float(len(values))
    found = one_after_the_other(
        [WindowTimeline(0.0, end, 0.0, first)], [WindowTimeline(0.0, end, 0.0, then)], float(within)
    )
    pairs = {(i, j): (first[i] + then[j]) / 2 for j in range(len(values)) for i in range(max(0, j - within), j)}
    if not pairs:
        assert found == []
        return
    (window,) = found
    assert window.score == max(pairs.values()) == window.scores.max()
    start, stop = window.moment or (0, 0)
    assert pairs[int(start), int(stop) - 1] == window.score
