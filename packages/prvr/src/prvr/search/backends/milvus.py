"""Candidates by Milvus: a server, a cluster, or milvus-lite in a file, all through pymilvus."""

import importlib.util
import os

import numpy as np
from jaxtyping import Float32, Int64

from prvr.errors import InputError, MissingExtraError, require
from prvr.search.backends.milvus_rows import MOST, MilvusRows
from prvr.search.backends.protocol import ClipSource, each_once, locked

__all__ = ["TOKEN", "MilvusBackend"]


TOKEN = "PRVR_MILVUS_TOKEN"
"""The environment variable that holds `user:password` or an API key of a server."""

_AT_ONCE = 2**16  # hits of a request


class MilvusBackend:
    """A collection per index, `prvr_ID`, a row per clip; a second one, `prvr_ID_segments`, notes what is in it.

    The notes stand on the server, so that several machines can search the same index. A segment is noted as unfinished
    before its first row is written, so that a process that is killed leaves nothing that the next sync would not mend.
    Rows are grouped by window here and not on the server: releases before 2.4 ignore `group_by_field` without a word.

    Args:
        address: of a server or cluster, `http://host:19530`; or a file that ends in `.db`, which milvus-lite serves to
            one process; None = such a file below `INDEX/backends/milvus`.
        token: None = the environment variable `PRVR_MILVUS_TOKEN`, if it is set.
        nprobe: lists that a query looks into, of every part that the server cuts a collection into; more, if these
            hold fewer vectors than were asked for.
        lists: inverted lists of such a part.
        storage: index type, `IVF_SQ8` or `IVF_FLAT`. The score of a candidate is computed from the index in any case.
            A collection that exists keeps its `lists` and `storage`: `drop` it to change them.
        timeout: of a request, in seconds.

    Raises:
        prvr.MissingExtraError: pymilvus, or milvus-lite for a file, is not installed.
        ValueError: another `nprobe` or `storage` than there is.

    Example:
        >>> MilvusBackend("http://localhost:19530").name  # connects when it is used
        'milvus'
    """

    name, exhaustive = "milvus", False

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        nprobe: int = 256,
        lists: int = 1024,
        storage: str = "IVF_SQ8",
        timeout: float = 120.0,
    ) -> None:
        if not 1 <= nprobe <= lists:
            raise InputError(f"nprobe is {nprobe}, expected 1 to {lists} (lists)")
        if storage not in ("IVF_SQ8", "IVF_FLAT"):
            raise InputError(f"storage is {storage!r}, expected IVF_SQ8 or IVF_FLAT")
        _expect_library(lite=address is None or "://" not in address)
        self.address, self.nprobe, self.lists, self.storage = address, nprobe, lists, storage
        self._token, self._timeout = token or os.environ.get(TOKEN, ""), timeout
        self._rows: MilvusRows | None = None
        self._state: tuple[str, tuple[str, ...]] = ("", ())
        self._live = np.empty(0, np.int64)

    def sync(self, source: ClipSource) -> None:
        """Deletes the rows of segments that are gone and inserts those of new ones; mends what a killed process left.

        Raises:
            DataError: no server answers at the address, or it refuses.
        """
        live, state = source.live_keys(), (source.index_id, source.segments)
        if self._rows is not None and state == self._state and np.array_equal(live, self._live):
            return
        folder = source.folder / "backends" / self.name
        with locked(folder):
            if self._rows is None or self._rows.index_id != source.index_id:
                self.close()
                self._rows = self._open(self.address or str(folder / "clips.db"), source)
            self._rows.bring_up_to_date(source)
        self._state, self._live = state, live

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """See [CandidateBackend][prvr.search.backends.CandidateBackend]; clips of removed videos are not counted.

        Raises:
            DataError: the server does not answer, or it refuses.
        """
        if self._rows is None:
            raise RuntimeError("nearest() before sync()")
        vectors = min(vectors, self._rows.total)
        if vectors < 1 or not len(text):
            return [np.empty(0, np.int64)] * len(text)
        limit = min(vectors, MOST)
        together = max(1, _AT_ONCE // limit)
        found: list[np.ndarray] = []
        for start in range(0, len(text), together):
            found += self._hits(text[start : start + together], limit)
        return [self._complete(query, keys, limit, vectors) for query, keys in zip(text, found, strict=True)]

    @property
    def rows(self) -> int:
        """Rows on the server, those of removed windows included; 0 before the first sync."""
        return self._rows.total if self._rows is not None else 0

    def pending(self) -> int:
        """Rows that the server does not search by the collection's index yet; what it does meanwhile finds less."""
        return self._rows.pending() if self._rows is not None else 0

    def close(self) -> None:
        """Closes the connection; milvus-lite lets go of its file."""
        if self._rows is not None:
            self._rows.close()
        self._rows, self._state = None, ("", ())

    def drop(self, source: ClipSource) -> None:
        """Deletes both collections of an index; a search would need them built anew.

        Raises:
            DataError: no server answers at the address, or it refuses.
        """
        if self._rows is None:
            self._rows = self._open(self.address or str(source.folder / "backends" / self.name / "clips.db"), source)
        self._rows.drop()
        self.close()

    def _open(self, address: str, source: ClipSource) -> MilvusRows:
        return MilvusRows(
            address, self._token, source.index_id, source.dim, self.storage, self.lists, timeout=self._timeout
        )

    def _hits(self, text: np.ndarray, limit: int, seen: np.ndarray | None = None) -> list[np.ndarray]:
        """The keys of the nearest clips; looks into more lists where they hold fewer than the limit."""
        assert self._rows is not None
        probes = self.nprobe if limit < self._rows.total else self.lists
        found = self._rows.search(text, limit, probes, seen)
        while probes < self.lists and (short := [i for i, keys in enumerate(found) if len(keys) < limit]):
            probes = min(4 * probes, self.lists)
            for i, keys in zip(short, self._rows.search(text[short], limit, probes, seen), strict=True):
                found[i] = keys
        return found

    def _complete(self, query: np.ndarray, keys: np.ndarray, limit: int, vectors: int) -> Int64[np.ndarray, " n"]:
        """Goes on past the server's limit, and past removed windows, by asking for windows that were not yet seen."""
        last, clips = keys, self._alive(keys)
        while len(last) == limit and len(clips) < vectors:
            last = self._hits(query[None], limit, np.unique(keys))[0]
            keys = np.concatenate([keys, last])
            clips = self._alive(keys)
        return each_once(clips[:vectors])

    def _alive(self, keys: np.ndarray) -> np.ndarray:
        return keys[np.isin(keys, self._live)]


def _expect_library(*, lite: bool) -> None:
    require("pymilvus", "milvus", "The milvus backend")
    if lite and importlib.util.find_spec("milvus_lite") is None:
        raise MissingExtraError(
            "the backend milvus without an address needs milvus-lite: pip install milvus-lite, or name a server: "
            "milvus:http://host:19530"
        )
