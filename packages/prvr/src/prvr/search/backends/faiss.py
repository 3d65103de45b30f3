"""Candidates by faiss: compressed clip vectors in memory, for what one machine holds."""

import errno
import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float32, Int64

from prvr.data.atomic import clear_half_written, is_real_folder, replace_file
from prvr.errors import DataError, require
from prvr.reading import parse_json, parse_record
from prvr.search.backends.protocol import ClipBlock, ClipSource, each_once, locked

logger = logging.getLogger(__name__)

_FILE, _FORMAT = "clips.faiss", 2
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_HASH_BYTES = 32
_FLAT_BELOW = 10_000  # vectors: about 300 videos of 32 clips
_LEARNED_FROM = 2**16  # vectors that the code books are learned from
_BLOCK = 2**15  # vectors added at a time: 50 MB of 384 float32
_GROWTH = 4  # times as many vectors as the code books were learned for: they are learned anew


@dataclass(frozen=True)
class _Header:
    """What the vectors in a file are, in its first line.

    Args:
        index_id: the id of the index that they belong to.
        dim: width of the vectors.
        trained: number of vectors when the code books were learned.
        segments: the segments whose windows are in the file.
        format: the version of the format of the file.
    """

    index_id: str
    dim: int
    trained: int
    segments: tuple[str, ...] = ()
    format: int = _FORMAT


def import_faiss() -> Any:
    """The library.

    Raises:
        prvr.MissingExtraError: it is not installed; the message says how to.
    """
    return require("faiss", "search", "The faiss backend")


class FaissBackend:
    """All clips, compressed and compared with a query.

    They are one file, `INDEX/backends/faiss/clips.faiss`, which is read into memory and replaced as a whole when
    segments have come: only their vectors are added. Code books are learned anew when the corpus has grown to four
    times what it was; small corpora are kept as float32, and nothing is missed. A damaged file, or that of another
    index, is made again.

    Vectors are kept as four bits for each pair of numbers: product quantization that is searched by table look-ups
    within the processor's registers, so quickly that every vector is compared. The score of a candidate is computed
    from the index itself in any case.

    Raises:
        prvr.MissingExtraError: faiss is not installed.
    """

    name = "faiss"

    def __init__(self) -> None:
        import_faiss()
        self._index: Any = None
        self._state: tuple[str, tuple[str, ...]] = ("", ())
        self._live = np.empty(0, np.int64)

    def sync(self, source: ClipSource) -> None:
        """Reads the file into memory, and brings it up to date.

        Raises:
            DataError: the file cannot be written.
        """
        live, state = source.live_keys(), (source.index_id, source.segments)
        if self._index is not None and state == self._state and np.array_equal(live, self._live):
            return
        folder = source.folder / "backends" / self.name
        with locked(folder):
            index = self._up_to_date(folder, source, live)
        self._index, self._state, self._live = index, state, live

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """See [CandidateBackend][prvr.search.backends.CandidateBackend]; clips of removed videos are not counted."""
        index = self._index
        if index is None:
            raise RuntimeError("nearest() before sync()")
        vectors = min(vectors, index.ntotal)
        if vectors < 1 or not len(text):
            return [np.empty(0, np.int64)] * len(text)
        found = index.search(np.ascontiguousarray(text, np.float32), vectors)[1]
        return [each_once(keys[keys >= 0]) for keys in found]

    def close(self) -> None:
        """Frees the memory."""
        self._index, self._state = None, ("", ())

    def _up_to_date(self, folder: Path, source: ClipSource, live: np.ndarray) -> Any:
        """An index of all live windows, with the file behind it."""
        faiss, vectors = import_faiss(), len(live) * source.clips
        header, index = _read(folder / _FILE)
        kept = held = np.empty(0, np.int64)
        if header is not None and self._fits(header, source, vectors):
            held = _ids(index)
            known = [source.keys(segment) for segment in source.segments if segment in header.segments]
            kept = np.intersect1d(live, np.concatenate([kept, *known]))
        else:
            header = None
        if header is None or np.setdiff1d(kept, held).size:
            index, held = self._train(source, live, vectors), np.empty(0, np.int64)
            header = _Header(source.index_id, source.dim, vectors)
        if (gone := ~np.isin(held, kept)).any():
            index.remove_ids(faiss.IDSelectorBatch(np.unique(held[gone])))
        new = [segment for segment in source.segments if segment not in header.segments]
        for segment in new:
            _fill(index, source.blocks(segment), live)
        if new or not header.segments or 2 * gone.sum() > len(held):
            _write(folder, replace(header, segments=source.segments), index)
        return index

    def _fits(self, header: _Header, source: ClipSource, vectors: int) -> bool:
        """Whether a file can be brought up to date."""
        same = (header.index_id, header.dim) == (source.index_id, source.dim)
        return same and header.trained <= vectors * _GROWTH**2 and vectors <= header.trained * _GROWTH

    def _train(self, source: ClipSource, live: np.ndarray, vectors: int) -> Any:
        """An index without vectors; its code books are learned from a sample of the live clips."""
        faiss = import_faiss()
        quantizer = faiss.IndexFlatIP(source.dim)
        if vectors < _FLAT_BELOW:
            sample = np.zeros((1, source.dim), np.float32)
            index = faiss.IndexIVFFlat(quantizer, source.dim, 1, faiss.METRIC_INNER_PRODUCT)
        else:
            sample = _sample(source, live, vectors)
            parts = source.dim // 2 if source.dim % 2 == 0 else source.dim
            index = faiss.IndexIVFPQFastScan(quantizer, source.dim, 1, parts, 4, faiss.METRIC_INNER_PRODUCT)
        index.own_fields = True
        quantizer.this.disown()  # the index frees it
        index.cp.min_points_per_centroid, index.cp.seed = 1, 0
        index.train(sample)
        return index


def _live_rows(block: ClipBlock, live: np.ndarray) -> tuple[Int64[np.ndarray, " n"], Float32[np.ndarray, "n d"]]:
    keep = np.isin(block.keys, live)
    vectors = block.vectors[keep]
    return np.repeat(block.keys[keep], vectors.shape[1]), vectors.reshape(-1, vectors.shape[-1])


def _sample(source: ClipSource, live: np.ndarray, vectors: int) -> Float32[np.ndarray, "n d"]:
    """Some clips of the whole corpus, the same ones every time."""
    generator = np.random.default_rng(0)
    rows = []
    for segment in source.segments:
        for block in source.blocks(segment):
            found = _live_rows(block, live)[1]
            rows.append(found[generator.random(len(found)) < _LEARNED_FROM / vectors])
    return np.concatenate(rows)


def _fill(index: Any, blocks: Iterator[ClipBlock], live: np.ndarray) -> None:
    """Adds the live windows of some blocks to an index."""
    for block in blocks:
        keys, vectors = _live_rows(block, live)
        for start in range(0, len(keys), _BLOCK):
            rows = slice(start, start + _BLOCK)
            index.add_with_ids(np.ascontiguousarray(vectors[rows]), keys[rows])


def _ids(index: Any) -> Int64[np.ndarray, " n"]:
    """The key of every vector; there is a single list."""
    if not index.ntotal:
        return np.empty(0, np.int64)
    return import_faiss().rev_swig_ptr(index.invlists.get_ids(0), index.ntotal).copy()


def _read(path: Path) -> tuple[_Header | None, Any]:
    """The header and the index in a file; None, with a warning where the file is damaged."""
    try:
        if not path.is_file():  # opening a pipe would wait
            if path.exists():
                raise ValueError("not a regular file")
            return None, None
        with path.open("rb") as file:
            # Before faiss reads it: a damaged length could make it ask for any amount of memory.
            seen, left = hashlib.blake2b(digest_size=_HASH_BYTES), path.stat().st_size - _HASH_BYTES
            while left > 0 and (data := file.read(min(left, 2**20))):
                seen.update(data)
                left -= len(data)
            if file.read() != seen.digest():
                raise ValueError("its content does not match its hash")
            file.seek(0)
            header = parse_record(_Header, parse_json(file.readline().decode(), path.name), path.name)
            if header.format != _FORMAT:
                raise ValueError(f"its format is {header.format}, this version reads {_FORMAT}")
            faiss = import_faiss()
            return header, faiss.read_index(faiss.PyCallbackIOReader(file.read))
    except (OSError, ValueError, RuntimeError) as error:
        logger.warning("%s cannot be used (%s) and is rebuilt", path, str(error).rstrip("."))
        return None, None


def _write(folder: Path, header: _Header, index: Any) -> None:
    """Replaces the file; where the folder is read-only, nothing is kept.

    Raises:
        DataError: the folder cannot be written.
    """
    faiss, seen = import_faiss(), hashlib.blake2b(digest_size=_HASH_BYTES)

    def write(file: BinaryIO) -> None:
        def pass_on(data: bytes) -> int:
            seen.update(data)
            return file.write(data)

        pass_on(json.dumps(asdict(header)).encode() + b"\n")
        faiss.write_index(index, faiss.PyCallbackIOWriter(pass_on))
        file.write(seen.digest())

    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / _FILE, write)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise DataError(
                f"{folder}: cannot be written ({error}). Free disk space or fix its permissions; the backend "
                "'exact' needs no files."
            ) from error
        logger.warning("%s is read-only: the faiss index is built in memory each time it is opened", folder)
        return
    if is_real_folder(folder) and is_real_folder(folder.parent):  # a link: who knows what else is written there
        clear_half_written(folder)
