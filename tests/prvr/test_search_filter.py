"""Filters of a search: what passes is what a plain loop over the records says, and the best of it are found."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clip_sources import BruteBackend
from fastapi.testclient import TestClient
from search_files import QUERY, TOY, make_features, make_index, make_library, some_videos, tiny_model

from prvr.cli import main
from prvr.encoders import VideoEntry, VideoFeatures
from prvr.errors import InputError
from prvr_search import Library, SearchFilter, VideoIndex
from prvr_search.ranking.filters import CONDITIONS
from prvr_search.ranking.scores import num_candidates
from prvr_search.serve import create_app

DAY = 24 * 3600
NAMES = ["Day 1/beach.mp4", "Day 1/night/fire.MKV", "day 10/beach.mp4", "beach.mp4", "holiday [x]/a.webm"]
VIDEOS = [
    VideoEntry(name, f"/films/{name}", 1, number * DAY * 10**9, "0" * 64, 10.0 * (number + 1), 20, 64, 48, "h264")
    for number, name in enumerate(NAMES)
]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (SearchFilter(folders=["day 1/night"]), [1]),
        (SearchFilter(folders=["holiday [x]", "*/night"]), [1, 4]),
        (SearchFilter(folders=["."]), [0, 1, 2, 3, 4]),
        (SearchFilter(folders=["beach"]), []),
        (SearchFilter(folders=["DAY 1"], names=["*.Mp4"]), [0]),
        (SearchFilter(names=["beach.*", "a.*"]), [0, 2, 3, 4]),
        (SearchFilter(folders=["day*"], names=["beach.mp4"]), [0, 2]),
        (SearchFilter(longer=20.0, shorter=20.0), [1]),
        (SearchFilter(after=datetime(1970, 1, 2, tzinfo=UTC), before=datetime(1970, 1, 4, tzinfo=UTC)), [1, 2]),
    ],
)
def test_what_passes(where: SearchFilter, expected: list[int]) -> None:
    assert where.numbers(VIDEOS) == expected


def test_a_time_without_a_zone_is_local() -> None:
    at = datetime(2026, 3, 1, 12)
    videos = [replace(VIDEOS[0], mtime_ns=int((at.timestamp() + off) * 10**9)) for off in (-1, 0, 1)]
    assert SearchFilter(after=at).numbers(videos) == [1, 2]
    assert SearchFilter(before=at).numbers(videos) == [0]


@pytest.mark.usefixtures("berlin")
def test_a_day_is_the_one_that_results_show() -> None:
    """Filmed in India, found from Berlin, where it was still the day before."""
    india = [replace(VIDEOS[0], filmed="2010-02-03T04:05:06+05:30")]
    day, here = datetime(2010, 2, 3), datetime(2010, 2, 2, 23, 35, 6).astimezone()
    assert SearchFilter(after=day, before=datetime(2010, 2, 3, 5)).numbers(india) == [0]
    assert SearchFilter(before=day).numbers(india) == []
    assert SearchFilter(after=here, before=here + timedelta(seconds=1)).numbers(india) == [0]


def test_what_nothing_can_meet_is_refused() -> None:
    day = datetime(2026, 1, 2)
    for name, conditions in (
        ("names", {"names": ["a", ""]}), ("shorter", {"shorter": -1.0}), ("longer", {"longer": 3.0, "shorter": 2.0}),
        ("after", {"after": day, "before": day}),
    ):  # fmt: skip
        with pytest.raises(InputError, match=name) as caught:
            SearchFilter(**conditions)
        assert "datetime" not in str(caught.value)


def test_a_condition_is_an_option_a_parameter_and_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--help"]) == 0
    options = re.findall(r"--([a-z]+) (?:PATTERN|DATE|SECONDS)", capsys.readouterr().out)
    names = [condition.name for condition in CONDITIONS.values()]
    assert options[-len(names) :] == names
    library = Library(make_library(tmp_path, make_features(some_videos([8]))))
    with TestClient(create_app(library, update=False), "http://127.0.0.1") as client:
        page, schema = client.get("/").text, client.get("/openapi.json").json()
    inputs = re.findall(r'<label>[^<]+ <input name="([a-z]+)"', page)
    assert inputs == ["without", *names, "subtitles", "then", "within"]
    parameters = {each["name"] for each in schema["paths"]["/api/search"]["get"]["parameters"]}
    assert parameters >= set(names)
    assert list(schema["components"]["schemas"]["FilterRequest"]["properties"]) == list(CONDITIONS)


COUNT = 120
"""Videos of the index: more than a backend proposes for the few that are wanted."""


@pytest.fixture(scope="module")
def features() -> VideoFeatures:
    """Videos of different durations, in three folders; two windows for every third."""
    rows = some_videos([30 if n % 3 == 0 else 8 + n % 5 for n in range(COUNT)]).values()
    made = make_features({f"{'abc'[number % 3]}/v{number:03}.mp4": some for number, some in enumerate(rows)})
    days = zip(made.entries.items(), range(0, COUNT * DAY * 10**9, DAY * 10**9), strict=True)
    entries = {name: replace(entry, mtime_ns=time) for (name, entry), time in days}
    return VideoFeatures(TOY, entries, lambda entry: made.read(entry.id))


@pytest.fixture(scope="module")
def folder(features: VideoFeatures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("filtered")
    tiny_model(base / "model")
    return base / "index"


def opened(folder: Path, features: VideoFeatures, **options: Any) -> VideoIndex:
    return make_index(folder, folder.parent / "model", features, window=10.0, stride=5.0, **options)


FILTERS = [
    SearchFilter(folders=["b"]),
    SearchFilter(after=datetime(1970, 3, 1, tzinfo=UTC), shorter=10.0),
]


@pytest.mark.parametrize("backend", ["exact", BruteBackend.name])
@pytest.mark.parametrize("where", FILTERS)
def test_the_best_of_those_that_pass_are_found(
    folder: Path, features: VideoFeatures, backend: str, where: SearchFilter
) -> None:
    """They are those of the list of all videos, with the same scores and moments."""
    queries, k = [QUERY, "it falls"], 3
    assert num_candidates(k) < COUNT
    with opened(folder, features, backend=backend) as index, opened(folder, features) as exact:
        found = index.search_many(queries, k, where=where)
        everything = exact.search_many(queries, COUNT)
        for one, full in zip(found, everything, strict=True):
            passed = [hit for hit in full.hits if len(where.numbers([hit.video]))]
            assert len(passed) > k
            assert one.hits == tuple(passed[:k])
            assert one.videos == COUNT
        assert index.search(QUERY, k, where=where) == found[0]
        assert index.search_many(queries, k, where=SearchFilter(names=["none"]))[1].hits == ()
