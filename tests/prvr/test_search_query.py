"""More than one sentence: by picture, by moment, with and without, and copies of a film as one hit."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from clip_sources import BruteBackend
from commands import explained
from PIL import Image
from search_files import QUERY, TOY, make_features, make_index, make_library, some_videos, tiny_model, walk

from prvr.cli import main
from prvr.encoders import open_encoder
from prvr.errors import InputError
from prvr_search import Passage, Query, SearchFilter, SearchResult, VideoIndex, open_model
from prvr_search.ranking.query import WITHOUT, query_vector
from prvr_search.ranking.scores import num_candidates

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 50), "blue": (40, 80, 230), "white": (244, 244, 244)}


def square(colour: str, ground: int = 90, size: int = 64) -> np.ndarray:
    """A square of a colour on grey."""
    pixels = np.full((size, size, 3), ground, np.uint8)
    pixels[size // 4 : -size // 4, size // 4 : -size // 4] = COLOURS[colour]
    return pixels


def features(*pictures: np.ndarray) -> np.ndarray:
    encoder = open_encoder("toy")
    return encoder.finish(encoder.encode(np.stack([encoder.prepare(one) for one in pictures])))


def unit(row: np.ndarray) -> np.ndarray:
    return row / np.linalg.norm(row)


FILMS = {
    "day 1/red.mp4": ["white", "white", "red", "red", "red", "red"],
    "day 1/sky.mp4": ["blue", "blue", "white", "white"],
    "day 2/meadow.mp4": ["green", "green", "blue", "green"],
    "lamp.mp4": ["white", "white", "white", "white"],
}
COPIES = {"backup/red.mp4": "day 1/red.mp4", "a copy.mp4": "day 1/red.mp4"}


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    own = {name: features(*map(square, colours)) for name, colours in FILMS.items()}
    return own | {name: own[original] for name, original in COPIES.items()}


@pytest.fixture(scope="module")
def index(rows: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VideoIndex]:
    base = tmp_path_factory.mktemp("asked")
    with make_index(base / "index", features=make_features(rows)) as index:
        yield index


def ids(result: SearchResult) -> list[str]:
    return [hit.video_id for hit in result.hits]


# By picture.


def test_a_picture_finds_the_film_that_shows_it_and_when(index: VideoIndex, tmp_path: Path) -> None:
    Image.fromarray(square("blue")).save(tmp_path / "sky.png")
    by_file = index.search(Query(image=tmp_path / "sky.png"))
    best = by_file.hits[0]
    assert {best.video_id, by_file.hits[1].video_id} == {"day 1/sky.mp4", "day 2/meadow.mp4"}
    assert best.score == pytest.approx(1, abs=1e-3)  # the very frame
    sky = next(hit for hit in by_file.hits if hit.video_id == "day 1/sky.mp4")
    assert (sky.start, sky.end) == (0.0, 1.0)
    assert by_file.query == "like sky.png"
    for image in ((tmp_path / "sky.png").read_bytes(), square("blue")):
        assert index.search(Query(image=image)).hits == by_file.hits


def test_pictures_are_read_by_the_encoder_of_the_index_alone(
    index: VideoIndex, rows: dict[str, np.ndarray], tmp_path: Path
) -> None:
    query = Query(image=square("red"))
    np.testing.assert_allclose(query_vector(query, index.snapshot), unit(rows["day 1/red.mp4"][2, :256]), atol=1e-6)
    trained = make_index(tmp_path / "index", tiny_model(tmp_path / "model"))
    with trained, pytest.raises(InputError, match=r"reads sentences and no pictures.*leave out --model"):
        trained.search(query)


# By moment.


def test_a_moment_is_the_mean_of_its_frames(index: VideoIndex, rows: dict[str, np.ndarray]) -> None:
    joint = rows["day 2/meadow.mp4"][:, :256]
    for start, end, parts in ((2.0, None, [3]), (0.4, 1.1, [0, 1, 2]), (0.5, 1, [1])):
        expected = unit((joint[parts] / np.linalg.norm(joint[parts], axis=1, keepdims=True)).sum(0))
        query = Query(like=("day 2/meadow.mp4", start, end))
        np.testing.assert_allclose(query_vector(query, index.snapshot), expected, atol=1e-3)


def test_the_film_that_is_asked_for_and_its_copies_are_left_out(index: VideoIndex) -> None:
    for name in ("day 1/red.mp4", *COPIES):
        assert sorted(ids(index.search(Query(like=(name, 0.0))))) == ["day 1/sky.mp4", "day 2/meadow.mp4", "lamp.mp4"]
    found = index.search(Query(like=Passage("day 1/red.mp4", 0.0, 1.0)), k=1)
    assert found.hits[0].score == pytest.approx(1, abs=1e-3)  # white, as the lamp
    assert found.query == "like day 1/red.mp4@0:00-0:01"
    inside = index.search(Query(like=("day 1/red.mp4", 0.0)), where=SearchFilter(folders=["backup", "day 1"]))
    assert ids(inside) == ["day 1/sky.mp4"]


def test_a_trained_model_compares_moments_and_its_whole_score_orders_sentences_only(tmp_path: Path) -> None:
    videos = make_features(some_videos([30, 8, 12, 9, 11, 40]))
    model = open_model(tiny_model(tmp_path / "model", frame_query="words"), TOY)
    with make_index(tmp_path / "index", model, videos, window=10.0, stride=5.0) as index:
        query = Query(["a circle", QUERY], without="blue", like=("v000.mp4", 6.0))
        result, text = index.search(query), query_vector(query, index.snapshot)
        weights = {"clips": model.clip_weight, "frames": model.frame_weight}
        assert "v000.mp4" not in ids(result)
        for hit in result.hits:
            arrays, windows = index.snapshot.vectors(index.video_ids.index(hit.video_id)), np.float32(0)
            for name, weight in weights.items():
                ends = np.cumsum(arrays[f"{name}.counts"])[:-1]
                windows = windows + weight * np.array([max(part @ text) for part in np.split(arrays[name], ends)])
            assert hit.score == pytest.approx(windows.max(), abs=1e-5)
        assert index.search_many([query, QUERY]) == (result, index.search(QUERY))


# With and without.


def test_what_is_wanted_is_added_and_what_is_not_is_taken_away(index: VideoIndex) -> None:
    def read(text: str) -> np.ndarray:
        return index.model.encode_texts([text])[0]

    wanted = unit(read("a red square") + read("a white square"))
    np.testing.assert_allclose(
        query_vector(Query(["a red square", "a white square"]), index.snapshot), wanted, atol=1e-6
    )
    other = unit(read("blue") + read("snow"))
    query = Query(["a red square", "a white square"], without=["blue", "snow"])
    np.testing.assert_allclose(query_vector(query, index.snapshot), unit(wanted - WITHOUT * other), atol=1e-6)
    assert str(query) == "a red square + a white square, without blue, without snow"
    picture = unit(query_vector(Query(image=square("blue")), index.snapshot) + read("white"))
    np.testing.assert_allclose(query_vector(Query("white", image=square("blue")), index.snapshot), picture, atol=1e-6)
    assert index.search(Query(QUERY)) == index.search(QUERY)


# Copies.


def test_copies_are_one_hit(tmp_path: Path) -> None:
    own = {f"v{number:03}.mp4": walk(4, number // 3) for number in range(120)}  # each film three times
    names = [*own]
    assert num_candidates(2) < len(own)
    for backend in ("exact", BruteBackend.name):
        with make_index(tmp_path / "index", features=make_features(own), backend=backend) as index:
            everything = index.search(QUERY, 120)
            assert sorted(ids(everything)) == names[::3]
            assert index.search(QUERY, 2).hits == everything.hits[:2]
            some = index.search(QUERY, 120, where=SearchFilter(names=["v0[4-9]*", "v1*"]))
            assert sorted(ids(some)) == [names[40], *names[42::3]]  # of one film the second copy comes first
            for hit in (*everything.hits, *some.hits):
                film = names.index(hit.video_id) // 3 * 3
                assert [copy.id for copy in hit.copies] == [
                    name for name in names[film : film + 3] if name != hit.video_id
                ]


# What is refused.


# The command.


def test_the_command_asks_for_all_of_it(
    index: VideoIndex, rows: dict[str, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(make_library(tmp_path / "films", make_features(rows)))
    picture, like = str(tmp_path / "sky.png"), "day 1/red.mp4@0-1"
    Image.fromarray(square("blue")).save(picture)
    for given, query in (
        (["red", "--with", "white", "--without", "blue"], Query(["red", "white"], "blue")),
        (["red", "--image", picture, "--like", like], Query("red", (), picture, ("day 1/red.mp4", 0.0, 1.0))),
    ):
        assert main(["search", place, *given, "--json", "-"]) == 0
        found = json.loads(capsys.readouterr().out)["results"][0]
        expected = index.search(query)
        assert found["query"] == expected.query
        assert [hit["video"]["id"] for hit in found["hits"]] == ids(expected)
    for words, problem in (
        (["--like", "red.mp4@0"], "no such video"),
        (["--like", "lamp.mp4@2.1"], "ends at 0:02"),
        (["--like", "lamp.mp4"], "expected VIDEO@TIME"),
        (["--like", "lamp.mp4@9-8"], "expected an end after the start"),
        (["--image", "nowhere.png"], "no such file"),
    ):
        assert problem in explained(["search", place, *words], capsys)
