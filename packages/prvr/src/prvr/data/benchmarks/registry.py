"""Which benchmarks there are, and their rules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from prvr.data.benchmarks.activitynet import read_activitynet
from prvr.data.benchmarks.annotations import Annotations
from prvr.data.benchmarks.didemo import read_didemo
from prvr.data.benchmarks.lsmdc import read_lsmdc
from prvr.data.benchmarks.msrvtt import read_msrvtt, read_msrvtt_7k
from prvr.data.benchmarks.msvd import read_msvd
from prvr.data.corpus import Corpus
from prvr.errors import DataError

__all__ = ["BENCHMARKS", "Benchmark", "benchmark", "benchmark_of"]


@dataclass(frozen=True)
class Benchmark:
    """A text-to-video benchmark.

    Args:
        name: of the corpus.
        title: for people.
        read: from a folder of annotation files to splits.
        max_words: rows of text features kept, as CLIP4Clip and its successors set it.
        queries: how queries and videos go together, for people.
    """

    name: str
    title: str
    read: Callable[[Path], Annotations]
    max_words: int
    queries: str


_ALL = (
    Benchmark("msrvtt", "MSR-VTT 1k-A, 9k training videos", read_msrvtt, 32, "20 captions to train on, 1 in the test"),
    Benchmark("msrvtt-7k", "MSR-VTT 1k-A, 7k training videos", read_msrvtt_7k, 32, "as msrvtt"),
    Benchmark("msvd", "MSVD", read_msvd, 32, "about 40 captions, all count in the test"),
    Benchmark("lsmdc", "LSMDC", read_lsmdc, 32, "1 sentence, in training sometimes more"),
    Benchmark("didemo", "DiDeMo, paragraphs", read_didemo, 64, "1: all its descriptions"),
    Benchmark("activitynet-paragraphs", "ActivityNet, paragraphs", read_activitynet, 64, "1: all its sentences"),
)

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType({entry.name: entry for entry in _ALL})
"""By name."""


def benchmark(name: str) -> Benchmark:
    """The benchmark of a name.

    Raises:
        DataError: there is none.

    Example:
        >>> benchmark("didemo").max_words
        64
    """
    if name not in BENCHMARKS:
        close = get_close_matches(name, BENCHMARKS, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise DataError(f"benchmark {name!r}: expected one of {', '.join(BENCHMARKS)}{hint}")
    return BENCHMARKS[name]


def benchmark_of(corpus: Corpus) -> Benchmark | None:
    """The benchmark that a corpus was made from; None where it was made from none, or does not say.

    Raises:
        DataError: `corpus.json` cannot be read.
    """
    return BENCHMARKS.get(str(corpus.about.get("benchmark")))
