"""Search one's own videos by a sentence: an index of their vectors, and the moments that answer.

Examples:
    >>> with Library("films") as library:  # doctest: +SKIP
    ...     hit = library.search("a red square rises").hits[0]
    ...     print(hit.video_id, hit.start, hit.end)
"""

from prvr.filters import SearchFilter
from prvr.search.index import VideoIndex
from prvr.search.library import Library, NothingEncoded
from prvr.search.model import ModelIdentity, RowSet, SearchModel, WindowVectors
from prvr.search.opening import open_model
from prvr.search.query import Passage, Query
from prvr.search.results import (
    CURVE_PARTS,
    WEAKER_BELOW,
    Moment,
    SearchHit,
    SearchResult,
)

__all__ = [
    "CURVE_PARTS",
    "WEAKER_BELOW",
    "Library",
    "ModelIdentity",
    "Moment",
    "NothingEncoded",
    "Passage",
    "Query",
    "RowSet",
    "SearchFilter",
    "SearchHit",
    "SearchModel",
    "SearchResult",
    "VideoIndex",
    "WindowVectors",
    "open_model",
]
