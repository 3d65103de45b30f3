"""Intervals and tests that resample videos, because the queries of one video are not independent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int, Real, UInt32

from prvr.evaluation.metrics import RECALLS

METRICS = (*(f"r{k}" for k in RECALLS), "sumr")
"""The metrics of intervals and tests, in this order."""

_CHUNK = 2**22  # weights drawn at a time
_CACHED = 2**24  # at most so many weights are kept, in 4 bytes each


@dataclass(frozen=True)
class Interval:
    """A percentile interval, which contains the value in a share `level` of the resamples."""

    low: float
    high: float
    level: float = 0.95


@dataclass(frozen=True)
class Difference:
    """Run B minus run A, its interval, and its p-value."""

    value: float
    interval: Interval
    p_value: float


def bootstrap_intervals(
    ranks: Real[np.ndarray, " q"],
    query_to_video: Int[np.ndarray, " q"],
    *,
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Percentile bootstrap intervals, 95 %, of R@1, 5, 10, 100 and SumR, clustered by video.

    Videos are drawn with replacement, each with all its queries (Field & Welsh, 2007, "Bootstrapping clustered data"):
    a metric of a resample is `sum_v n_v h_v / sum_v n_v m_v`, with n multinomial, h_v the hits and m_v the number of
    queries of video v. Treating queries as independent would give intervals that are too narrow.

    Args:
        ranks: `(q,)` 1-based ranks.
        query_to_video: `(q,)` the video each query was written for.
        samples: number of resamples.
        seed: the seed of the draws; the same seed gives the same interval.

    Returns:
        An interval per name in `METRICS`, in the metrics' units (percent).

    Examples:
        >>> interval = bootstrap_intervals(np.array([1, 2, 1, 300]), np.array([0, 0, 1, 2]))["r1"]
        >>> 0 <= interval.low <= 50 <= interval.high <= 100
        True
    """
    hits, sizes = per_video(hits_of(ranks), query_to_video)
    return dict(zip(METRICS, _intervals(resamples(hits, sizes, samples, seed)), strict=True))


def paired_test(
    ranks_a: Real[np.ndarray, " q"],
    ranks_b: Real[np.ndarray, " q"],
    query_to_video: Int[np.ndarray, " q"],
    *,
    samples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Difference]:
    """B - A in R@1, 5, 10, 100 and SumR on the same queries, with interval and p-value, clustered by video.

    The interval is the paired bootstrap over videos (see `bootstrap_intervals`). The p-value is a two-sided permutation
    test of "A and B are interchangeable": the two runs are swapped for each video with probability 1/2, and
    `p = (1 + #{|swapped difference| >= |difference|}) / (samples + 1)` (Phipson & Smyth, 2010).

    Args:
        ranks_a: `(q,)` 1-based ranks of run A.
        ranks_b: `(q,)` 1-based ranks of run B, of the same queries in the same order.
        query_to_video: `(q,)` the video each query was written for.
        samples: number of resamples and of permutations.
        level: share of the resamples inside the interval, in (0, 1).
        seed: the seed of the draws.

    Returns:
        A difference per name in `METRICS`, in percent.

    Examples:
        >>> same = paired_test(np.array([1, 2]), np.array([1, 2]), np.array([0, 1]))["sumr"]
        >>> same.value, same.p_value
        (0.0, 1.0)
    """
    gains, sizes = per_video(hits_of(ranks_b) - hits_of(ranks_a), query_to_video)
    # Sums of hits are whole numbers: exact in float64, so that a swapped difference equals the observed one exactly.
    total, queries = gains.sum(0), sizes.sum()
    as_large = np.zeros(len(METRICS))
    for signs in _swaps(len(sizes), samples, seed):
        as_large += (np.abs(signs @ gains) >= np.abs(total)).sum(0)
    drawn = resamples(gains, sizes, samples, seed)
    return differences(100 * total / queries, drawn, (1 + as_large) / (samples + 1), level)


def hits_of(ranks: np.ndarray) -> Float[np.ndarray, "q m"]:
    """One column per name in METRICS; the last is the sum of the others."""
    hits = (ranks[:, None] <= np.array(RECALLS)).astype(np.float64)
    return np.concatenate([hits, hits.sum(1, keepdims=True)], 1)


def per_video(
    values: Float[np.ndarray, "q m"], query_to_video: Int[np.ndarray, " q"]
) -> tuple[Float[np.ndarray, "v m"], Float[np.ndarray, " v"]]:
    """Sums over the queries of each video that has any, and their number."""
    videos, owner = np.unique(query_to_video, return_inverse=True)
    sums = np.zeros((len(videos), values.shape[1]))
    np.add.at(sums, owner, values)
    return sums, np.bincount(owner).astype(np.float64)


def _chunks(videos: int, samples: int) -> Iterator[int]:
    size = max(1, _CHUNK // videos)
    for start in range(0, samples, size):
        yield min(size, samples - start)


def _draws(videos: int, samples: int, seed: int) -> Iterator[UInt32[np.ndarray, "s v"]]:
    """The number of draws of each video, chunk by chunk."""
    generator, even = np.random.default_rng(seed), np.full(videos, 1 / videos)
    for size in _chunks(videos, samples):
        yield generator.multinomial(videos, even, size=size).astype(np.uint32)


@lru_cache(maxsize=2)
def _cached_draws(videos: int, samples: int, seed: int) -> Sequence[UInt32[np.ndarray, "s v"]]:
    """As `_draws`, cached for the next metric or row of a table: drawing takes longer than what is made of it."""
    return tuple(_draws(videos, samples, seed))


def _swaps(videos: int, samples: int, seed: int) -> Iterator[Float[np.ndarray, "s v"]]:
    """+1 for videos whose runs stay, -1 for those whose runs are swapped, chunk by chunk."""
    generator = np.random.default_rng([seed, 1])
    for size in _chunks(videos, samples):
        yield generator.integers(0, 2, size=(size, videos)) * 2.0 - 1.0


def resamples(
    sums: Float[np.ndarray, "v m"], sizes: Float[np.ndarray, " v"], samples: int, seed: int
) -> Float[np.ndarray, "s m"]:
    """The metrics of each resample, in percent."""
    draws = _cached_draws if len(sizes) * samples <= _CACHED else _draws
    parts = [n @ sums / (n @ sizes)[:, None] for n in draws(len(sizes), samples, seed)]
    return 100 * np.concatenate(parts)


def differences(
    values: np.ndarray, drawn: np.ndarray, p_values: np.ndarray, level: float = 0.95
) -> dict[str, Difference]:
    """Values by name in `METRICS`, with the intervals of `(s, m)` resampled ones, and p-values."""
    rows = zip(METRICS, values.tolist(), _intervals(drawn, level), p_values.tolist(), strict=True)
    return {name: Difference(value, interval, p) for name, value, interval, p in rows}


def _intervals(drawn: Float[np.ndarray, "s m"], level: float = 0.95) -> list[Interval]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(float(a), float(b), level) for a, b in zip(low, high, strict=True)]
