"""What a search backend is: it names windows that are worth an exact score; `exact` does without and scores all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int64

from prvr.config import Registry
from prvr.errors import InputError


@dataclass(frozen=True)
class ClipSource:
    """What a backend sees: the clips of a pack of videos, which never change.

    Args:
        name: the hash of the content: packs of one name are equal.
        dim: width of the vectors.
        clips: number of clips of every window.
        windows: number of windows; the key of a window is its number, from 0.
        blocks: gives the clips of all windows in order `(w, c, d)`, some megabytes at a time: rows of unit length (a
            clip of zeros stays zero).
    """

    name: str
    dim: int
    clips: int
    windows: int
    blocks: Callable[[], Iterator[Float32[np.ndarray, "w c d"]]]


@runtime_checkable
class CandidateBackend(Protocol):
    """Names the windows whose clips are near a query. Their scores are computed elsewhere, exactly.

    What a backend keeps is a copy under the name of the pack: where it is missing, incomplete or of another pack, it
    costs a new copy, never an answer.

    Attributes:
        name: the name of the backend.
    """

    name: str

    def sync(self, source: ClipSource) -> None:
        """Makes `nearest` answer for this source; reads its blocks once, or not at all where a copy is there.

        Raises:
            DataError: no copy can be made, for example because the disk is full.
        """
        ...

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]] | None:
        """For each query the keys of the windows of its nearest clips, best first.

        Args:
            text: `(q, d)` rows of unit length.
            vectors: how many clips are looked for, several of a window among them.

        Returns:
            All windows where `vectors` is the number of all clips; None where it cannot tell: every video is to be
            scored.

        Raises:
            DataError: the copy cannot be read.
        """
        ...

    def close(self) -> None:
        """Releases what it holds."""
        ...


BACKENDS: Registry[Callable[..., CandidateBackend] | None] = Registry("search backend")
"""The backends by name; one that needs an `address` may be named NAME:ADDRESS."""
BACKENDS.register("exact", None, "compares every video")
BACKENDS.register(
    "milvus", "prvr_search.ranking.milvus:MilvusBackend", "a Milvus server, or a file of milvus-lite", needs=["address"]
)


def open_backend(name: str) -> CandidateBackend | None:
    """The backend that a name stands for; None for `exact`, and for `auto`, which is `exact`.

    Args:
        name: one of `BACKENDS`, perhaps with an address: `milvus:http://host:19530`.

    Raises:
        InputError: no such backend, or it has no address.
        prvr.MissingExtraError: its library is not installed.

    Examples:
        >>> open_backend("exact") is None
        True
    """
    kind, _, address = ("exact" if name == "auto" else name).partition(":")
    entry = BACKENDS[kind]
    if address and "address" not in entry.needs:
        raise InputError(f"backend {name!r}: {kind} has no address. Pass {kind}")
    if entry.part is None:
        return None
    return entry.part(address) if address else entry.part()
