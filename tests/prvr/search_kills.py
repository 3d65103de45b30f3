"""Changes of an index for processes that are killed, shared by the tests and by benchmarks/survival.py."""

from dataclasses import dataclass
from pathlib import Path

from search_files import forget, make_index, some_videos, walk, write_store

from prvr.data import atomic
from prvr.search import VideoIndex, sync
from prvr.video import VideoStore


@dataclass(frozen=True)
class Case:
    """A change of an index: which store is followed, and how."""

    store: VideoStore
    before: Path | None
    update: bool

    def act(self, index: Path) -> None:
        """Makes the index if it is not there, and carries the change out."""
        found = VideoIndex.open(index) if (index / "index.json").exists() else make_index(index)
        (found.update if self.update else found.add)(self.store)


def adding(folder: Path, videos: int) -> Case:
    """An index is made, and videos are put into it."""
    return Case(write_store(folder / "store", some_videos([20 + i for i in range(videos)])), None, False)


def updating(folder: Path, videos: int) -> Case:
    """A third of the videos is new, a third has changed, some have gone."""
    old = some_videos([20 + i for i in range(videos)])
    store = write_store(folder / "store", old)
    make_index(folder / "before", store=store).close()
    third = max(1, videos // 3)
    fresh = {f"new{i:03}.mp4": walk(15 + i, 500 + i) for i in range(third)}
    changed = {name: walk(17, 900 + i) for i, name in enumerate(list(old)[:third])}
    gone = list(old)[-max(1, videos // 6) :]
    return Case(forget(write_store(store.folder, fresh | changed), *gone), folder / "before", True)


def small_segments() -> None:
    """Three videos a segment: many writes."""
    sync.VIDEOS = 3


def half_written(index: Path) -> list[Path]:
    """What a kill has left that is no part of the index: temporary files and folders, segments that nothing names."""
    named = set(VideoIndex.open(index).source.segments) if (index / "index.json").exists() else set()
    segments = [path for path in (index / "segments").glob("*") if path.name not in named]
    return [*index.parent.glob(f"{atomic.HALF_WRITTEN}-*"), *segments, *index.glob(f"*{atomic.HALF_WRITTEN}")]
