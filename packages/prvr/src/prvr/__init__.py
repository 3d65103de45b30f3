"""Partially relevant video retrieval: from a sentence to the untrimmed video that holds the moment it describes."""

from typing import TYPE_CHECKING

from prvr.errors import InputError, MissingExtraError, PrvrError, deferred

if TYPE_CHECKING:
    from prvr.config import Config, ConfigError, load_config, preset_names
    from prvr.models import Retriever, TokenRetriever
    from prvr.objective import Objective
    from prvr.released import load_released
    from prvr.released.denoiser import load_released_reranker
    from prvr.stages import CandidateReranker, Pipeline
    from prvr.types import Batch, RetrieverOutput, Scores, TextEmbedding, VideoEmbedding

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "CandidateReranker",
    "Config",
    "ConfigError",
    "InputError",
    "MissingExtraError",
    "Objective",
    "Pipeline",
    "PrvrError",
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

LEAVES = ("prvr.released", "prvr.plot", "prvr.papers", "prvr.toy")
"""Packages that the rest of prvr does not name; each says in `EXTENSIONS` what it adds, see `prvr.extensions`."""

# Imported when first asked for, because they bring torch or pydantic: `prvr --help` need not wait for them.
_LATER = {
    "prvr.config": "Config ConfigError load_config preset_names",
    "prvr.models": "Retriever TokenRetriever",
    "prvr.objective": "Objective",
    "prvr.released": "load_released",
    "prvr.released.denoiser": "load_released_reranker",
    "prvr.stages": "CandidateReranker Pipeline",
    "prvr.types": "Batch RetrieverOutput Scores TextEmbedding VideoEmbedding",
}
__getattr__ = deferred(__name__, _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
