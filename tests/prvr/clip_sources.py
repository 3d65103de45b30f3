"""A clip source in memory, brute force over it, and the laws that every candidate backend keeps."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from prvr.search.backends import CandidateBackend, ClipBlock

DIM, CLIPS, BLOCK = 16, 4, 16
Backend = TypeVar("Backend", bound=CandidateBackend)


def clips_of(key: int, clips: int = CLIPS, dim: int = DIM) -> np.ndarray:
    """The clips of a window, the same for the same key: near one another, and far from those of other windows."""
    generator = np.random.default_rng(key)
    rows = generator.standard_normal(dim) + 0.5 * generator.standard_normal((clips, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class MemorySource:
    """Segments of windows. `read` notes which segments were read to their end."""

    def __init__(self, folder: Path, *, clips: int = CLIPS, index_id: str = "a1b2c3") -> None:
        self.folder, self.index_id, self.dim, self.clips = folder, index_id, DIM, clips
        self.windows: dict[str, list[int]] = {}
        self.removed: set[int] = set()
        self.read: list[str] = []

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.windows)

    def keys(self, segment: str) -> np.ndarray:
        return np.array(self.windows[segment], np.int64)

    def blocks(self, segment: str) -> Iterator[ClipBlock]:
        keys = self.windows[segment]
        for start in range(0, len(keys), BLOCK):
            some = keys[start : start + BLOCK]
            yield ClipBlock(np.array(some, np.int64), np.stack([clips_of(key, self.clips) for key in some]))
        self.read.append(segment)

    def live_keys(self) -> np.ndarray:
        return np.array(sorted({k for keys in self.windows.values() for k in keys} - self.removed), np.int64)

    @property
    def vectors(self) -> int:
        """Clips of all windows, removed ones included."""
        return self.clips * sum(map(len, self.windows.values()))


class Torn(MemorySource):
    """Stops after the first block of a segment: what a process leaves that dies while it reads."""

    def blocks(self, segment: str) -> Iterator[ClipBlock]:
        yield next(super().blocks(segment))
        raise KeyboardInterrupt


def queries(number: int = 5) -> np.ndarray:
    rows = np.random.default_rng(123).standard_normal((number, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def brute_force(source: MemorySource, query: np.ndarray, vectors: int) -> list[int]:
    """Windows of the nearest live clips, best first, each once."""
    found = [(-float(x), key) for key in source.live_keys().tolist() for x in clips_of(key, source.clips) @ query]
    return list(dict.fromkeys(key for _, key in sorted(found)[:vectors]))


def check_complete(backend: CandidateBackend, source: MemorySource) -> None:
    """As many clips as there are: every live window, no other, none twice; any number: no removed one, none twice."""
    live = source.live_keys().tolist()
    for found in backend.nearest(queries(2), source.vectors):
        assert sorted(found.tolist()) == live
    for vectors in (1, 7):
        for found in backend.nearest(queries(2), vectors):
            assert len(set(found.tolist())) == len(found)
            assert set(found.tolist()) <= set(live)
            assert len(found) or not live


def check_order(backend: CandidateBackend, source: MemorySource, vectors: int = 40) -> None:
    """The windows of brute force, in its order."""
    for query, found in zip(queries(), backend.nearest(queries(), vectors), strict=True):
        assert found.tolist() == brute_force(source, query, vectors)


def synced(backend: Backend, source: MemorySource) -> Backend:
    """The backend, once it has all of a source."""
    backend.sync(source)
    return backend


def check_life(opened: Callable[[], CandidateBackend], source: MemorySource) -> None:
    """Segments come and go, windows are removed, a segment is written anew; each time by the same backend and by a
    new one. What did not change is not read again."""

    def check(backend: CandidateBackend, read: list[str]) -> None:
        source.read.clear()
        backend.sync(source)
        check_complete(backend, source)
        backend.sync(source)
        assert source.read == read

    source.windows = {"first": list(range(40))}
    backend = opened()
    backend.sync(source)
    check_complete(backend, source)
    source.windows["second"] = list(range(40, 70))
    check(backend, ["second"])
    source.removed = {3, 41, 69}
    check(backend, [])
    backend.close()
    backend = opened()
    check(backend, [])
    del source.windows["first"]
    source.removed = {41, 69}
    check(backend, [])
    del source.windows["second"]  # written anew, without the removed windows: same keys, another name
    source.windows["third"] = [key for key in range(40, 70) if key not in source.removed]
    source.removed = set()
    check(backend, ["third"])
    source.windows = {}
    check(backend, [])
    backend.close()
