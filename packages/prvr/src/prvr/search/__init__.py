"""Search one's own videos by a sentence: an index of their vectors, and the moments that answer.

Examples:
    >>> store = VideoStore("store")  # doctest: +SKIP
    >>> with VideoIndex.create("index", open_model("zero-shot", store.header), store.header) as index:  # doctest: +SKIP
    ...     index.add(store)
    ...     hit = index.search("a red square rises").hits[0]
    ...     print(hit.video_id, hit.start, hit.end)
"""

from prvr.search.index import VideoIndex as VideoIndex
from prvr.search.library import Library as Library
from prvr.search.library import LibraryBusy as LibraryBusy
from prvr.search.library import LibraryReport as LibraryReport
from prvr.search.library import Unreadable as Unreadable
from prvr.search.model import ModelIdentity as ModelIdentity
from prvr.search.model import RowSet as RowSet
from prvr.search.model import SearchModel as SearchModel
from prvr.search.model import WindowVectors as WindowVectors
from prvr.search.opening import open_model as open_model
from prvr.search.results import CURVE_PARTS as CURVE_PARTS
from prvr.search.results import IndexInfo as IndexInfo
from prvr.search.results import IndexReport as IndexReport
from prvr.search.results import Moment as Moment
from prvr.search.results import SearchHit as SearchHit
from prvr.search.results import SearchResult as SearchResult
from prvr.search.verifying import verify_index as verify_index

__all__ = [
    "CURVE_PARTS",
    "IndexInfo",
    "IndexReport",
    "Library",
    "LibraryBusy",
    "LibraryReport",
    "ModelIdentity",
    "Moment",
    "RowSet",
    "SearchHit",
    "SearchModel",
    "SearchResult",
    "Unreadable",
    "VideoIndex",
    "WindowVectors",
    "open_model",
    "verify_index",
]
