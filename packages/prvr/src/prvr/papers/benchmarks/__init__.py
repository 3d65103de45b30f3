"""Public text-to-video benchmarks: the readers of their annotation files, and corpora of them.

Readers need no torch. `prvr.papers.benchmarks.conversion` writes corpora.

Examples:
    >>> annotations = BENCHMARKS["msvd"].part.read("annotations")  # doctest: +SKIP
    >>> {split: len(videos) for split, videos in annotations.splits.items()}  # doctest: +SKIP
    {'train': 1200, 'val': 100, 'test': 670}
"""

from prvr.papers.benchmarks import readers as readers  # registers the benchmarks
from prvr.papers.benchmarks.definition import BENCHMARKS, Annotations, Benchmark, CaptionedVideo

__all__ = ["BENCHMARKS", "Annotations", "Benchmark", "CaptionedVideo"]
