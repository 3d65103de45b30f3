"""Text-to-video benchmarks: what their public annotation files say.

`prvr.video.benchmarks.convert_benchmark` makes a corpus of them.

Example:
    >>> found = benchmark("msvd").read("annotations")  # doctest: +SKIP
    >>> {split: len(videos) for split, videos in found.splits.items()}  # doctest: +SKIP
    {'train': 1200, 'val': 100, 'test': 670}
"""

from prvr.data.benchmarks.annotations import Annotations as Annotations
from prvr.data.benchmarks.annotations import CaptionedVideo as CaptionedVideo
from prvr.data.benchmarks.matching import match_videos as match_videos
from prvr.data.benchmarks.registry import BENCHMARKS as BENCHMARKS
from prvr.data.benchmarks.registry import Benchmark as Benchmark
from prvr.data.benchmarks.registry import benchmark as benchmark
from prvr.data.benchmarks.registry import benchmark_of as benchmark_of

__all__ = [
    "BENCHMARKS",
    "Annotations",
    "Benchmark",
    "CaptionedVideo",
    "benchmark",
    "benchmark_of",
    "match_videos",
]
