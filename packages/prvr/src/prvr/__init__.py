"""Partially relevant video retrieval: from a sentence to the untrimmed video that holds the moment it describes."""

from typing import TYPE_CHECKING, Any

from prvr.errors import InputError, MissingExtraError, PrvrError, deferred

if TYPE_CHECKING:
    from prvr.config import Config, ConfigError, load_config, preset_names
    from prvr.models import Retriever
    from prvr.objective import Objective
    from prvr.stages import Pipeline
    from prvr.types import Batch, RetrieverOutput, Scores, TextEmbedding, VideoEmbedding

__version__ = "0.1.0"

__all__ = [
    "Batch",
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
    "VideoEmbedding",
    "load_config",
    "preset_names",
]

LEAVES = ("prvr.published", "prvr.plot", "prvr.papers", "prvr.toy")
"""Packages that the rest of prvr does not name; each says in `EXTENSIONS` what it adds, see `prvr.extensions`."""

# Imported when first asked for, because they bring torch or pydantic: `prvr --help` need not wait for them.
_LATER = deferred(__name__, "config types models objective stages")


def __getattr__(name: str) -> Any:
    if name in __all__ or name.startswith("_"):
        return _LATER(name)
    from prvr.extensions import extensions

    return deferred(__name__, {place: names for some in extensions("names", False) for place, names in some.items()})(
        name
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
