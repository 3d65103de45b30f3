"""Partially relevant video retrieval: from a sentence to the untrimmed video that holds the moment it describes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prvr.errors import InputError, MissingExtraError, PrvrError

if TYPE_CHECKING:
    from prvr.config import Config, ConfigError, load_config, preset_names
    from prvr.models import Retriever, TokenRetriever
    from prvr.objective import Objective
    from prvr.released import load_released
    from prvr.released.denoiser import load_released_reranker
    from prvr.search import Library, Query
    from prvr.stages import CandidateReranker, Pipeline
    from prvr.types import Batch, RetrieverOutput, Scores, TextEmbedding, VideoEmbedding

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "CandidateReranker",
    "Config",
    "ConfigError",
    "InputError",
    "Library",
    "MissingExtraError",
    "Objective",
    "Pipeline",
    "PrvrError",
    "Query",
    "Retriever",
    "RetrieverOutput",
    "Scores",
    "TextEmbedding",
    "TokenRetriever",
    "VideoEmbedding",
    "load_config",
    "load_released",
    "load_released_reranker",
    "preset_names",
]

# Imported when first asked for, because they bring torch or pydantic: `prvr --help` need not wait for them.
_LATER = {
    "prvr.config": ("Config", "ConfigError", "load_config", "preset_names"),
    "prvr.models": ("Retriever", "TokenRetriever"),
    "prvr.objective": ("Objective",),
    "prvr.released": ("load_released",),
    "prvr.released.denoiser": ("load_released_reranker",),
    "prvr.search": ("Library", "Query"),
    "prvr.stages": ("CandidateReranker", "Pipeline"),
    "prvr.types": ("Batch", "RetrieverOutput", "Scores", "TextEmbedding", "VideoEmbedding"),
}
_MODULES = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'prvr' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
