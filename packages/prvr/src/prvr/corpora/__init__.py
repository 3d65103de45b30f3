"""Corpora from captions and features: public text-to-video benchmarks, and users' own videos.

Readers of annotation files and tables stand here and need no torch. `prvr.corpora.benchmark_corpus` and
`prvr.corpora.caption_corpus` write corpora of them.

Examples:
    >>> annotations = benchmark("msvd").read("annotations")  # doctest: +SKIP
    >>> {split: len(videos) for split, videos in annotations.splits.items()}  # doctest: +SKIP
    {'train': 1200, 'val': 100, 'test': 670}
"""

from prvr.corpora import public as public  # registers the benchmarks
from prvr.corpora.annotations import (
    BENCHMARKS,
    Annotations,
    Benchmark,
    CaptionedVideo,
    Conversion,
    benchmark,
    benchmark_of,
)
from prvr.corpora.user_captions import SplitShares, UserCaption, read_user_captions, split_videos

__all__ = [
    "BENCHMARKS",
    "Annotations",
    "Benchmark",
    "CaptionedVideo",
    "Conversion",
    "SplitShares",
    "UserCaption",
    "benchmark",
    "benchmark_of",
    "read_user_captions",
    "split_videos",
]
