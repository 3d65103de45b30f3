"""Partially relevant video retrieval: from a sentence to the untrimmed video that holds the moment it describes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prvr.config import Config, ConfigError, load_config, preset_names
from prvr.errors import InputError, MissingExtraError, PrvrError

if TYPE_CHECKING:
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

# Imported when first asked for, because they bring torch: `prvr --help` and reading a preset need not wait for it.
_LATER = {
    "Retriever": "prvr.models",
    "TokenRetriever": "prvr.models",
    "TextEmbedding": "prvr.types",
    "Library": "prvr.search",
    "Query": "prvr.search",
    "Objective": "prvr.objective",
    "CandidateReranker": "prvr.stages",
    "Pipeline": "prvr.stages",
    "load_released": "prvr.released",
    "load_released_reranker": "prvr.released.denoiser",
    "Batch": "prvr.types",
    "RetrieverOutput": "prvr.types",
    "Scores": "prvr.types",
    "VideoEmbedding": "prvr.types",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'prvr' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
