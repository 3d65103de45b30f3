"""The rows of an index on a Milvus server, and the notes that say which segments they are of."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from prvr.errors import DataError
from prvr.search.backends.protocol import ClipBlock, ClipSource

__all__ = ["MOST", "MilvusRows"]

logger = logging.getLogger(__name__)

MOST = 16_384
"""Rows that a server gives for a query."""

_CLIPS = 4096  # of a window, at most: the id of a row is the key of its window times this, plus the clip's number
_BYTES = 2**23  # of the vectors of a request; servers take 64 MB
_NOT_INDEXED = 1024  # rows of a part below which a server builds no index
_UNFINISHED = -1  # rows of a segment that is being written or deleted
_NOTE = [0.0, 1.0]  # Milvus has no collection without a vector


class MilvusRows:
    """Both collections of an index; makes them if they are missing.

    Args:
        address: of a server, or a file of milvus-lite.
        token: empty = none.
        index_id: names the collections.
        dim: width of the vectors.
        storage: type of the index over the vectors.
        lists: inverted lists of each part of a collection.
        timeout: of a request, in seconds.

    Attributes:
        total: rows there are, those of removed windows included.

    Raises:
        DataError: no server answers, or there is a collection of another width.
    """

    def __init__(
        self, address: str, token: str, index_id: str, dim: int, storage: str, lists: int, *, timeout: float
    ) -> None:
        from pymilvus import MilvusClient

        self.index_id, self.total = index_id, 0
        self._address, self._timeout = re.sub(r"//[^/@]*@", "//", address), timeout  # shown, so without a password
        self._rows = "prvr_" + re.sub(r"[^A-Za-z0-9_]", "_", index_id)
        self._notes = f"{self._rows}_segments"
        with self._explained():
            if "://" not in address:
                Path(address).parent.mkdir(parents=True, exist_ok=True)
            self._client: Any = MilvusClient(address, token=token, timeout=timeout)
            self._make(dim, storage, lists)

    def bring_up_to_date(self, source: ClipSource) -> None:
        """Makes the rows those of the segments of a source.

        Raises:
            DataError: the server does not answer, or it refuses.
        """
        with self._explained():
            if len(source.segments) > MOST:
                raise DataError(f"{len(source.segments)} segments: Milvus takes {MOST}. Add more videos at a time.")
            noted, self.total = self._read_notes(), self._count()
            if self.total != sum(noted.values()):
                noted = self._mended(noted)
            gone = [name for name, rows in noted.items() if rows == _UNFINISHED or name not in source.segments]
            # First of all: rows of a segment that is written anew have the ids of the rows of the old one.
            for name in gone:
                self._delete(name)
            new = [name for name in source.segments if name not in noted or name in gone]
            for name in new:
                self._insert(name, source)
            if gone or new:
                self._client.flush(self._rows)
                self._client.flush(self._notes)
                self.total = self._count()  # waits until all of it can be found

    def search(
        self, text: Float32[np.ndarray, "q d"], limit: int, probes: int, seen: Int64[np.ndarray, " n"] | None = None
    ) -> list[Int64[np.ndarray, " _"]]:
        """For each query the windows of its nearest clips, one per clip, best first.

        Args:
            text: `(q, d)` rows of unit length.
            limit: clips per query, at most `MOST`.
            probes: inverted lists that are looked into.
            seen: windows to leave out.

        Raises:
            DataError: the server does not answer, or it refuses.
        """
        leave_out = "" if seen is None else f"key not in [{', '.join(map(str, seen.tolist()))}]"
        with self._explained():
            found = self._client.search(
                self._rows,
                np.ascontiguousarray(text, np.float32),
                filter=leave_out,
                limit=limit,
                search_params={"metric_type": "IP", "params": {"nprobe": probes}},
                anns_field="vector",
                timeout=self._timeout,
            )
        return [np.array([hit["id"] for hit in hits], np.int64) // _CLIPS for hits in found]

    def pending(self) -> int:
        """Rows that are not searched by the index of the collection yet.

        A server searches new rows by a rougher index of its own: of the best videos 0.73 were found right after their
        insertion, and 0.99 ten seconds later (`docs/scaling.md`).
        """
        with self._explained():
            unbuilt = int(self._client.describe_index(self._rows, "vector").get("pending_index_rows", 0))
            if "://" not in self._address:  # milvus-lite tells nothing of its parts
                return unbuilt
            parts = self._client.list_loaded_segments(self._rows, timeout=self._timeout)
        ready = sum(part.num_rows for part in parts if part.index_name or part.num_rows < _NOT_INDEXED)
        return max(unbuilt, self.total - ready, 0)

    def drop(self) -> None:
        """Deletes both collections."""
        with self._explained():
            for name in (self._rows, self._notes):
                self._client.drop_collection(name)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _make(self, dim: int, storage: str, lists: int) -> None:
        from pymilvus import DataType

        if not self._client.has_collection(self._rows):
            schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("key", DataType.INT64)
            schema.add_field("clip", DataType.INT64)
            schema.add_field("segment", DataType.VARCHAR, max_length=256)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
            self._create(self._rows, schema, storage, {"nlist": lists})
        if not self._client.has_collection(self._notes):
            schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("segment", DataType.VARCHAR, is_primary=True, max_length=256)
            schema.add_field("rows", DataType.INT64)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=len(_NOTE))
            self._create(self._notes, schema, "FLAT", {})
        for name in (self._rows, self._notes):
            self._client.load_collection(name)
        fields = self._client.describe_collection(self._rows)["fields"]
        width = next(int(field["params"]["dim"]) for field in fields if field["name"] == "vector")
        if width != dim:
            raise DataError(
                f"{self._address}: collection {self._rows} holds vectors of width {width}, the index of width {dim}. "
                "It belongs to something else: drop it, or use another server."
            )

    def _create(self, name: str, schema: Any, storage: str, parameters: dict[str, int]) -> None:
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type=storage, metric_type="IP", params=parameters)
        self._client.create_collection(name, schema=schema)
        self._client.create_index(name, index, sync=False)  # there is nothing to wait for yet

    def _read_notes(self) -> dict[str, int]:
        found = self._client.query(
            self._notes,
            filter=f"rows >= {_UNFINISHED}",
            output_fields=["segment", "rows"],
            limit=MOST,
            consistency_level="Strong",
            timeout=self._timeout,
        )
        return {row["segment"]: row["rows"] for row in found}

    def _note(self, segment: str, rows: int) -> None:
        self._client.upsert(self._notes, [{"segment": segment, "rows": rows, "vector": _NOTE}])

    def _count(self, segment: str | None = None) -> int:
        which = "" if segment is None else f'segment == "{segment}"'
        found = self._client.query(
            self._rows, filter=which, output_fields=["count(*)"], consistency_level="Strong", timeout=self._timeout
        )
        return found[0]["count(*)"]

    def _mended(self, noted: dict[str, int]) -> dict[str, int]:
        """The notes, with segments marked that have not as many rows as noted."""
        wrong = [name for name, rows in noted.items() if self._count(name) != rows]
        if lost := [name for name in wrong if noted[name] != _UNFINISHED]:
            message = "%s: %s has lost rows of %d segments, or has too many: they are inserted again"
            logger.warning(message, self._address, self._rows, len(lost))
        return noted | dict.fromkeys(wrong, _UNFINISHED)

    def _delete(self, segment: str) -> None:
        self._note(segment, _UNFINISHED)
        self._client.delete(self._rows, filter=f'segment == "{segment}"', timeout=self._timeout)
        self._client.delete(self._notes, filter=f'segment in ["{segment}"]', timeout=self._timeout)

    def _insert(self, segment: str, source: ClipSource) -> None:
        self._note(segment, _UNFINISHED)
        rows = 0
        for block in source.blocks(segment):
            for part in _requests(segment, block):
                self._client.insert(self._rows, part, timeout=self._timeout)
                rows += len(part)
        self._note(segment, rows)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What pymilvus raises becomes one message; a token never stands in it."""
        from pymilvus import MilvusException

        try:
            yield
        except MilvusException as error:
            said = " ".join(str(error.message).split())[:300]
            if "://" in self._address:
                mend = "Is a server running there, and is PRVR_MILVUS_TOKEN set if it wants one?"
            else:
                mend = "milvus-lite serves a file to one process: close the other, use a server, or the backend faiss."
            raise DataError(f"{self._address}: Milvus refuses ({said}). {mend}") from error


def _requests(segment: str, block: ClipBlock) -> Iterator[list[dict[str, Any]]]:
    """The rows of a block, a bounded number at a time."""
    clips, dim = block.vectors.shape[1:]
    if clips > _CLIPS:
        raise DataError(f"windows have {clips} clips; at most {_CLIPS} fit a row's id in Milvus")
    windows = max(1, _BYTES // (4 * clips * dim))
    for start in range(0, len(block.keys), windows):
        keys, vectors = block.keys[start : start + windows], block.vectors[start : start + windows]
        yield [
            {"id": int(key) * _CLIPS + clip, "key": int(key), "clip": clip, "segment": segment, "vector": vector}
            for key, window in zip(keys, vectors, strict=True)
            for clip, vector in enumerate(window)
        ]
