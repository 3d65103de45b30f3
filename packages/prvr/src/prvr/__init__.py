"""Partially relevant video retrieval: from a sentence to the untrimmed video that holds the moment it describes."""

from prvr.config import Config, ConfigError, load_config, preset_names
from prvr.models import Retriever
from prvr.objective import Objective
from prvr.released import load_released
from prvr.types import Batch, RetrieverOutput, Scores, VideoEmbedding

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Config",
    "ConfigError",
    "Objective",
    "Retriever",
    "RetrieverOutput",
    "Scores",
    "VideoEmbedding",
    "load_config",
    "load_released",
    "preset_names",
]
