"""The family of retrievers, composed of blocks, a fusion and optional registers."""

from prvr.models.auto import (
    AnyRetriever,
    blocks_alone,
    build_retriever,
    load_pretrained,
    path_alone,
    reconfigured,
)
from prvr.models.encoders import QueryPart
from prvr.models.layers import TokenWeights, project_bounds
from prvr.models.own_retriever import Indexed, OwnRetriever
from prvr.models.retriever import Retriever

__all__ = [
    "AnyRetriever",
    "Indexed",
    "OwnRetriever",
    "QueryPart",
    "Retriever",
    "TokenWeights",
    "blocks_alone",
    "build_retriever",
    "load_pretrained",
    "path_alone",
    "project_bounds",
    "reconfigured",
]
