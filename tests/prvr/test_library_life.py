"""The life of a collection: whatever happens to its disks, a search finds what a fresh library finds.

`PRVR_LIFE=20 pytest tests/prvr/test_library_life.py` runs 20 seeds of 30 changes; `PRVR_SEED` is the first of them.
"""

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from counting_encoder import NAME, Colours, film
from film_collections import refusing
from kills import die, killed

from prvr.errors import DataError
from prvr_search import Library, NothingEncoded

pytest.importorskip("av")
SEEDS, SEED = (int(os.environ.get(name, default)) for name, default in (("PRVR_LIFE", "1"), ("PRVR_SEED", "0")))
CHANGES, FILMS = (30, 40) if SEEDS > 1 else (10, 8)
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")


class Life:
    """A collection on two disks below one folder, and what may happen to it."""

    def __init__(self, base: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.base, self.random, self.patch = base, random.Random(seed), patch
        self.films, self.made = base / "films", 0
        self.disks = [self.films / name for name in ("first", "second")]
        self.away: dict[Path, Path] = {}
        for disk in self.disks:
            disk.mkdir(parents=True)
            (disk / "notes.txt").write_text("mine")
        for _ in range(FILMS):
            self.add()
        self.home = base / "home"

    def here(self) -> list[Path]:
        return sorted(self.films.rglob("*.mp4"))

    def plugged(self) -> list[Path]:
        return [disk for disk in self.disks if disk not in self.away]

    def some(self) -> Path | None:
        return self.random.choice(self.here()) if self.here() else None

    def new_path(self) -> Path | None:
        self.made += 1
        return self.random.choice(self.plugged()) / f"v{self.made}.mp4" if self.plugged() else None

    def library(self, home: Path | None = None) -> Library:
        return Library(self.films, encoder=NAME, home=home or self.home, device="cpu")

    # What may happen

    def draw(self, path: Path) -> None:
        self.made += 1
        film(path, self.made % 3, 60 + self.made % 190)

    def add(self) -> None:
        if path := self.new_path():
            self.draw(path)

    def rename(self) -> None:
        if (old := self.some()) and (path := self.new_path()):
            shutil.move(old, path)

    def copy(self) -> None:
        if (old := self.some()) and (path := self.new_path()):
            shutil.copy2(old, path)

    def replace(self) -> None:
        if path := self.some():
            self.draw(path)

    def delete(self) -> None:
        if path := self.some():
            path.unlink()

    def prune(self) -> None:
        """What was unplugged without a file system of its own cannot be told from what was deleted."""
        if not self.away:
            with self.library() as library, suppress(DataError):
                library.prune()

    def prune_with_read_errors(self) -> None:
        with refusing(Path, "open", self.base / "nothing", *self.here(), number=errno.EIO):
            self.prune()

    def unplug(self) -> None:
        if self.plugged():
            disk = self.random.choice(self.plugged())
            self.away[disk] = self.base / f"away-{disk.name}-{self.made}"
            disk.rename(self.away[disk])
            disk.mkdir()

    def plug_in(self) -> None:
        for disk, place in [*self.away.items()][:1]:
            del self.away[disk]
            disk.rmdir()
            place.rename(disk)

    def kill(self) -> None:
        self.add()
        killed(self.search, lambda: setattr(Colours, "finish", lambda _, rows: die() if len(rows) > 2 else rows))

    # What must hold

    def search(self, home: Path | None = None) -> list[tuple[str, float, int]]:
        """Names, scores and copies of all that is found; nothing if nothing is there."""
        try:
            with self.library(home) as library:
                if not library.update().listing.videos:
                    return []
                hits = library.search("something red", k=999, update=False).hits
        except NothingEncoded:
            return []
        return sorted((hit.video_id, round(hit.score, 3), len(hit.copies)) for hit in hits)

    def check(self, done: list[str]) -> None:
        found = self.search()
        with self.patch.context() as patch:
            patch.delenv("ENCODED")
            fresh = self.search(self.base / f"fresh-{len(done)}") if self.here() else []
        assert found == fresh, done
        encoded = Counter((self.base / "encoded.txt").read_text().splitlines())
        assert encoded.most_common(1)[0][1] == 1, (done, encoded.most_common(2))
        assert all((disk / "notes.txt").read_text() == "mine" for disk in self.plugged())


@pytest.fixture
def life(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ENCODED", str(tmp_path / "encoded.txt"))
    return Life(tmp_path, request.param, monkeypatch)


@pytest.mark.parametrize("life", range(SEED, SEED + SEEDS), indirect=True)
def test_whatever_happens_a_search_finds_what_a_fresh_library_finds(life: Life) -> None:
    acts: list[Callable[[], None]] = [
        life.add, life.rename, life.copy, life.replace, life.delete, life.unplug, life.plug_in, life.kill, life.prune,
        life.prune_with_read_errors,
    ]  # fmt: skip
    done: list[str] = []
    life.check(done)
    for _ in range(CHANGES):
        act = life.random.choice(acts)
        done.append(act.__name__)
        act()
        life.check(done)
    assert np.all([path.stat().st_size > 0 for path in life.here()])
