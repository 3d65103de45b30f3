"""Encoding: features of a file are those of its frames, and no file stops or changes the others."""

import os
import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_films import INTACT, damaged_films
from kills import POINTS, at_write, killed
from video_files import MeanColour, noise, plain, write_video

from prvr.encoders import FeatureSpec, open_encoder
from prvr_search.films import VideoError, list_videos, open_video
from prvr_search.films.thumbnails import thumbnail
from prvr_search.store.encoding import Update, encode_video
from prvr_search.store.features import FeatureFile, encoder_key
from prvr_search.store.store import Store

pytest.importorskip("av")


def encode(
    folder: Path, encoder: Any, home: Path, *, rate: float = 2.0, **options: Any
) -> tuple[Update, dict[str, FeatureFile]]:
    """Encodes the videos of a folder, as a library does; gives what was done and what is kept of each."""
    store, spec, listing = Store(home), FeatureSpec.of(encoder, rate), list_videos(folder)
    report = Update(store, folder, listing, spec, lambda: encoder, **options).run()
    key, videos = encoder_key(spec), store.folders.known(folder, listing.videos)
    films = {film.sha256 for film in store.films(key).values() if film.frames}
    return report, {video.id: store.read(key, video.sha256) for video in videos if video.sha256 in films}


def kept(home: Path) -> dict[str, bytes]:
    """The arrays of a library."""
    return {path.name: path.read_bytes() for path in sorted((home / "features").rglob("*.features"))}


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Three good videos."""
    folder = tmp_path / "videos"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(("a.mp4", "b.mp4", "sub/c.mp4")):
        write_video(folder / name, plain(range(20 + number, 220, 10)))
    return folder


def test_damaged_films_neither_stop_nor_change_the_others(tmp_path: Path) -> None:
    encoder = open_encoder("toy")
    films = tmp_path / "films"
    damaged = damaged_films(films, seed=0, count=60)
    report, found = encode(films, encoder, tmp_path / "store")
    failed = {one.id for one in report.unreadable}
    assert {*report.encoded, *report.moved, *failed} == {*INTACT, *(path.name for path in damaged)}
    for one in report.unreadable:
        assert one.reason
        assert one.remedy.endswith(".")
    for path in damaged:
        path.rename(tmp_path / path.name)
    _, expected = encode(films, encoder, tmp_path / "expected")
    for name in INTACT:
        np.testing.assert_array_equal(found[name].rows, expected[name].rows)
    assert 20 < len(failed) < 60 > len(report.encoded) > 20
    for path in damaged[:20]:  # the pages of results show pictures of them
        with suppress(VideoError):
            thumbnail(tmp_path / path.name, 0.5)


def test_a_picture_that_stands_for_a_day_is_encoded_once_and_takes_little_memory(tmp_path: Path) -> None:
    class Counts(MeanColour):
        encoded, dim = 0, 64

        def encode(self, frames: np.ndarray) -> np.ndarray:
            self.encoded += len(frames)
            return super().encode(frames).repeat(22, 1)[:, :64]

        def finish(self, rows: np.ndarray) -> np.ndarray:
            return rows

    encoder, count = Counts(), 2 * 86_390
    write_video(tmp_path / "day.mp4", plain([20, 90]), times=[0, 86_390_000])
    tracemalloc.start()
    _, found = encode(tmp_path, encoder, tmp_path / "store")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * count * 64 * 4
    features = found["day.mp4"].rows
    assert len(features) == count
    assert np.ptp(features[:, 0]) == 0
    assert encoder.encoded == 1


@pytest.mark.parametrize("batch_size", [1, 7])
def test_features_of_a_file_are_those_of_its_frames(
    videos: Path, tmp_path: Path, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = open_encoder("toy")
    _, kept = encode(videos, encoder, tmp_path / "store", rate=5.0)
    with open_video(videos / "a.mp4") as video:
        prepared = np.stack([encoder.prepare(frame.pixels) for frame in video.sample(5.0)])
    expected = encoder.finish(encoder.encode(prepared))
    monkeypatch.setattr("prvr_search.store.encoding._BATCH", batch_size)
    with open_video(videos / "a.mp4") as video:
        found = encode_video(video, encoder, 5.0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kept["a.mp4"].rows, expected, rtol=1e-3, atol=1e-3)  # kept in half precision
    film = kept["a.mp4"].film
    assert (film.frames, film.duration, film.codec) == (10, 2.0, "h264")


def test_a_file_that_grows_while_it_is_read_is_left_for_the_next_time(videos: Path, tmp_path: Path) -> None:
    class Appends(MeanColour):
        def encode(self, frames: np.ndarray) -> np.ndarray:
            with (videos / "a.mp4").open("ab") as file:
                file.write(b"more")
            return super().encode(frames)

    report, found = encode(videos, Appends(), tmp_path / "store")
    assert "changed while being read" in report.unreadable[0].reason
    assert [*found] == ["b.mp4", "sub/c.mp4"]
    assert encode(videos, MeanColour(), tmp_path / "store")[0].encoded == ["a.mp4"]


def test_an_encoder_that_fails_stops_the_work_and_leaves_what_was_done(videos: Path, tmp_path: Path) -> None:
    class Fails(MeanColour):
        def encode(self, frames: np.ndarray) -> np.ndarray:
            if frames.mean() > 230:
                raise RuntimeError("out of memory")
            return super().encode(frames)

    class Nothing(MeanColour):
        def encode(self, frames: np.ndarray) -> np.ndarray:
            return np.full((len(frames), 3), np.nan, np.float32)

    write_video(videos / "b.mp4", plain([240] * 300))  # more than is decoded ahead
    with pytest.raises(RuntimeError, match="out of memory"):
        encode(videos, Fails(), tmp_path / "store", rate=10.0)
    assert encode(videos, MeanColour(), tmp_path / "store", rate=10.0)[0].encoded == ["b.mp4", "sub/c.mp4"]
    report, _ = encode(videos, Nothing(), tmp_path / "other")
    assert {one.reason for one in report.unreadable} == {"the encoder gives NaN or infinity for it"}


# `kill -9`, at drawn moments: what was finished is kept, and the rest is done by the next run.

COUNT = 5
RNG = random.Random(20261125)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(COUNT):
        write_video(folder / f"v{number}.mp4", noise(30, number))
    return folder


@pytest.fixture(scope="module")
def straight(noisy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The arrays of a run that nobody disturbed."""
    home = tmp_path_factory.mktemp("straight")
    encode(noisy, MeanColour(), home)
    return kept(home)


def check_rest(noisy: Path, home: Path, straight: dict[str, bytes]) -> None:
    """What is there is whole, and the next run does the rest and no more."""
    left = kept(home)
    assert left.items() <= straight.items()
    report, found = encode(noisy, MeanColour(), home)
    assert len(report.encoded) == COUNT - len(left)
    assert len(found) == COUNT
    assert kept(home) == straight


@forks
@pytest.mark.parametrize("number", [RNG.randrange(2, COUNT + 2) for _ in range(3)])
@pytest.mark.parametrize("point", POINTS)
def test_killed_inside_a_write(
    point: str, number: int, noisy: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    act: Callable[[], object] = lambda: encode(noisy, MeanColour(), tmp_path / "home")  # noqa: E731
    assert killed(act, at_write(number, point))
    check_rest(noisy, tmp_path / "home", straight)
