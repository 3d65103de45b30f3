"""`kill -9` while an index is changed, at drawn moments: it can be searched, and the rerun ends the same."""

import os
import random
import shutil
from pathlib import Path

import pytest
from kills import POINTS, at_write, killed
from search_files import QUERY, contents
from search_kills import Case, adding, half_written, small_segments, updating

from prvr.search import VideoIndex, sync, verify_index

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")

SEED, VIDEOS = 20261121, 12
RNG = random.Random(SEED)
WRITES = [RNG.randrange(1, 28) for _ in range(6)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "VIDEOS", sync.VIDEOS)
    small_segments()


@pytest.fixture(scope="module", params=[adding, updating])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return request.param(tmp_path_factory.mktemp("case"), VIDEOS)


def begun(case: Case, index: Path) -> Path:
    """The index as it is before the change."""
    if case.before is not None:
        shutil.copytree(case.before, index)
    return index


def check(case: Case, index: Path, straight: Path) -> None:
    """What is there is whole; a rerun does the rest, and the index is that of a run that nobody disturbed."""
    if (index / "index.json").exists():
        assert verify_index(index) == ()
        with VideoIndex.open(index) as opened:
            assert len(opened.search(QUERY, 99).hits) == len(opened)
    case.act(index)
    assert verify_index(index) == ()
    assert [path for path in half_written(index) if path.parent != index.parent] == []
    with VideoIndex.open(index) as left, VideoIndex.open(straight) as right:
        assert contents(left) == contents(right)
        assert left.search(QUERY, 99) == right.search(QUERY, 99)


@pytest.mark.parametrize(("write", "point"), list(zip(WRITES, POINTS * 2, strict=True)))
def test_killed_inside_a_write(case: Case, write: int, point: str, tmp_path: Path) -> None:
    index, straight = begun(case, tmp_path / "index"), begun(case, tmp_path / "straight")
    case.act(straight)
    if point == "renamed":  # of a segment's folder or of the manifest: fewer than files
        write = 1 + write % 5
    assert killed(lambda: case.act(index), at_write(write, point))
    assert half_written(index) or point == "renamed"
    check(case, index, straight)


def test_killed_at_any_time_again_and_again(case: Case, tmp_path: Path) -> None:
    """One index, killed from outside as often as it takes."""
    index, straight = begun(case, tmp_path / "index"), begun(case, tmp_path / "straight")
    case.act(straight)
    kills = 0
    for _ in range(8):
        kills += killed(lambda: case.act(index), after=RNG.uniform(0, 0.2))
        if (index / "index.json").exists():
            assert verify_index(index) == ()
    assert kills > 0
    check(case, index, straight)
