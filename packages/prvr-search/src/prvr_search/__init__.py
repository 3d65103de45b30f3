"""Search one's own videos by a sentence: a library of their features, an index of vectors, and the moments that answer.

Examples:
    >>> with Library("films") as library:  # doctest: +SKIP
    ...     hit = library.search("a red square rises").hits[0]
    ...     print(hit.video_id, hit.start, hit.end)
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.encoders import ClipWindow, Identity
    from prvr_search.library import Library, NothingEncoded
    from prvr_search.ranking.filters import SearchFilter
    from prvr_search.ranking.index import VideoIndex
    from prvr_search.ranking.query import Passage, Query
    from prvr_search.ranking.results import CURVE_PARTS, Moment, SearchHit, SearchResult
    from prvr_search.vectors.joint import open_model
    from prvr_search.vectors.model import ModelIdentity, RowSet, SearchModel, WindowVectors

__all__ = [
    "CURVE_PARTS",
    "EXTENSIONS",
    "ClipWindow",
    "Identity",
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

EXTENSIONS = {
    "commands": "prvr_search.cli",
    "features": "prvr_search.library:features_of",
    "frames": "prvr_search.films.thumbnails:frames_of",
    "write_videos": "prvr_search.films.toy_videos:write_videos",
}
"""What this distribution adds to `prvr`, see `prvr.extensions`: its commands, the features of a folder of
videos for `prvr convert`, frames of files for `prvr plot examples`, and videos of the toy corpus as files for
`prvr data make`."""

# Imported when first asked for, because they bring torch.
__getattr__ = deferred(__name__, "ranking.filters library vectors.model ranking.results ranking.query store.encoding")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
