"""A clip source in memory, brute force over it, and the laws that every candidate backend keeps."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from prvr_search.backends import CandidateBackend, ClipBlock

DIM, CLIPS, BLOCK = 16, 4, 16
Backend = TypeVar("Backend", bound=CandidateBackend)


def clips_of(key: int, clips: int = CLIPS, dim: int = DIM) -> np.ndarray:
    """The clips of a window, the same for the same key: near one another, and far from those of other windows."""
    generator = np.random.default_rng(key)
    rows = generator.standard_normal(dim) + 0.5 * generator.standard_normal((clips, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class MemorySource:
    """Windows that come and go. `read` notes the first window of each reading to the end."""

    def __init__(self, folder: Path, *, clips: int = CLIPS, index_id: str = "a1b2c3", windows: int = 0) -> None:
        self.folder, self.index_id, self.dim, self.clips = folder, index_id, DIM, clips
        self.generation, self.windows = f"first of {index_id}", windows
        self.removed: set[int] = set()
        self.read: list[int] = []

    def blocks(self, first: int = 0) -> Iterator[ClipBlock]:
        for start in range(first, self.windows, BLOCK):
            keys = range(start, min(start + BLOCK, self.windows))
            yield ClipBlock(np.array(keys, np.int64), np.stack([self.clips_of(key) for key in keys]))
        self.read.append(first)

    def clips_of(self, key: int) -> np.ndarray:
        return clips_of(zlib.crc32(f"{self.generation} {key}".encode()), self.clips)

    def live_keys(self) -> np.ndarray:
        return np.array(sorted(set(range(self.windows)) - self.removed), np.int64)

    def renumber(self, windows: int) -> None:
        """Another generation, with so many windows."""
        self.generation, self.windows, self.removed = f"after {self.generation}", windows, set()

    @property
    def vectors(self) -> int:
        """Clips of all windows, removed ones included."""
        return self.clips * self.windows


class Torn(MemorySource):
    """Stops after the first block: what a process leaves that dies while it reads."""

    def blocks(self, first: int = 0) -> Iterator[ClipBlock]:
        yield next(super().blocks(first))
        raise KeyboardInterrupt


def queries(number: int = 5) -> np.ndarray:
    rows = np.random.default_rng(123).standard_normal((number, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def brute_force(source: MemorySource, query: np.ndarray, vectors: int) -> list[int]:
    """Windows of the nearest live clips, best first, each once."""
    found = [(-float(x), key) for key in source.live_keys().tolist() for x in source.clips_of(key) @ query]
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
    """Windows come, are removed and are numbered anew; each time by the same backend and by a new one. What did not
    change is not read again."""

    def check(backend: CandidateBackend, read: list[int]) -> None:
        source.read.clear()
        backend.sync(source)
        check_complete(backend, source)
        backend.sync(source)
        assert source.read == read

    source.windows = 40
    backend = opened()
    backend.sync(source)
    check_complete(backend, source)
    source.windows = 70
    check(backend, [40])
    source.removed = {3, 41, 69}
    check(backend, [])
    backend.close()
    backend = opened()
    check(backend, [])
    source.renumber(67)
    check(backend, [0])
    source.removed = set(range(0, 67, 2))
    check(backend, [])
    source.renumber(0)
    backend.sync(source)
    check_complete(backend, source)
    backend.close()
