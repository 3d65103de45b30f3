"""Backends that find candidates, windows of the nearest clips; `exact` scores every window.

A backend is a module of this package that registers itself in `BACKENDS`; nothing else has to know of it.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from prvr.errors import InputError
from prvr_search.ranking.backends.protocol import BACKENDS, CandidateBackend, ClipBlock, ClipSource

__all__ = [
    "BACKENDS",
    "CandidateBackend",
    "ClipBlock",
    "ClipSource",
    "choose_backend",
    "open_backend",
]

EXACT_UP_TO = 20_000
"""Videos up to which `auto` compares every one of them."""


def open_backend(name: str) -> CandidateBackend | None:
    """The backend that a name stands for; None for `exact`, which scores everything and so needs none.

    Args:
        name: one of `BACKENDS`, perhaps with an address: `milvus:http://host:19530`.

    Raises:
        InputError: no such backend, or it has no address.
        prvr.MissingExtraError: its library is not installed.

    Examples:
        >>> open_backend("exact") is None
        True
    """
    kind, _, address = name.partition(":")
    entry = BACKENDS[kind]
    if address and "address" not in entry.needs:
        raise InputError(f"backend {name!r}: {kind} has no address. Pass {kind}")
    return entry.part(address) if address else entry.part()


def choose_backend(name: str, videos: int) -> str:
    """What `auto` stands for: `exact` up to 20,000 videos, above them `faiss` where it is installed.

    Examples:
        >>> choose_backend("auto", 100)
        'exact'
    """
    if name != "auto":
        return name
    return "faiss" if videos > EXACT_UP_TO and find_spec("faiss") is not None else "exact"


def _score_every_video() -> None:
    """The backend `exact`, which has no candidates: every video is scored."""


BACKENDS.register("exact", _score_every_video, "compares every video")
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
