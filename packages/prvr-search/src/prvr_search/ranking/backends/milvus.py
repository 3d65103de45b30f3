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
from prvr_search.ranking.backends.protocol import BACKENDS, CandidateBackend, ClipBlock, ClipSource

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
    """A collection per pack, `prvr_HASH`, with a row per clip.

    It is complete when it has as many rows as clips, so that what a killed process leaves is made again by the next
    sync, and several machines can search the same pack. Rows are grouped by window here and not on the server:
    releases before 2.4 ignore `group_by_field` without a word.

    Args:
        address: the address of a server or cluster, `http://host:19530`; or a file that ends in `.db`, which
            milvus-lite serves to one process; None = such a file beside the packs.

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

    def _open(self, source: ClipSource) -> int:
        """Opens the collection of a pack, which is made again where it lacks rows.

        Raises:
            DataError: no server answers at the address, or it refuses.
        """
        if source.clips > _CLIPS:
            raise DataError(f"windows have {source.clips} clips; at most {_CLIPS} fit a row's id in Milvus")
        self._connect(source)
        with self._explained():
            if self._count() != source.windows * source.clips:
                self._client.drop_collection(self._collection)
                self._create(source)
                for block in source.blocks():
                    for part in _requests(block):
                        self._client.insert(self._collection, part, timeout=_TIMEOUT)
                self._client.flush(self._collection)
            for name in source.replaced:
                if self._client.has_collection(_collection(name)):
                    self._client.drop_collection(_collection(name))
            return self._count()  # waits until all of it can be found

    def _search(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """See [CandidateBackend][prvr_search.ranking.backends.CandidateBackend].

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

    def _connect(self, source: ClipSource) -> None:
        """Opens the collection of a pack; makes it if it is missing."""
        from pymilvus import MilvusClient

        self.close()
        address = self.address or str(source.folder / "milvus.db")
        self._shown = self._shown or address
        self._collection = _collection(source.name)
        with self._explained():
            if "://" not in address:
                Path(address).parent.mkdir(parents=True, exist_ok=True)
            self._client = MilvusClient(address, token=os.environ.get(TOKEN, ""), timeout=_TIMEOUT)
            if not self._client.has_collection(self._collection):
                self._create(source)
            self._client.load_collection(self._collection)
            fields = self._client.describe_collection(self._collection)["fields"]
        width = next((int(field["params"]["dim"]) for field in fields if field["name"] == "vector"), None)
        if width != source.dim:
            raise DataError(
                f"{self._shown}: collection {self._collection} holds vectors of width {width}, the index of width "
                f"{source.dim}. It belongs to another program. Drop it, or use another server."
            )

    def _create(self, source: ClipSource) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("key", DataType.INT64)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=source.dim)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="IVF_SQ8", metric_type="IP", params={"nlist": _LISTS})
        self._client.create_collection(self._collection, schema=schema)
        self._client.create_index(self._collection, index, sync=False)  # there is nothing to wait for yet
        self._client.load_collection(self._collection)

    def _count(self) -> int:
        counted = self._client.query(
            self._collection, output_fields=["count(*)"], consistency_level="Strong", timeout=_TIMEOUT
        )
        return counted[0]["count(*)"]

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


def _collection(name: str) -> str:
    """The collection of a pack."""
    return f"prvr_{name}"


def _requests(block: ClipBlock) -> Iterator[list[dict[str, Any]]]:
    """The rows of a block, a bounded number at a time."""
    clips, dim = block.vectors.shape[1:]
    windows = max(1, _BYTES // (4 * clips * dim))
    for start in range(0, len(block.keys), windows):
        keys, vectors = block.keys[start : start + windows], block.vectors[start : start + windows]
        yield [
            {"id": int(key) * _CLIPS + clip, "key": int(key), "vector": vector}
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
