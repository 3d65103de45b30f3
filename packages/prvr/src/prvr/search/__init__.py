"""Search one's own videos by a sentence: an index of their vectors, and the moments that answer.

Example:
    >>> store = VideoStore("store")  # doctest: +SKIP
    >>> with VideoIndex.create("index", open_model("zero-shot", store.header), store.header) as index:  # doctest: +SKIP
    ...     index.add(store)
    ...     hit = index.search("a red square rises").hits[0]
    ...     print(hit.video_id, hit.start, hit.end)
"""

from prvr.search.hits import STRIP as STRIP
from prvr.search.hits import IndexedVideo as IndexedVideo
from prvr.search.hits import IndexInfo as IndexInfo
from prvr.search.hits import IndexReport as IndexReport
from prvr.search.hits import Moment as Moment
from prvr.search.hits import SearchHit as SearchHit
from prvr.search.hits import SearchResult as SearchResult
from prvr.search.index import VideoIndex as VideoIndex
from prvr.search.model import ModelIdentity as ModelIdentity
from prvr.search.model import RowSet as RowSet
from prvr.search.model import SearchModel as SearchModel
from prvr.search.model import WindowVectors as WindowVectors
from prvr.search.opening import open_model as open_model
from prvr.search.verifying import verify_index as verify_index

__all__ = [
    "STRIP",
    "IndexInfo",
    "IndexReport",
    "IndexedVideo",
    "ModelIdentity",
    "Moment",
    "RowSet",
    "SearchHit",
    "SearchModel",
    "SearchResult",
    "VideoIndex",
    "WindowVectors",
    "open_model",
    "verify_index",
]
