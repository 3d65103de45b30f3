"""What a backend is: it sees the clips of an index and gives the windows that are worth an exact score."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64

from prvr.config import Registry
from prvr.data.atomic import PATIENCE, owned

logger = logging.getLogger(__name__)

FOLDER = "backends"
"""The folder of an index in which backends keep their files."""


class ClipBlock(NamedTuple):
    """Consecutive windows: their keys and the clips of each, rows of unit length (a clip of zeros stays zero)."""

    keys: Int64[np.ndarray, " w"]
    vectors: Float32[np.ndarray, "w c d"]


@runtime_checkable
class ClipSource(Protocol):
    """What a backend sees of an index: one state of it, which does not change.

    The key of a window is its number, from 0. Windows are added at the end, and no number is given twice, until they
    are numbered anew in another generation.
    """

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        ...

    @property
    def clips(self) -> int:
        """Number of clips of every window."""
        ...

    @property
    def index_id(self) -> str:
        """Random letters and digits, fixed when the index is made: names a collection, or a folder."""
        ...

    @property
    def generation(self) -> str:
        """Random letters and digits, others when windows are numbered anew."""
        ...

    @property
    def windows(self) -> int:
        """Number of windows, those of videos included that were removed since."""
        ...

    @property
    def folder(self) -> Path:
        """Folder of the index; a backend may keep files in `folder / "backends" / name`."""
        ...

    def blocks(self, first: int = 0) -> Iterator[ClipBlock]:
        """All windows from a number on, also those of removed videos, a bounded number at a time."""
        ...

    def live_keys(self) -> Int64[np.ndarray, " n"]:
        """Keys of the windows that count, in ascending order."""
        ...


class CandidateBackend(ABC):
    """Looks for the windows whose clips are near a query. The score of what it finds is computed elsewhere, exactly.

    The law of every backend; `tests/prvr/test_search_backends.py` holds those of `BACKENDS` to it:

    - **What `sync` may read**: the windows that are new to it. Where windows only went, it reads none. It may read all
      of them again when there is another generation, or when the corpus has become several times as large.
    - **What a fresh object may read**: no more than the last one would have read. The rest it has from the folder
      `source.folder / "backends" / name`, or from a server under `source.index_id`.
    - **Persistence**: what is kept is a copy. A kill at any moment, a missing copy or that of another index costs a new
      copy, never an answer. `read_signed` and `write_signed` keep a file, which may be damaged too.
    - **What `nearest` gives**: live windows only, each once; every one of them when all clips are asked for.

    A subclass has a name, `_update` and `_search`, and registers itself in `BACKENDS`.

    Attributes:
        name: the name of the backend, and of its folder.
    """

    name: str

    def __init__(self) -> None:
        self._state: tuple[str, str, int] = ("", "", 0)
        self._live = np.empty(0, np.int64)
        self._total = 0

    @abstractmethod
    def _update(self, source: ClipSource, folder: Path, live: Int64[np.ndarray, " n"]) -> int:
        """Updates the stored clips, while no other process of this computer does.

        Args:
            source: the state of the index.
            folder: where files may be kept; not made yet.
            live: keys of the windows that count, in ascending order.

        Returns:
            How many clips can be found, those of removed windows among them if `_search` gives them too.
        """

    @abstractmethod
    def _search(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """For each query the keys of the live windows of its nearest clips, one for each clip, best first."""

    def sync(self, source: ClipSource) -> None:
        """Brings it up to date with a source; cheap where nothing has changed; safe against a kill.

        Raises:
            DataError: nothing can be kept, for example because the disk is full.
        """
        live, state = source.live_keys(), (source.index_id, source.generation, source.windows)
        if state == self._state and np.array_equal(live, self._live):
            return
        folder = source.folder / FOLDER / self.name
        with locked(folder):
            self._total = self._update(source, folder, live)
        self._state, self._live = state, live

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """For each query the keys of the windows of its nearest clips, best first, each once.

        Args:
            text: `(q, d)` rows of unit length.
            vectors: how many clips are looked for. Fewer live windows come back than clips: several clips may be of one
                window, and windows may have been removed. No backend gives fewer than there are when `vectors` is the
                number of all clips.
        """
        if not self._state[0]:
            raise RuntimeError("nearest() before sync()")
        vectors = min(vectors, self._total)
        if vectors < 1 or not len(text):
            return [np.empty(0, np.int64)] * len(text)
        return [each_once(keys) for keys in self._search(text, vectors)]

    def close(self) -> None:
        """Releases what it holds."""
        self._state, self._total = ("", "", 0), 0


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
