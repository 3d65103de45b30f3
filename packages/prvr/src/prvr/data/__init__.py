"""Data of partially relevant video retrieval: readers of the public layout, packed stores, training batches.

Example:
    >>> corpus = write_corpus("data", "tiny")  # doctest: +SKIP
    >>> with pack(corpus, "test", cache_dir="data/cache") as packed:  # doctest: +SKIP
    ...     len(packed), packed.video(0)[0].shape
    (20, torch.Size([32, 512]))
"""

from prvr.data.corpus import Corpus as Corpus
from prvr.data.corpus import Split as Split
from prvr.data.corpus import open_corpus as open_corpus
from prvr.data.dataset import VideoDataset as VideoDataset
from prvr.data.dataset import VideoItem as VideoItem
from prvr.data.dataset import collate as collate
from prvr.data.dataset import make_loader as make_loader
from prvr.data.features import FeatureReader as FeatureReader
from prvr.data.features import QueryFeatures as QueryFeatures
from prvr.data.features import open_features as open_features
from prvr.data.layout import Caption as Caption
from prvr.data.layout import Moment as Moment
from prvr.data.layout import write_layout as write_layout
from prvr.data.pack import PackSettings as PackSettings
from prvr.data.pack import holdout as holdout
from prvr.data.pack import pack as pack
from prvr.data.packed import PackedSplit as PackedSplit
from prvr.data.rows import sample_video as sample_video
from prvr.data.rows import segment_mean as segment_mean
from prvr.data.synthetic import COLLECTIONS as COLLECTIONS
from prvr.data.synthetic import JointEncoder as JointEncoder
from prvr.data.synthetic import load_encoder as load_encoder
from prvr.data.synthetic import write_corpus as write_corpus
from prvr.errors import DataError as DataError

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
    "QueryFeatures",
    "Split",
    "VideoDataset",
    "VideoItem",
    "collate",
    "holdout",
    "load_encoder",
    "make_loader",
    "open_corpus",
    "open_features",
    "pack",
    "sample_video",
    "segment_mean",
    "write_corpus",
    "write_layout",
]
