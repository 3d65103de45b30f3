"""Candidates by faiss: compressed clip vectors in memory, for what one machine holds."""

from functools import partial
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float32, Int64

from prvr.errors import require
from prvr_search.ranking.backends.protocol import BACKENDS, CandidateBackend, ClipSource
from prvr_search.store.signed import read_signed, write_signed

_FORMAT = 4
_FLAT_BELOW = 10_000  # vectors: about 300 videos of 32 clips
_LEARNED_FROM = 2**16  # vectors that the code books are learned from
_BLOCK = 2**15  # vectors added at a time: 50 MB of 384 float32


def import_faiss() -> Any:
    """The library.

    Raises:
        prvr.MissingExtraError: it is not installed; the message says how to.
    """
    return require("faiss", "prvr-search", "The faiss backend")


class FaissBackend(CandidateBackend):
    """All clips, compressed and compared with a query.

    They are one file beside the pack, `PACK.faiss`, which is read into memory and made again if it is damaged. Small
    corpora are kept as float32, and nothing is missed.

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

    def _open(self, source: ClipSource) -> int:
        faiss, path = import_faiss(), source.folder / f"{source.name}.faiss"
        self._index = read_signed(path, _read)
        if self._index is None or self._index.d != source.dim:
            self._index = self._made(source)
            write_signed(path, partial(_write, self._index))
        gone = np.setdiff1d(np.arange(source.windows), source.live)
        if len(gone):
            self._index.remove_ids(faiss.IDSelectorBatch(gone))
        return self._index.ntotal

    def _made(self, source: ClipSource) -> Any:
        """An index of all clips; its code books are learned from a sample of them."""
        faiss, vectors = import_faiss(), source.windows * source.clips
        quantizer = faiss.IndexFlatIP(source.dim)
        if vectors < _FLAT_BELOW:
            sample = np.zeros((1, source.dim), np.float32)
            index = faiss.IndexIVFFlat(quantizer, source.dim, 1, faiss.METRIC_INNER_PRODUCT)
        else:
            sample = _sample(source, vectors)
            parts = source.dim // 2 if source.dim % 2 == 0 else source.dim
            index = faiss.IndexIVFPQFastScan(quantizer, source.dim, 1, parts, 4, faiss.METRIC_INNER_PRODUCT)
        index.own_fields = True
        quantizer.this.disown()  # the index frees it
        index.cp.min_points_per_centroid, index.cp.seed = 1, 0
        index.train(sample)
        for block in source.blocks():
            keys, rows = np.repeat(block.keys, source.clips), block.vectors.reshape(-1, source.dim)
            for start in range(0, len(keys), _BLOCK):
                index.add_with_ids(np.ascontiguousarray(rows[start : start + _BLOCK]), keys[start : start + _BLOCK])
        return index


def _sample(source: ClipSource, vectors: int) -> Float32[np.ndarray, "n d"]:
    """Some clips of the whole pack, the same ones every time."""
    generator = np.random.default_rng(0)
    clips = (block.vectors.reshape(-1, source.dim) for block in source.blocks())
    return np.concatenate([rows[generator.random(len(rows)) < _LEARNED_FROM / vectors] for rows in clips])


def _read(file: BinaryIO) -> Any:
    """The index in a file.

    Raises:
        ValueError: it is of another format.
    """
    if (version := int.from_bytes(file.read(4), "little")) != _FORMAT:
        raise ValueError(f"its format is {version}, this version reads {_FORMAT}")
    faiss = import_faiss()
    return faiss.read_index(faiss.PyCallbackIOReader(file.read))


def _write(index: Any, file: BinaryIO) -> None:
    faiss = import_faiss()
    file.write(_FORMAT.to_bytes(4, "little"))
    faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


BACKENDS.register("faiss", FaissBackend, "compressed clips in memory, on one machine")
