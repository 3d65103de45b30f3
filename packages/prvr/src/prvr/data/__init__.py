"""Data of partially relevant video retrieval: readers of the public layout, packed splits, training batches.

Examples:
    >>> corpus = write_corpus("data", "tiny")  # doctest: +SKIP
    >>> with pack(corpus, "test", cache_dir="data/cache") as packed:  # doctest: +SKIP
    ...     len(packed), packed.video(0)[0].shape
    (20, torch.Size([32, 512]))
"""

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
    from prvr.data.synthetic import COLLECTIONS, JointEncoder, load_encoder, write_corpus

__all__ = [
    "COLLECTIONS",
    "Caption",
    "Corpus",
    "DataError",
    "FeatureReader",
    "JointEncoder",
    "Moment",
    "PackSettings",
    "PackedSplit",
    "Split",
    "TextData",
    "VideoLoader",
    "holdout",
    "load_encoder",
    "open_corpus",
    "open_features",
    "open_query_features",
    "pack",
    "sample_video",
    "segment_mean",
    "write_corpus",
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
        "prvr.data.synthetic": "COLLECTIONS JointEncoder load_encoder write_corpus",
    },
)
