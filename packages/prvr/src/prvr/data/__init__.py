"""Data of partially relevant video retrieval: readers of the public layout, packed splits, training batches."""

from typing import TYPE_CHECKING

from prvr.errors import DataError, deferred

if TYPE_CHECKING:
    from prvr.data.corpus import *
    from prvr.data.features import *
    from prvr.data.layout import *
    from prvr.data.loader import *
    from prvr.data.packed import *
    from prvr.data.packing import *
    from prvr.data.sampling import *

__all__ = [
    "Caption",
    "Corpus",
    "DataError",
    "FeatureReader",
    "MomentTimes",
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

# Imported when first asked for, in this order until one has the name: most commands use a few of them.
__getattr__ = deferred(__name__, "layout features corpus packed packing loader sampling")
