"""`kill -9` during extraction, at drawn moments: nothing that was finished is lost, and the rerun ends the same."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kills import POINTS, at_write, die, killed
from test_video_extract import contents
from video_files import MeanColour, noise, write_video

from prvr.data import atomic
from prvr.video import VideoStore, extract

pytest.importorskip("av")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")

SEED, COUNT = 20261121, 6


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(COUNT):
        write_video(folder / f"v{number}.mp4", noise(60, number))
    return folder


@pytest.fixture(scope="module")
def straight(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The store of a run that nobody disturbed."""
    store = tmp_path_factory.mktemp("straight") / "store"
    extract([videos], MeanColour(), store, batch_size=4)
    return contents(store)


def act(videos: Path, store: Path) -> Callable[[], object]:
    return lambda: extract([videos], MeanColour(), store, batch_size=4)


def check(videos: Path, store: Path, straight: dict[str, bytes]) -> None:
    """What is there is whole; a rerun does the rest, and the store is that of a run that nobody disturbed."""
    left: set[str] = set()
    if (store / "store.json").exists():
        opened = VideoStore(store)
        opened.verify()
        left = set(opened.video_ids)
    report = extract([videos], MeanColour(), store, batch_size=4)
    assert {one.id for one in report.unchanged} == left
    assert len(report.extracted) == COUNT - len(left)
    assert contents(store) == straight
    VideoStore(store).verify()


RNG = random.Random(SEED)


@pytest.mark.parametrize("moment", [RNG.randrange(1, 3 * COUNT + 1) for _ in range(8)])
def test_killed_between_batches(videos: Path, straight: dict[str, bytes], tmp_path: Path, moment: int) -> None:
    """Three batches a video."""

    def prepare() -> None:
        real, left = MeanColour.encode, [moment]

        def encode(self: MeanColour, frames: object) -> object:
            left[0] -= 1
            return real(self, frames) if left[0] else die()  # type: ignore[arg-type]

        MeanColour.encode = encode  # type: ignore[method-assign]

    assert killed(act(videos, tmp_path / "store"), prepare)
    check(videos, tmp_path / "store", straight)


@pytest.mark.parametrize("number", [RNG.randrange(1, COUNT + 2) for _ in range(4)])
@pytest.mark.parametrize("point", POINTS)
def test_killed_inside_a_write(
    videos: Path, straight: dict[str, bytes], tmp_path: Path, number: int, point: str
) -> None:
    """The first write is that of the header."""

    assert killed(act(videos, tmp_path / "store"), at_write(number, point))
    half = list((tmp_path / "store").rglob(f"*{atomic.HALF_WRITTEN}"))
    assert bool(half) == (point != "renamed")
    check(videos, tmp_path / "store", straight)


def test_killed_at_any_time_again_and_again(videos: Path, straight: dict[str, bytes], tmp_path: Path) -> None:
    """One store, killed from outside as often as it takes."""
    start = time.perf_counter()
    assert not killed(act(videos, tmp_path / "whole"))
    whole = time.perf_counter() - start
    store, kills = tmp_path / "store", 0
    for _ in range(12):
        kills += killed(act(videos, store), after=RNG.uniform(0, 0.4) * whole)
        if (store / "store.json").exists():
            VideoStore(store).verify()
    assert kills > 0
    extract([videos], MeanColour(), store, batch_size=4)
    assert contents(store) == straight
