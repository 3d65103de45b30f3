"""Candidates by faiss: inverted lists over clip vectors, in memory, for what one machine holds."""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from prvr.errors import InputError
from prvr.search.backends.faiss_files import FaissFiles, FaissState, import_faiss
from prvr.search.backends.grouping import each_once
from prvr.search.backends.locking import locked
from prvr.search.backends.protocol import ClipBlock, ClipSource

__all__ = ["FaissBackend", "lists_for", "probes_for"]

logger = logging.getLogger(__name__)

_STORAGES = ("Flat", "SQfp16", "SQ8")
_FLAT_BELOW = 10_000  # vectors: about 300 videos of 32 clips
_POINTS = 40  # vectors per list that centroids are found from; faiss warns below 39
_BLOCK = 2**15  # vectors added at a time: 50 MB of 384 float32
_GROWTH = 4  # times as many vectors as the centroids were found for: they are found anew


def lists_for(vectors: int) -> int:
    """Number of inverted lists: the power of two next to twice the root of the number of vectors; 1 = no lists.

    Finding the lists of a query and scanning one of them then grow alike, with the root.

    Example:
        >>> lists_for(5_000), lists_for(320_000), lists_for(3_200_000)
        (1, 1024, 4096)
    """
    return 1 if vectors < _FLAT_BELOW else 2 ** round(math.log2(2 * math.sqrt(vectors)))


def probes_for(lists: int) -> int:
    """How many lists a query looks into: sixteen times the root of their number, all of them up to 256.

    Chosen by measurement (`benchmarks/search.py`, `docs/scaling.md`): reading lists costs little beside scoring the
    candidates, so recall sets the number. All of 256 lists, half of 1024, a quarter of 4096.

    Example:
        >>> probes_for(1), probes_for(1024), probes_for(4096)
        (1, 512, 1024)
    """
    return min(lists, round(16 * math.sqrt(lists)))


class FaissBackend:
    """Inverted lists over all clips; a query looks into the nearest `nprobe` of them.

    Every segment has a file of its own below `INDEX/backends/faiss`, so that a sync writes only what is new. They are
    read into one index in memory. Centroids are found anew when the corpus has grown to four times what it was, or when
    more than half of what is stored belongs to removed videos; small corpora have a single list, which misses nothing.

    Args:
        nprobe: lists that a query looks into; more, if these hold fewer vectors than were asked for. None = what
            `probes_for` says.
        storage: how vectors are kept: `SQ8` (a byte per number), `SQfp16` or `Flat` (float32). The score of a
            candidate is computed from the index itself in any case. A single list is always `Flat`.

    Raises:
        prvr.MissingExtraError: faiss is not installed.
        ValueError: another `nprobe` or `storage` than there is.

    Example:
        >>> FaissBackend(nprobe=16).name
        'faiss'
    """

    name = "faiss"

    def __init__(self, *, nprobe: int | None = None, storage: str = "SQ8") -> None:
        if nprobe is not None and nprobe < 1:
            raise InputError(f"nprobe is {nprobe}, expected at least 1")
        if storage not in _STORAGES:
            raise InputError(f"storage is {storage!r}, expected one of {', '.join(_STORAGES)}")
        import_faiss()
        self.nprobe, self.storage = nprobe, storage
        self._index: Any = None
        self._state: tuple[str, tuple[str, ...]] = ("", ())
        self._live = np.empty(0, np.int64)

    def sync(self, source: ClipSource) -> None:
        """Builds what is missing on disk, then reads all of it into memory.

        Raises:
            DataError: the files cannot be written.
        """
        live, state = source.live_keys(), (source.index_id, source.segments)
        if self._index is not None and state == self._state and np.array_equal(live, self._live):
            return
        folder = source.folder / "backends" / self.name
        with locked(folder):
            index = self._whole(FaissFiles(folder), source, live)
        self._index, self._state, self._live = index, state, live

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """See [CandidateBackend][prvr.search.backends.CandidateBackend]; clips of removed videos are not counted."""
        index = self._index
        if index is None:
            raise RuntimeError("nearest() before sync()")
        vectors = min(vectors, index.ntotal)
        if vectors < 1 or not len(text):
            return [np.empty(0, np.int64)] * len(text)
        probes = index.nlist if vectors == index.ntotal else min(self.nprobe or probes_for(index.nlist), index.nlist)
        found = _search(index, text, vectors, probes)
        while probes < index.nlist and (short := np.flatnonzero(found[:, -1] < 0)).size:
            probes = min(4 * probes, index.nlist)
            found[short] = _search(index, text[short], vectors, probes)
        return [each_once(keys[keys >= 0]) for keys in found]

    @property
    def lists(self) -> int:
        """How many inverted lists there are; 0 before the first sync."""
        return self._index.nlist if self._index is not None else 0

    def close(self) -> None:
        """Frees the memory."""
        self._index, self._state = None, ("", ())

    def _whole(self, files: FaissFiles, source: ClipSource, live: np.ndarray) -> Any:
        """One index of all live windows, with files of all segments behind it."""
        faiss = import_faiss()

        vectors = len(live) * _clips(source)
        state = files.read_state()
        if state is not None and not self._fits(state, source.dim, vectors):
            state = None
        for last in (False, True):
            whole, state = self._assemble(files, state, source, live, vectors)
            held = _ids(whole)
            dead = ~np.isin(held, live)
            if last or (2 * dead.sum() <= len(held) and not np.setdiff1d(live, held).size):
                break
            logger.info("half of the vectors belong to removed videos, or some are missing: building anew")
            state = None
        if dead.any():
            whole.remove_ids(faiss.IDSelectorBatch(np.unique(held[dead])))
        return whole

    def _fits(self, state: FaissState, dim: int, vectors: int) -> bool:
        grown = vectors > _GROWTH * state.vectors or vectors * _GROWTH**2 < state.vectors
        return state.dim == dim and state.storage == self.storage and not grown

    def _assemble(
        self, files: FaissFiles, state: FaissState | None, source: ClipSource, live: np.ndarray, vectors: int
    ) -> tuple[Any, FaissState]:
        """Reads the segments that have a good file, builds the others, and names them one by one in the state.

        So what a killed process had finished is not done again.
        """
        faiss = import_faiss()
        empty = files.load(state.centroids) if state is not None else None
        if state is None or empty is None:
            empty = self._train(source, live, vectors)
            state = FaissState(source.dim, self.storage, vectors, files.store(empty), {})
        whole = faiss.clone_index(empty)
        entries = {name: state.segments[name] for name in source.segments if name in state.segments}
        for segment in source.segments:
            part = files.load(entries[segment]) if segment in entries else None
            if part is None:
                part = _fill(faiss.clone_index(empty), source.blocks(segment), live)
                entries[segment] = files.store(part)
                state = replace(state, segments=dict(entries))
                files.write_state(state)
            whole.merge_from(part, 0)
        if entries != state.segments or not entries:
            state = replace(state, segments=entries)
            files.write_state(state)
        return whole, state

    def _train(self, source: ClipSource, live: np.ndarray, vectors: int) -> Any:
        """An index without vectors, its centroids found from a sample of the live clips."""
        faiss = import_faiss()

        lists = lists_for(vectors)
        sample = _sample(source, live, _POINTS * lists, vectors)
        lists = min(lists, len(sample))
        quantizer = faiss.IndexFlatIP(source.dim)
        if lists == 1 or self.storage == "Flat":
            index = faiss.IndexIVFFlat(quantizer, source.dim, lists, faiss.METRIC_INNER_PRODUCT)
        else:
            kind = faiss.ScalarQuantizer.QT_8bit if self.storage == "SQ8" else faiss.ScalarQuantizer.QT_fp16
            index = faiss.IndexIVFScalarQuantizer(quantizer, source.dim, lists, kind, faiss.METRIC_INNER_PRODUCT)
        index.own_fields = True
        quantizer.this.disown()  # the index frees it
        index.cp.min_points_per_centroid, index.cp.seed = 1, 0
        index.train(sample)
        logger.info("faiss: %d lists for %d vectors, centroids of %d of them", lists, vectors, len(sample))
        return index


def _clips(source: ClipSource) -> int:
    """Clips of a window, from the first block there is."""
    for segment in source.segments:
        for block in source.blocks(segment):
            if len(block.keys):
                return block.vectors.shape[1]
    return 0


def _live_rows(block: ClipBlock, live: np.ndarray) -> tuple[Int64[np.ndarray, " n"], Float32[np.ndarray, "n d"]]:
    keep = np.isin(block.keys, live)
    vectors = block.vectors[keep]
    return np.repeat(block.keys[keep], vectors.shape[1]), vectors.reshape(-1, vectors.shape[-1])


def _sample(source: ClipSource, live: np.ndarray, wanted: int, vectors: int) -> Float32[np.ndarray, "n d"]:
    """About `wanted` clips of the whole corpus, the same ones every time; a row of zeros if there are none."""
    generator = np.random.default_rng(0)
    share = min(1.0, wanted / max(vectors, 1))
    rows = [np.empty((0, source.dim), np.float32)]
    for segment in source.segments:
        for block in source.blocks(segment):
            found = _live_rows(block, live)[1]
            rows.append(found[generator.random(len(found)) < share])
    taken = np.concatenate(rows)
    return taken if len(taken) else np.zeros((1, source.dim), np.float32)


def _fill(index: Any, blocks: Iterator[ClipBlock], live: np.ndarray) -> Any:
    for block in blocks:
        keys, vectors = _live_rows(block, live)
        for start in range(0, len(keys), _BLOCK):
            rows = slice(start, start + _BLOCK)
            index.add_with_ids(np.ascontiguousarray(vectors[rows]), keys[rows])
    return index


def _ids(index: Any) -> Int64[np.ndarray, " n"]:
    """The key of every vector."""
    faiss = import_faiss()

    lists = index.invlists
    sizes = [lists.list_size(number) for number in range(index.nlist)]
    found = [faiss.rev_swig_ptr(lists.get_ids(n), size).copy() for n, size in enumerate(sizes) if size]
    return np.concatenate([np.empty(0, np.int64), *found])


def _search(index: Any, text: np.ndarray, vectors: int, probes: int) -> Int64[np.ndarray, "q n"]:
    faiss = import_faiss()

    chosen = faiss.SearchParametersIVF(nprobe=probes)
    return index.search(np.ascontiguousarray(text, np.float32), vectors, params=chosen)[1]
