"""Candidates by Milvus: a server, a cluster, or milvus-lite in a file, all through pymilvus."""

import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from prvr.data.atomic import user_cache
from prvr.errors import DataError, require
from prvr_search.ranking.backends import ClipSource

logger = logging.getLogger(__name__)

TOKEN = "PRVR_MILVUS_TOKEN"
"""The environment variable that holds `user:password` or an API key of a server."""
MOST = 16_384
"""Rows that a server gives for a query."""

_AT_ONCE = 2**16  # hits of a request
_LISTS, _PROBES = 1024, 256  # of every part that a server cuts a collection into: lists, and how many a query reads
_TIMEOUT = 120.0  # seconds, of a request
_DEAD = 600.0  # seconds after which a writer without progress has died; clocks may differ by minutes
_KEPT = 7 * 86_400.0  # seconds for which a collection is kept that nobody searches
_OVERTAKEN = (100, 1600, 1602)  # another process has dropped the collection, or its alias, or has given it to its own


class _Collection(NamedTuple):
    """A collection of a pack; those that are whole and older come first."""

    is_partial: bool
    made: int
    name: str
    writer: str


class MilvusBackend:
    """A collection per pack with a row per clip, which any number of computers search.

    A process that finds no collection of a pack makes one that it alone fills, `prvr_HASH_RANDOM`, whose properties
    name the process and the time of its last step. When the rows are flushed and counted, the collection gets the alias
    `prvr_HASH_whole`, which a server gives to one: without it, no collection is searched. Other processes meanwhile
    score every video, until the writer has made no progress for ten minutes; then they make a collection of their own.
    Those that nobody has searched for a week are dropped, those without our properties never.

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
        require("pymilvus", "prvr-search[milvus]", "The milvus backend")
        if self._is_file:
            require("milvus_lite", "milvus-lite", "The milvus backend without a server (milvus:http://host:19530)")
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
        self._source = source
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
        with self._explained():
            if vectors <= MOST and self._open(source):
                step = max(1, _AT_ONCE // vectors)
                parts = [self._search(text[start : start + step], vectors) for start in range(0, len(text), step)]
                return [ids // source.clips for part in parts for ids in part]
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
            logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs tracebacks of what `_explained` explains
            if self._is_file:
                Path(self.address).parent.mkdir(parents=True, exist_ok=True)
            self._client = MilvusClient(self.address, token=os.environ.get(TOKEN, ""), timeout=_TIMEOUT)
        if not self._collection:
            first = self._first(source.name) or self._made(source)
            if first is None or first.is_partial:
                self._say("it was dropped" if first is None else f"{first.writer} fills it")
                return False
            self._client.load_collection(first.name)
            self._collection, self._noted = first.name, 0.0
        self._note(self._collection, every=_KEPT / 100)
        return True

    def _first(self, pack: str) -> _Collection | None:
        """The collection of a pack that is whole, or else that of the first living writer; drops what is old."""
        candidates = list[_Collection]()
        for name in self._client.list_collections():
            about = self._client.describe_collection(name) if name.startswith("prvr_") else {}
            if "prvr.pack" not in (ours := about.get("properties", {})):
                continue
            aliases = self._client.list_aliases(name)["aliases"]
            is_partial, is_wanted = _alias(ours["prvr.pack"]) not in aliases, ours["prvr.pack"] == pack
            age = abs(time.time() - float(ours["prvr.used"]))
            if age > (_DEAD if is_partial else _KEPT) and (is_partial or not is_wanted):
                for alias in aliases:
                    self._client.drop_alias(alias)
                self._client.drop_collection(name)
            elif is_wanted:
                candidates.append(_Collection(is_partial, about.get("created_timestamp", 0), name, ours["prvr.writer"]))
        return min(candidates, default=None)

    def _made(self, source: ClipSource) -> _Collection | None:
        """A new collection, filled, or that of another process that has begun just before; None if it was dropped."""
        from pymilvus import DataType, MilvusException

        own, self._noted = f"prvr_{source.name}_{secrets.token_hex(4)}", time.time()
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)  # the key of the window times the clips, plus the clip
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=source.dim)
        writer = f"{socket.gethostname()}:{os.getpid()}"
        ours = {"prvr.pack": source.name, "prvr.writer": writer, "prvr.used": str(self._noted)}
        self._client.create_collection(own, schema=schema, properties=ours)
        with ExitStack() as stack:
            stack.callback(self._client.drop_collection, own)
            first = self._first(source.name)
            if first is None or first.name != own:
                return first
            try:
                self._fill(own, source)
            except MilvusException:
                if self._client.has_collection(own):
                    raise
                return None
            stack.pop_all()
            return first._replace(is_partial=False)

    def _fill(self, name: str, source: ClipSource) -> None:
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="IVF_SQ8", metric_type="IP", params={"nlist": _LISTS})
        self._client.create_index(name, index, sync=False)  # there is nothing to wait for yet
        self._client.load_collection(name)
        ids = count()
        for block in source.blocks():
            rows = [{"id": next(ids), "vector": vector} for vector in block.reshape(-1, source.dim)]
            self._client.insert(name, rows, timeout=_TIMEOUT)
            self._note(name, every=_DEAD / 60)
        self._client.flush(name)
        counted = self._client.query(name, output_fields=["count(*)"], consistency_level="Strong", timeout=_TIMEOUT)
        kept, wanted = counted[0]["count(*)"], source.windows * source.clips
        if kept != wanted:  # rows were lost, or sent twice
            raise DataError(f"{self._shown}: Milvus has kept {kept} rows of {wanted}. Search again.")
        self._client.create_alias(name, _alias(source.name))

    def _note(self, name: str, every: float) -> None:
        """Notes in a collection that it is used."""
        if time.time() - self._noted > every:
            self._noted = time.time()
            self._client.alter_collection_properties(name, {"prvr.used": str(self._noted)})

    def _search(self, text: np.ndarray, limit: int) -> list[Int64[np.ndarray, " _"]]:
        """For each query the ids of its nearest clips; looks into all lists where some hold fewer than the limit."""
        for probes in (_PROBES, _LISTS):
            results = self._client.search(
                self._collection,
                np.ascontiguousarray(text, np.float32),
                limit=limit,
                search_params={"metric_type": "IP", "params": {"nprobe": probes}},
                anns_field="vector",
                timeout=_TIMEOUT,
            )
            if min(map(len, results)) == limit:
                break
        return [np.array([hit["id"] for hit in hits], np.int64) for hits in results]

    def _say(self, reason: str) -> None:
        """Says once why there is no collection."""
        if reason != self._said:
            logger.warning("%s: every video is scored until the collection is whole (%s)", self._shown, reason)
        self._said = reason

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A collection that cannot be searched is looked for again next time; what else pymilvus raises becomes one
        message, in which a token never stands.
        """
        from pymilvus import MilvusException

        try:
            yield
        except MilvusException as error:
            reason = " ".join(str(error.message).split())[:300]
            if self._collection or error.code in _OVERTAKEN:
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
    """The mark of the whole collection of a pack."""
    return f"prvr_{pack}_whole"
