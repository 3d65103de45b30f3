"""Candidates by Milvus: a server, a cluster, or milvus-lite in a file, all through pymilvus."""

import importlib.util
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from prvr.data.atomic import user_cache
from prvr.errors import DataError, MissingExtraError, require
from prvr_search.ranking.backends import ClipBlock, ClipSource, each_once

logger = logging.getLogger(__name__)

TOKEN = "PRVR_MILVUS_TOKEN"
"""The environment variable that holds `user:password` or an API key of a server."""
MOST = 16_384
"""Rows that a server gives for a query."""

_AT_ONCE = 2**16  # hits of a request
_LISTS, _PROBES = 1024, 256  # of every part that a server cuts a collection into: lists, and how many a query reads
_TIMEOUT = 120.0  # seconds, of a request
_BYTES = 2**23  # of the vectors of a request; servers take 64 MB
_DEAD = 600.0  # seconds after which a writer without progress has died; clocks may differ by minutes
_KEPT = 7 * 86_400.0  # seconds for which a collection is kept that nobody searches
_GONE = (100, 101, 1600, 1602)  # collection not found, not loaded, alias not found, alias of another collection


class _Collection(NamedTuple):
    """A collection of ours, as its properties and its alias describe it."""

    made: int
    name: str
    pack: str
    writer: str
    used: float
    whole: bool

    @property
    def is_fresh(self) -> bool:
        """Whether its writer, or a search of it, was seen lately."""
        return abs(time.time() - self.used) < (_KEPT if self.whole else _DEAD)


class MilvusBackend:
    """A collection per pack with a row per clip, which any number of computers search.

    Whoever finds no collection of a pack makes one that only he fills, `prvr_HASH_RANDOM`; its properties name him and
    the time of his last step. Once its rows are flushed and counted, it gets the alias `prvr_HASH_whole`, which a
    server gives once: a collection without it is never searched. Others leave a writer alone until he has made no
    progress for ten minutes, and score every video meanwhile. Collections that nobody has searched for a week are
    dropped; those without our properties are never touched.

    Args:
        address: the address of a server or cluster, `http://host:19530`; or a file that ends in `.db`, which
            milvus-lite serves to one process; None = such a file in the user's cache.

    A server wants a token or a password in the environment variable `PRVR_MILVUS_TOKEN`. Vectors are kept as bytes in
    inverted lists (IVF_SQ8).

    Raises:
        prvr.MissingExtraError: pymilvus, or milvus-lite for a file, is not installed.

    Examples:
        >>> MilvusBackend("http://localhost:19530").name  # connects when it is used
        'milvus'
    """

    name = "milvus"

    def __init__(self, address: str | None = None) -> None:
        self.address = address or str(user_cache() / "milvus.db")
        self._is_file = "://" not in self.address
        _expect_library(lite=self._is_file)
        self._shown = re.sub(r"//[^/@]*@", "//", self.address)  # in messages: without a password
        self._client: Any = None
        self._source: ClipSource | None = None
        self._collection, self._noted, self._said = "", 0.0, ""

    def sync(self, source: ClipSource) -> None:
        """Opens the collection of a pack, or makes it; see `CandidateBackend.sync`.

        Raises:
            DataError: no server answers at the address, or it refuses.
        """
        if source.name not in self._collection:
            self._collection = ""
        self._source, self._is_live = source, np.zeros(source.windows, bool)
        self._is_live[source.live] = True
        with self._explained():
            self._open(source)

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]] | None:
        """The windows of the nearest clips; None while another process fills the collection, and for more clips than a
        server gives. See `CandidateBackend.nearest`.

        Raises:
            DataError: the server does not answer, or it refuses.
        """
        source = self._source
        assert source is not None, "nearest() before sync()"
        vectors = min(vectors, source.windows * source.clips)
        if vectors > MOST:
            return None
        with self._explained():
            if self._open(source):
                step = max(1, _AT_ONCE // vectors)
                parts = [self._search(text[start : start + step], vectors) for start in range(0, len(text), step)]
                keys = [ids // source.clips for part in parts for ids in part]
                return [each_once(each[self._is_live[each]]) for each in keys]
        return None

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()
        self._client, self._collection = None, ""

    def _open(self, source: ClipSource) -> bool:
        """Whether there is a whole collection of the pack, made now where nobody else makes it."""
        from pymilvus import MilvusClient

        if self._client is None:
            logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # tracebacks of what `_explained` explains
            if self._is_file:
                Path(self.address).parent.mkdir(parents=True, exist_ok=True)
            self._client = MilvusClient(self.address, token=os.environ.get(TOKEN, ""), timeout=_TIMEOUT)
        if not self._collection:
            self._collection = self._opened(source)
        if self._collection:
            self._note(self._collection, every=_KEPT / 100)
        return bool(self._collection)

    def _opened(self, source: ClipSource) -> str:
        collections = self._collections()
        first = _first(collections, source)
        if first is None:
            own = self._created(source)
            with ExitStack() as stack:
                stack.callback(self._drop, own)
                first = _first(self._collections(), source)
                if first is not None and first.name == own:  # the first of those that were made at once
                    self._fill(own, source)
                    first = first._replace(whole=True)
                    stack.pop_all()
        if first is None or not first.whole:
            self._say(f"{first.writer if first else 'another process'} fills it")
            return ""
        for each in collections:
            if not each.is_fresh and each.name != first.name:
                self._drop(each.name)
        self._client.load_collection(first.name)
        self._noted = 0.0
        return first.name

    def _collections(self) -> list[_Collection]:
        """All collections that carry our properties."""
        found = []
        for name in self._client.list_collections():
            if name.startswith("prvr_"):
                about = self._client.describe_collection(name)
                ours = about.get("properties", {})
                if "prvr.pack" in ours:
                    pack, writer, used = (ours[f"prvr.{key}"] for key in ("pack", "writer", "used"))
                    whole = _alias(pack) in self._client.list_aliases(name)["aliases"]
                    made = about.get("created_timestamp", 0)
                    found.append(_Collection(made, name, pack, writer, float(used), whole))
        return found

    def _created(self, source: ClipSource) -> str:
        """An empty collection for this process alone to fill."""
        from pymilvus import DataType

        name = f"prvr_{source.name}_{uuid.uuid4().hex[:8]}"
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=source.dim)
        writer, self._noted = f"{socket.gethostname()}:{os.getpid()}", time.time()
        about = {"prvr.pack": source.name, "prvr.writer": writer, "prvr.used": str(self._noted)}
        self._client.create_collection(name, schema=schema, properties=about)
        return name

    def _fill(self, name: str, source: ClipSource) -> None:
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="IVF_SQ8", metric_type="IP", params={"nlist": _LISTS})
        self._client.create_index(name, index, sync=False)  # there is nothing to wait for yet
        self._client.load_collection(name)
        for block in source.blocks():
            for part in _requests(block):
                self._client.insert(name, part, timeout=_TIMEOUT)
                self._note(name, every=_DEAD / 60)
        self._client.flush(name)
        counted = self._client.query(name, output_fields=["count(*)"], consistency_level="Strong", timeout=_TIMEOUT)
        if counted[0]["count(*)"] != (rows := source.windows * source.clips):  # a request was sent twice, perhaps
            raise DataError(f"{self._shown}: Milvus has kept {counted[0]['count(*)']} rows of {rows}. Search again.")
        self._client.create_alias(name, _alias(source.name))

    def _note(self, name: str, every: float) -> None:
        """Notes in a collection that it is used."""
        if time.time() - self._noted > every:
            self._noted = time.time()
            self._client.alter_collection_properties(name, {"prvr.used": str(self._noted)})

    def _drop(self, name: str) -> None:
        if self._client.has_collection(name):
            for alias in self._client.list_aliases(name)["aliases"]:
                self._client.drop_alias(alias)
            self._client.drop_collection(name)

    def _search(self, text: np.ndarray, limit: int) -> list[Int64[np.ndarray, " _"]]:
        """For each query the ids of its nearest clips; looks into all lists where some hold fewer than the limit."""
        for probes in (_PROBES, _LISTS):
            found = self._client.search(
                self._collection,
                np.ascontiguousarray(text, np.float32),
                limit=limit,
                search_params={"metric_type": "IP", "params": {"nprobe": probes}},
                anns_field="vector",
                timeout=_TIMEOUT,
            )
            if min(map(len, found)) == limit:
                break
        return [np.array([hit["id"] for hit in hits], np.int64) for hits in found]

    def _say(self, reason: str) -> None:
        """Says once why there is no collection."""
        if reason != self._said:
            logger.warning("%s: every video is scored until the collection is whole (%s)", self._shown, reason)
        self._said = reason

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A collection that is gone is looked for again next time; what else pymilvus raises becomes one message, in
        which a token never stands.
        """
        from pymilvus import MilvusException

        try:
            yield
        except MilvusException as error:
            reason = " ".join(str(error.message).split())[:300]
            if error.code in _GONE:
                self._collection = ""
                self._say(reason)
                return
            self.close()
            if self._is_file:
                remedy = "milvus-lite serves a file to one process: close the other, or use a server."
            else:
                remedy = f"Is a server running there, and is {TOKEN} set if it requires one?"
            raise DataError(f"{self._shown}: Milvus refuses ({reason}). {remedy}") from error


def _alias(pack: str) -> str:
    """The mark of a whole collection, which a server gives to one."""
    return f"prvr_{pack}_whole"


def _first(collections: list[_Collection], source: ClipSource) -> _Collection | None:
    """The collection of a pack that is whole, or else that of the first living writer."""
    of_pack = [each for each in collections if each.pack == source.name and (each.whole or each.is_fresh)]
    return min(of_pack, key=lambda each: (not each.whole, each.made, each.name), default=None)


def _requests(block: ClipBlock) -> Iterator[list[dict[str, Any]]]:
    """The rows of a block, a bounded number at a time. A row's id is the key of its window times the clips of each,
    plus the clip's number.
    """
    clips, dim = block.vectors.shape[1:]
    windows = max(1, _BYTES // (4 * clips * dim))
    for start in range(0, len(block.keys), windows):
        first = block.keys[start : start + windows, None] * clips
        ids, vectors = (first + np.arange(clips)).ravel().tolist(), block.vectors[start : start + windows]
        yield [{"id": id, "vector": vector} for id, vector in zip(ids, vectors.reshape(-1, dim), strict=True)]


def _expect_library(*, lite: bool) -> None:
    require("pymilvus", "prvr-search[milvus]", "The milvus backend")
    if lite and importlib.util.find_spec("milvus_lite") is None:
        raise MissingExtraError(
            "the backend milvus without an address needs milvus-lite: pip install milvus-lite, or pass a server: "
            "milvus:http://host:19530"
        )
