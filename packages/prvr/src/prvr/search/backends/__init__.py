"""Backends that find candidates, windows of the nearest clips: `faiss` and `milvus`; `exact` scores every window."""

from importlib.util import find_spec

from prvr.errors import InputError
from prvr.search.backends.protocol import FOLDER as BACKENDS_FOLDER
from prvr.search.backends.protocol import CandidateBackend, ClipBlock, ClipSource

__all__ = [
    "BACKENDS",
    "BACKENDS_FOLDER",
    "CandidateBackend",
    "ClipBlock",
    "ClipSource",
    "choose_backend",
    "open_backend",
]

EXACT_UP_TO = 20_000
"""Videos up to which `auto` compares every one of them."""


BACKENDS = ("exact", "faiss", "milvus")


def open_backend(name: str) -> CandidateBackend | None:
    """The backend that a name stands for; None for `exact`, which scores everything and so needs none.

    Args:
        name: `exact`, `faiss`, or `milvus`, the last perhaps with an address: `milvus:http://host:19530`.

    Raises:
        ValueError: no such backend.
        prvr.MissingExtraError: its library is not installed.

    Examples:
        >>> open_backend("exact") is None
        True
    """
    kind, _, address = name.partition(":")
    if kind == "exact":
        return None
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
