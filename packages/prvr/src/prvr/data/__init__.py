"""Data of partially relevant video retrieval: readers of the public layout, packed splits, training batches."""

from typing import TYPE_CHECKING

from prvr.errors import DataError, deferred

if TYPE_CHECKING:
    from prvr.data.corpus import Corpus, Split, open_corpus
    from prvr.data.features import FeatureReader, open_features, open_query_features
    from prvr.data.layout import Caption, Moment, TextData, write_layout
    from prvr.data.loader import VideoLoader
    from prvr.data.packed import PackedSplit
    from prvr.data.packing import PackSettings, holdout, pack
    from prvr.data.sampling import sample_video, segment_mean

__all__ = [
    "Caption",
    "Corpus",
    "DataError",
    "FeatureReader",
    "Moment",
    "PackSettings",
    "PackedSplit",
    "Split",
    "TextData",
    "VideoLoader",
    "holdout",
    "open_corpus",
    "open_features",
    "open_query_features",
    "pack",
    "sample_video",
    "segment_mean",
    "write_layout",
]

# Imported when first asked for: most commands use a few of them.
__getattr__ = deferred(
    __name__,
    {
        "prvr.data.corpus": "Corpus Split open_corpus",
        "prvr.data.features": "FeatureReader open_features open_query_features",
        "prvr.data.layout": "Caption Moment TextData write_layout",
        "prvr.data.loader": "VideoLoader",
        "prvr.data.packing": "PackSettings holdout pack",
        "prvr.data.packed": "PackedSplit",
        "prvr.data.sampling": "sample_video segment_mean",
    },
)
