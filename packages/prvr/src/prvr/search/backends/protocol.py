"""What a backend is: it sees the clips of an index and gives the windows that are worth an exact score."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64

from prvr.data.files import owned
from prvr.search.snapshot import Snapshot

logger = logging.getLogger(__name__)


@runtime_checkable
class CandidateBackend(Protocol):
    """Looks for the windows whose clips are near a query. The score of what it finds is computed elsewhere, exactly.

    Attributes:
        name: the name of the backend.
    """

    name: str

    def sync(self, source: Snapshot) -> None:
        """Brings it up to date with an index; cheap where nothing has changed, and safe against a kill.

        It reads `index_id`, `dim`, `clips`, `segments`, `keys`, `blocks` and `live_keys` of the snapshot, and may keep
        files in `folder / "backends" / name`. A segment that is written anew keeps the keys of its windows: the same
        key may stand in an old segment and in one that has taken its place.
        """
        ...

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """For each query the keys of the windows of its nearest clips, best first, each once.

        Args:
            text: `(q, d)` rows of unit length.
            vectors: how many clips are looked for. Fewer live windows come back than clips: several clips may be of one
                window, and windows may have been removed. No backend gives fewer than there are when `vectors` is the
                number of all clips.
        """
        ...

    def close(self) -> None:
        """Releases what it holds."""
        ...


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
            stack.enter_context(owned(folder, "", wait=True))
        except OSError as error:
            logger.info("%s: read without a lock (%s)", folder, error)
        yield
