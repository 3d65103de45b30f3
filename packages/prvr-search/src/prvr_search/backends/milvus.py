"""Candidates by Milvus: a server, a cluster, or milvus-lite in a file, all through pymilvus."""

import importlib.util
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from prvr.errors import DataError, MissingExtraError, require
from prvr_search.backends.protocol import BACKENDS, CandidateBackend, ClipBlock, ClipSource

logger = logging.getLogger(__name__)

TOKEN = "PRVR_MILVUS_TOKEN"
"""The environment variable that holds `user:password` or an API key of a server."""
MOST = 16_384
"""Rows that a server gives for a query."""

_AT_ONCE = 2**16  # hits of a request
_LISTS, _PROBES = 1024, 256  # of every part that a server cuts a collection into: lists, and how many a query reads
_TIMEOUT = 120.0  # seconds, of a request
_CLIPS = 4096  # of a window, at most: the id of a row is the key of its window times this, plus the clip's number
_BYTES = 2**23  # of the vectors of a request; servers take 64 MB


class MilvusBackend(CandidateBackend):
    """A collection per index, `prvr_ID`, with a row per clip that names the generation of its window.

    It is complete when it has as many rows as clips, so that what a killed process leaves is mended by the next sync,
    and several machines can search the same index. Rows are grouped by window here and not on the server:
    releases before 2.4 ignore `group_by_field` without a word.

    Args:
        address: the address of a server or cluster, `http://host:19530`; or a file that ends in `.db`, which
            milvus-lite serves to one process; None = such a file below `INDEX/backends/milvus`.

    A server wants a token or a password in the environment variable `PRVR_MILVUS_TOKEN`. Vectors are kept as bytes in
    inverted lists (IVF_SQ8), and the score of a candidate is computed from the index in any case.

    Raises:
        prvr.MissingExtraError: pymilvus, or milvus-lite for a file, is not installed.

    Examples:
        >>> MilvusBackend("http://localhost:19530").name  # connects when it is used
        'milvus'
    """

    name = "milvus"

    def __init__(self, address: str | None = None) -> None:
        super().__init__()
        _expect_library(lite=address is None or "://" not in address)
        self.address = address
        self._shown = re.sub(r"//[^/@]*@", "//", address or "")  # in messages: without a password
        self._client: Any = None
        self._collection = ""

    def _update(self, source: ClipSource, folder: Path, live: Int64[np.ndarray, " n"]) -> int:
        """Deletes the rows of another generation and inserts those that are missing.

        Raises:
            DataError: no server answers at the address, or it refuses.
        """
        if source.clips > _CLIPS:
            raise DataError(f"windows have {source.clips} clips; at most {_CLIPS} fit a row's id in Milvus")
        if self._client is None or self._state[0] != source.index_id:
            self._connect(source, folder)
        with self._explained():
            self._send(source)
            return self._count()  # waits until all of it can be found

    def _search(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """See [CandidateBackend][prvr_search.backends.CandidateBackend].

        Raises:
            DataError: the server does not answer, or it refuses.
        """
        limit = min(vectors, MOST)
        together = max(1, _AT_ONCE // limit)
        found: list[np.ndarray] = []
        for start in range(0, len(text), together):
            found += self._hits(text[start : start + together], limit)
        return [self._complete(query, keys, limit, vectors) for query, keys in zip(text, found, strict=True)]

    def close(self) -> None:
        """Closes the connection; milvus-lite releases its file."""
        if self._client is not None:
            self._client.close()
        super().close()
        self._client = None

    def _connect(self, source: ClipSource, folder: Path) -> None:
        """Opens the collection of an index; makes it if it is missing."""
        from pymilvus import DataType, MilvusClient

        self.close()
        address = self.address or str(folder / "clips.db")
        self._shown = self._shown or address
        self._collection = "prvr_" + re.sub(r"[^A-Za-z0-9_]", "_", source.index_id)
        with self._explained():
            if "://" not in address:
                Path(address).parent.mkdir(parents=True, exist_ok=True)
            client: Any = MilvusClient(address, token=os.environ.get(TOKEN, ""), timeout=_TIMEOUT)
            if not client.has_collection(self._collection):
                schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
                schema.add_field("id", DataType.INT64, is_primary=True)
                schema.add_field("key", DataType.INT64)
                schema.add_field("clip", DataType.INT64)
                schema.add_field("generation", DataType.VARCHAR, max_length=256)
                schema.add_field("vector", DataType.FLOAT_VECTOR, dim=source.dim)
                index = client.prepare_index_params()
                index.add_index("vector", index_type="IVF_SQ8", metric_type="IP", params={"nlist": _LISTS})
                client.create_collection(self._collection, schema=schema)
                client.create_index(self._collection, index, sync=False)  # there is nothing to wait for yet
            client.load_collection(self._collection)
            fields = client.describe_collection(self._collection)["fields"]
        width = next(int(field["params"]["dim"]) for field in fields if field["name"] == "vector")
        if width != source.dim:
            raise DataError(
                f"{self._shown}: collection {self._collection} holds vectors of width {width}, the index of width "
                f"{source.dim}. It belongs to another program. Drop it, or use another server."
            )
        self._client = client

    def _send(self, source: ClipSource) -> None:
        """Makes the rows those of the windows of a source, which are inserted in order."""
        own = f'generation == "{source.generation}"'
        rows = self._count(own)
        first = min(rows // source.clips, source.windows)
        if first and self._count(f"{own} and key < {first}") != source.clips * first:
            logger.info("%s: %s lacks rows; all are inserted again", self._shown, self._collection)
            first = 0
        # First of all: rows of another generation have the same ids. Another machine may be ahead.
        if first < source.windows or self._count() != rows:
            self._delete(f'generation != "{source.generation}" or key >= {first}')
        if first < source.windows:
            for block in source.blocks(first):
                for part in _requests(source.generation, block):
                    self._client.insert(self._collection, part, timeout=_TIMEOUT)
            self._client.flush(self._collection)

    def _count(self, which: str = "") -> int:
        found = self._client.query(
            self._collection,
            filter=which,
            output_fields=["count(*)"],
            consistency_level="Strong",
            timeout=_TIMEOUT,
        )
        return found[0]["count(*)"]

    def _delete(self, which: str) -> None:
        self._client.delete(self._collection, filter=which, timeout=_TIMEOUT)

    def _search_once(self, text: np.ndarray, limit: int, probes: int, seen: np.ndarray | None) -> list[np.ndarray]:
        """For each query the windows of its nearest clips, one per clip, best first, without those in `seen`."""
        leave_out = "" if seen is None else f"key not in [{', '.join(map(str, seen.tolist()))}]"
        with self._explained():
            found = self._client.search(
                self._collection,
                np.ascontiguousarray(text, np.float32),
                filter=leave_out,
                limit=limit,
                search_params={"metric_type": "IP", "params": {"nprobe": probes}},
                anns_field="vector",
                timeout=_TIMEOUT,
            )
        return [np.array([hit["id"] for hit in hits], np.int64) // _CLIPS for hits in found]

    def _hits(self, text: np.ndarray, limit: int, seen: np.ndarray | None = None) -> list[np.ndarray]:
        """The keys of the nearest clips; looks into all lists where some hold fewer than the limit."""
        nearest = self._search_once(text, limit, _PROBES if limit < self._total else _LISTS, seen)
        if limit < self._total and (short := [i for i, keys in enumerate(nearest) if len(keys) < limit]):
            for i, keys in zip(short, self._search_once(text[short], limit, _LISTS, seen), strict=True):
                nearest[i] = keys
        return nearest

    def _complete(self, query: np.ndarray, keys: np.ndarray, limit: int, vectors: int) -> Int64[np.ndarray, " n"]:
        """Goes on past the server's limit, and past removed windows, by asking for windows that were not yet seen."""
        last, clips = keys, self._alive(keys)
        while len(last) == limit and len(clips) < vectors:
            last = self._hits(query[None], limit, np.unique(keys))[0]
            keys = np.concatenate([keys, last])
            clips = self._alive(keys)
        return clips[:vectors]

    def _alive(self, keys: np.ndarray) -> np.ndarray:
        return keys[np.isin(keys, self._live)]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What pymilvus raises becomes one message; a token never stands in it."""
        from pymilvus import MilvusException

        try:
            yield
        except MilvusException as error:
            reason = " ".join(str(error.message).split())[:300]
            if "://" in self._shown:
                remedy = f"Is a server running there, and is {TOKEN} set if it requires one?"
            else:
                remedy = "milvus-lite serves a file to one process: close the other, use a server, or use faiss."
            raise DataError(f"{self._shown}: Milvus refuses ({reason}). {remedy}") from error


def _requests(generation: str, block: ClipBlock) -> Iterator[list[dict[str, Any]]]:
    """The rows of a block, a bounded number at a time."""
    clips, dim = block.vectors.shape[1:]
    windows = max(1, _BYTES // (4 * clips * dim))
    for start in range(0, len(block.keys), windows):
        keys, vectors = block.keys[start : start + windows], block.vectors[start : start + windows]
        yield [
            {"id": int(key) * _CLIPS + clip, "key": int(key), "clip": clip, "generation": generation, "vector": vector}
            for key, window in zip(keys, vectors, strict=True)
            for clip, vector in enumerate(window)
        ]


def _expect_library(*, lite: bool) -> None:
    require("pymilvus", "prvr-search[milvus]", "The milvus backend")
    if lite and importlib.util.find_spec("milvus_lite") is None:
        raise MissingExtraError(
            "the backend milvus without an address needs milvus-lite: pip install milvus-lite, or pass a server: "
            "milvus:http://host:19530"
        )


BACKENDS.register("milvus", MilvusBackend, "a server, a cluster or a file of milvus-lite", needs=["address"])
