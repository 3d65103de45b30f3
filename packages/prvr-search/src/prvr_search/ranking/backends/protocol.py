"""What a backend is: it sees the clips of an index and gives the windows that are worth an exact score."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from prvr.config import Registry
from prvr.data.atomic import PATIENCE, owned

logger = logging.getLogger(__name__)


class ClipBlock(NamedTuple):
    """Consecutive windows: their keys and the clips of each, rows of unit length (a clip of zeros stays zero)."""

    keys: Int64[np.ndarray, " w"]
    vectors: Float32[np.ndarray, "w c d"]


@dataclass(frozen=True)
class ClipSource:
    """What a backend sees: the clips of a pack of videos, which never change.

    Args:
        name: the hash of the list of videos; names a collection, or a file.
        folder: where a backend may keep files; those named NAME.* are deleted with the pack.
        dim: width of the vectors.
        clips: number of clips of every window.
        windows: number of windows; the key of a window is its number, from 0.
        live: keys of the windows that count, in ascending order.
        blocks: gives all windows in order, a bounded number at a time.
        replaced: names of packs that are no longer there, whose copies are needless.
    """

    name: str
    folder: Path
    dim: int
    clips: int
    windows: int
    live: Int64[np.ndarray, " n"]
    blocks: Callable[[], Iterator[ClipBlock]]
    replaced: tuple[str, ...] = ()


class CandidateBackend(ABC):
    """Looks for the windows whose clips are near a query. The score of what it finds is computed elsewhere, exactly.

    The law of every backend; `tests/prvr/test_search_backends.py` holds those of `BACKENDS` to it:

    - **What `sync` may read**: the windows of a pack once; none where a copy of them is there.
    - **Persistence**: what is kept is a copy, in a file or on a server, under the name of the pack. A kill at any
      moment, a missing copy or that of another pack costs a new copy, never an answer. `read_signed` and `write_signed`
      keep a file, which may be damaged too.
    - **What `nearest` gives**: live windows only, each once; every one of them when all clips are asked for.

    A subclass has a name, `_update` and `_search`, and registers itself in `BACKENDS`.

    Attributes:
        name: the name of the backend.
    """

    name: str

    def __init__(self) -> None:
        self._pack, self._total = "", 0
        self._live = np.empty(0, np.int64)

    @abstractmethod
    def _open(self, source: ClipSource) -> int:
        """Opens the copy of a pack, or makes it, while no other process of this computer does.

        Args:
            source: the pack; `_live` are its windows that count.

        Returns:
            How many clips can be found, those of other windows among them if `_search` gives them too.
        """

    @abstractmethod
    def _search(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """For each query the keys of the live windows of its nearest clips, one for each clip, best first."""

    def sync(self, source: ClipSource) -> None:
        """Brings it up to date with a source; cheap where nothing has changed; safe against a kill.

        Raises:
            DataError: nothing can be kept, for example because the disk is full.
        """
        if source.name == self._pack and np.array_equal(source.live, self._live):
            return
        self._live = source.live
        with locked(source.folder):
            self._total = self._open(source)
        self._pack = source.name

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """For each query the keys of the windows of its nearest clips, best first, each once.

        Args:
            text: `(q, d)` rows of unit length.
            vectors: how many clips are looked for. Fewer live windows come back than clips: several clips may be of one
                window, and windows may have been removed. No backend gives fewer than there are when `vectors` is the
                number of all clips.
        """
        if not self._pack:
            raise RuntimeError("nearest() before sync()")
        vectors = min(vectors, self._total)
        if vectors < 1 or not len(text):
            return [np.empty(0, np.int64)] * len(text)
        return [each_once(keys) for keys in self._search(text, vectors)]

    def close(self) -> None:
        """Releases what it holds."""
        self._pack, self._total = "", 0


BACKENDS: Registry[Callable[..., CandidateBackend | None]] = Registry("search backend")
"""The backends by name; one that needs an `address` may be named NAME:ADDRESS."""


def each_once(keys: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " m"]:
    """Keys in the order in which they first appear.

    Examples:
        >>> each_once(np.array([7, 3, 7, 1])).tolist()
        [7, 3, 1]
    """
    return keys[np.sort(np.unique(keys, return_index=True)[1])]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; waits for the others. A folder that cannot be written is read without a lock."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(owned(folder, wait=PATIENCE))
        except OSError as error:
            logger.info("%s: read without a lock (%s)", folder, error)
        yield
