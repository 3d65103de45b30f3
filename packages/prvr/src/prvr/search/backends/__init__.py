"""Backends that find candidates: `exact` takes every window, `faiss` and `milvus` the windows of the nearest clips."""

from importlib.util import find_spec

import numpy as np
from jaxtyping import Float32, Int64

from prvr.errors import InputError
from prvr.search.backends.protocol import CandidateBackend, ClipBlock, ClipSource

__all__ = ["BACKENDS", "CandidateBackend", "ClipBlock", "ClipSource", "ExactBackend", "choose_backend", "open_backend"]

EXACT_UP_TO = 20_000
"""Videos up to which `auto` compares every one of them."""


class ExactBackend:
    """Gives all live windows for every query, so that all of them are scored. Nothing is kept beside the index.

    Examples:
        >>> ExactBackend().nearest(np.zeros((2, 4), np.float32), 10)
        [array([], dtype=int64), array([], dtype=int64)]
    """

    name, exhaustive = "exact", True

    def __init__(self) -> None:
        self._keys = np.empty(0, np.int64)

    def sync(self, source: ClipSource) -> None:
        """Notes which windows there are."""
        self._keys = source.live_keys()

    def nearest(self, text: Float32[np.ndarray, "q d"], vectors: int) -> list[Int64[np.ndarray, " _"]]:
        """All windows, in the order of their keys, however many clips were asked for."""
        return [self._keys] * len(text)

    def close(self) -> None:
        """There is nothing to release."""


BACKENDS = ("exact", "faiss", "milvus")


def open_backend(name: str) -> CandidateBackend:
    """The backend that a name stands for.

    Args:
        name: `exact`, `faiss`, or `milvus`, the last perhaps with an address: `milvus:http://host:19530`.

    Raises:
        ValueError: no such backend.
        prvr.MissingExtraError: its library is not installed.

    Examples:
        >>> open_backend("exact").name
        'exact'
    """
    kind, _, address = name.partition(":")
    if kind == "exact":
        return ExactBackend()
    if kind == "faiss":
        from prvr.search.backends.faiss import FaissBackend

        return FaissBackend()
    if kind == "milvus":
        from prvr.search.backends.milvus import MilvusBackend

        return MilvusBackend(address or None)
    raise InputError(f"backend {name!r}: expected one of {', '.join(BACKENDS)}; milvus:ADDRESS names a server")


def choose_backend(name: str, videos: int) -> str:
    """What `auto` stands for: `exact` up to 20,000 videos, above them `faiss` where it is installed.

    Examples:
        >>> choose_backend("auto", 100)
        'exact'
    """
    if name != "auto":
        return name
    return "faiss" if videos > EXACT_UP_TO and find_spec("faiss") is not None else "exact"
