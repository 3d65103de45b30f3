"""What a backend is: it sees the clips of an index and gives the windows that are worth an exact score."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64

from prvr.data.atomic import owned

logger = logging.getLogger(__name__)

FOLDER = "backends"
"""The folder of an index in which backends keep their files."""


class ClipBlock(NamedTuple):
    """Windows of a segment: their keys and the clips of each, rows of unit length (a clip of zeros stays zero)."""

    keys: Int64[np.ndarray, " w"]
    vectors: Float32[np.ndarray, "w c d"]


@runtime_checkable
class ClipSource(Protocol):
    """What a backend sees of an index: one state of it, which does not change.

    Attributes:
        dim: width of the vectors.
        clips: number of clips of every window.
        index_id: random letters and digits, fixed when the index is made: names a collection, or a folder.
        folder: the folder of the index; a backend may keep files in `folder / "backends" / name`.
        segments: names of the segments, each a hash of its content: a name never stands for anything else.
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
        """Random letters and digits, fixed when the index is made."""
        ...

    @property
    def folder(self) -> Path:
        """Folder of the index."""
        ...

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the segments, each a hash of its content."""
        ...

    def keys(self, segment: str) -> Int64[np.ndarray, " w"]:
        """Keys of all windows of a segment, also those of videos that were removed since."""
        ...

    def blocks(self, segment: str) -> Iterator[ClipBlock]:
        """All windows of a segment, also those of videos that were removed since, a bounded number at a time.

        A key is given once in an index, but a segment that is written anew keeps the keys of its windows: the same key
        may stand in an old segment and in one that has taken its place.
        """
        ...

    def live_keys(self) -> Int64[np.ndarray, " n"]:
        """Keys of the windows that count, in ascending order."""
        ...


@runtime_checkable
class CandidateBackend(Protocol):
    """Looks for the windows whose clips are near a query. The score of what it finds is computed elsewhere, exactly.

    Attributes:
        name: the name of the backend.
    """

    name: str

    def sync(self, source: ClipSource) -> None:
        """Brings it up to date with the segments of a source; cheap where nothing has changed; safe against a kill."""
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
