"""Search one's own videos by a sentence: an index of their vectors, and the moments that answer.

Examples:
    >>> store = VideoStore("store")  # doctest: +SKIP
    >>> with VideoIndex.create("index", open_model("zero-shot", store.header), store.header) as index:  # doctest: +SKIP
    ...     index.add(store)
    ...     hit = index.search("a red square rises").hits[0]
    ...     print(hit.video_id, hit.start, hit.end)
"""

from prvr.search.film_library import Library, LibraryBusy, LibraryReport, Unreadable
from prvr.search.index import VideoIndex
from prvr.search.model import ModelIdentity, RowSet, SearchModel, WindowVectors
from prvr.search.opening import open_model
from prvr.search.query import Passage, Query, SearchFilter
from prvr.search.results import (
    CURVE_PARTS,
    WEAKER_BELOW,
    IndexInfo,
    IndexReport,
    Moment,
    SearchHit,
    SearchResult,
)
from prvr.search.verifying import verify_index

__all__ = [
    "CURVE_PARTS",
    "WEAKER_BELOW",
    "IndexInfo",
    "IndexReport",
    "Library",
    "LibraryBusy",
    "LibraryReport",
    "ModelIdentity",
    "Moment",
    "Passage",
    "Query",
    "RowSet",
    "SearchFilter",
    "SearchHit",
    "SearchModel",
    "SearchResult",
    "Unreadable",
    "VideoIndex",
    "WindowVectors",
    "open_model",
    "verify_index",
]
