"""A clip source in memory, brute force over it, as a backend too, and the laws that every candidate backend keeps."""

import hashlib
import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from prvr_search.ranking.backends import BACKENDS, CandidateBackend, ClipSource

DIM, CLIPS, BLOCK = 16, 4, 16
Backend = TypeVar("Backend", bound=CandidateBackend)


def clips_of(key: int, clips: int = CLIPS, dim: int = DIM) -> np.ndarray:
    """The clips of a window, the same for the same key: near one another, and far from those of other windows."""
    generator = np.random.default_rng(key)
    rows = generator.standard_normal(dim) + 0.5 * generator.standard_normal((clips, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


class MemorySource(ClipSource):
    """A pack of windows. `read` counts the readings."""

    __setattr__ = object.__setattr__

    def __init__(self, *, clips: int = CLIPS, seed: str = "a1b2c3", windows: int = 0) -> None:
        self.seed, self.dim, self.clips, self.windows = seed, DIM, clips, windows
        self.read = 0

    @property
    def name(self) -> str:
        return hashlib.sha256(f"{self.seed} {self.windows}".encode()).hexdigest()

    def blocks(self) -> Iterator[np.ndarray]:
        self.read += 1
        for start in range(0, self.windows, BLOCK):
            yield np.stack([self.clips_of(key) for key in range(start, min(start + BLOCK, self.windows))])

    def clips_of(self, key: int) -> np.ndarray:
        return clips_of(zlib.crc32(f"{self.seed} {key}".encode()), self.clips)

    @property
    def vectors(self) -> int:
        """Clips of all windows."""
        return self.clips * self.windows


class BruteBackend:
    """Compares every clip."""

    name = "brute"

    def sync(self, source: ClipSource) -> None:
        self.pack, self.clips = source.name, source.clips
        self.rows = np.concatenate([*source.blocks()]).reshape(-1, source.dim)

    def nearest(self, text: np.ndarray, vectors: int) -> list[np.ndarray]:
        return [*np.argsort(-text @ self.rows.T, axis=1)[:, :vectors] // self.clips]

    def close(self) -> None:
        pass


if "brute" not in BACKENDS:  # pytest may import this file twice
    BACKENDS.register("brute", BruteBackend, "every clip, for tests")


class Torn(MemorySource):
    """Stops after the first block: what a process leaves that dies while it reads."""

    def blocks(self) -> Iterator[np.ndarray]:
        yield next(super().blocks())
        raise KeyboardInterrupt


def queries(number: int = 5) -> np.ndarray:
    rows = np.random.default_rng(123).standard_normal((number, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def brute_force(source: MemorySource, query: np.ndarray, vectors: int) -> list[int]:
    """Windows of the nearest clips, best first."""
    found = [(-float(x), key) for key in range(source.windows) for x in source.clips_of(key) @ query]
    return [key for _, key in sorted(found)[:vectors]]


def check_complete(backend: CandidateBackend, source: MemorySource) -> None:
    """As many clips as there are: every window; any number: so many clips, of its windows."""
    windows = [*range(source.windows)]
    for found in nearest(backend, 2, source.vectors):
        assert sorted(found.tolist()) == [window for window in windows for _ in range(source.clips)]
    for vectors in (1, 7):
        for found in nearest(backend, 2, vectors):
            assert len(found) == vectors
            assert set(found.tolist()) <= {*windows}


def nearest(backend: CandidateBackend, number: int, vectors: int) -> list[np.ndarray]:
    """What it answers to so many queries, once it can tell."""
    found = backend.nearest(queries(number), vectors)
    assert found is not None
    assert len(found) == number
    return found


def check_order(backend: CandidateBackend, source: MemorySource, vectors: int = 40) -> None:
    """The windows of brute force, in its order."""
    for query, found in zip(queries(), nearest(backend, 5, vectors), strict=True):
        assert found.tolist() == brute_force(source, query, vectors)


def synced(backend: Backend, source: MemorySource) -> Backend:
    """The backend, once it has all of a source."""
    backend.sync(source)
    return backend


def check_life(opened: Callable[[], CandidateBackend], source: MemorySource) -> None:
    """Packs come; each time by the same backend and by a new one. A pack is read once."""

    def check(backend: CandidateBackend, read: int) -> None:
        """It is read so often."""
        source.read = 0
        backend.sync(source)
        check_complete(backend, source)
        backend.sync(source)
        assert source.read == read

    source.windows = 40
    backend = opened()
    check(backend, 1)
    source.windows = 70
    check(backend, 1)
    backend.close()
    backend = opened()
    check(backend, 0)
    source.seed = "another"
    check(backend, 1)
    backend.close()
