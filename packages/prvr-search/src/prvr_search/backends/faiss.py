"""Candidates by faiss: compressed clip vectors in memory, for what one machine holds."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float32, Int64

from prvr.errors import require
from prvr.reading import parse_json, parse_record
from prvr_search.backends.protocol import BACKENDS, CandidateBackend, ClipBlock, ClipSource
from prvr_search.backends.signed import read_signed, write_signed

_FILE, _FORMAT = "clips.faiss", 3
_FLAT_BELOW = 10_000  # vectors: about 300 videos of 32 clips
_LEARNED_FROM = 2**16  # vectors that the code books are learned from
_BLOCK = 2**15  # vectors added at a time: 50 MB of 384 float32
_GROWTH = 4  # times as many vectors as the code books were learned for: they are learned anew


@dataclass(frozen=True)
class _Header:
    """What the vectors in a file are, in its first line.

    Args:
        generation: that of the index that they belong to.
        dim: width of the vectors.
        trained: number of vectors when the code books were learned.
        windows: how many windows of the index were read.
        format: the version of the format of the file.
    """

    generation: str
    dim: int
    trained: int
    windows: int = 0
    format: int = _FORMAT


_NOTHING: tuple[_Header | None, Any] = (None, None)


def import_faiss() -> Any:
    """The library.

    Raises:
        prvr.MissingExtraError: it is not installed; the message says how to.
    """
    return require("faiss", "prvr-search", "The faiss backend")


class FaissBackend(CandidateBackend):
    """All clips, compressed and compared with a query.

    They are one file, `INDEX/backends/faiss/clips.faiss`, which is read into memory and replaced as a whole when
    windows have come: only their vectors are added. Code books are learned anew when the corpus has grown to four
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
        super().__init__()
        import_faiss()
        self._index: Any = None

    def _search(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        rows = self._index.search(np.ascontiguousarray(text, np.float32), vectors)[1]
        return [keys[keys >= 0] for keys in rows]

    def close(self) -> None:
        """Frees the memory."""
        super().close()
        self._index = None

    def _update(self, source: ClipSource, folder: Path, live: Int64[np.ndarray, " n"]) -> int:
        faiss, vectors = import_faiss(), len(live) * source.clips
        header, index = read_signed(folder / _FILE, _read) or _NOTHING
        if header is None or not self._fits(header, source, vectors):
            header, index = _Header(source.generation, source.dim, vectors), self._train(source, live, vectors)
        held = _ids(index)
        if (gone := ~np.isin(held, live)).any():
            index.remove_ids(faiss.IDSelectorBatch(np.unique(held[gone])))
        new = header.windows < source.windows
        if new:
            _fill(index, source.blocks(header.windows), live)
        if new or not source.windows:
            _write(folder / _FILE, replace(header, windows=source.windows), index)
        self._index = index
        return index.ntotal

    def _fits(self, header: _Header, source: ClipSource, vectors: int) -> bool:
        """Whether a file can be brought up to date."""
        same = (header.generation, header.dim) == (source.generation, source.dim)
        return same and header.windows <= source.windows and vectors <= header.trained * _GROWTH

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
    for block in source.blocks():
        clips = _live_rows(block, live)[1]
        rows.append(clips[generator.random(len(clips)) < _LEARNED_FROM / vectors])
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


def _read(file: BinaryIO) -> tuple[_Header, Any]:
    """The header and the index in a file.

    Raises:
        ValueError: it is of another format.
    """
    header = parse_record(_Header, parse_json(file.readline().decode(), _FILE), _FILE)
    if header.format != _FORMAT:
        raise ValueError(f"its format is {header.format}, this version reads {_FORMAT}")
    faiss = import_faiss()
    return header, faiss.read_index(faiss.PyCallbackIOReader(file.read))


def _write(path: Path, header: _Header, index: Any) -> None:
    """Replaces the file."""
    faiss = import_faiss()

    def write(file: BinaryIO) -> None:
        file.write(json.dumps(asdict(header)).encode() + b"\n")
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))

    write_signed(path, write)


BACKENDS.register("faiss", FaissBackend, "compressed clips in memory, on one machine")
