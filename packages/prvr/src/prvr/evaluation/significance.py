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
    hits, sizes = _per_video(_hits(ranks), query_to_video)
    return dict(zip(METRICS, _intervals(_resampled(hits, sizes, samples, seed)), strict=True))


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
    gains, sizes = _per_video(_hits(ranks_b) - _hits(ranks_a), query_to_video)
    # Sums of hits are whole numbers: exact in float64, so that a swapped difference equals the observed one exactly.
    total, queries = gains.sum(0), sizes.sum()
    as_large = np.zeros(len(METRICS))
    for signs in _swaps(len(sizes), samples, seed):
        as_large += (np.abs(signs @ gains) >= np.abs(total)).sum(0)
    drawn = _resampled(gains, sizes, samples, seed)
    return _differences(100 * total / queries, drawn, (1 + as_large) / (samples + 1), level)


def seeds_test(
    ranks_a: Real[np.ndarray, "s q"],
    ranks_b: Real[np.ndarray, "t q"],
    query_to_video: Int[np.ndarray, " q"],
    *,
    samples: int = 10_000,
    seed: int = 0,
) -> dict[str, Difference]:
    """B - A of two systems that were each trained with several seeds, for new videos and for new seeds.

    The value is the difference of the means over seeds. Videos are drawn with replacement, paired, each with its
    queries in all runs (see `paired_test`). Drawing three seeds with replacement as well would give a spread that is a
    third too small. So each resample gets a draw of Student's t, with S + T - 2 degrees of freedom and the variance
    that the seeds add,

        (1/S + 1/T) max(0, s^2 - i^2),

    where s^2 is the variance over seeds of a metric, pooled over A and B, and i^2 the part of it that the choice of
    videos explains and the resampled videos contain: the residual of seeds by videos in a two-way layout. With one run
    each, the variance of seeds is unknown, and the result is that of videos alone.

    Args:
        ranks_a: `(s, q)` 1-based ranks of the runs of A, at least one.
        ranks_b: `(t, q)` 1-based ranks of the runs of B, at least one, of the same queries in the same order.
        query_to_video: `(q,)` the video each query was written for.
        samples: number of resamples.
        seed: the seed of the draws.

    Returns:
        A difference per name in `METRICS`, in percent. Its p-value is `2 (1 + k) / (samples + 1)`, at most 1, with k
        the resamples beyond 0 on the rarer side: it is below 0.05 about where the interval leaves 0 out.

    Examples:
        >>> a, b = np.array([[9, 9], [9, 9]]), np.array([[1, 9], [1, 9]])
        >>> seeds_test(a, b, np.array([0, 1]))["r1"].value
        50.0
    """
    cells, sizes = [], np.zeros(0)
    for runs in (ranks_a, ranks_b):
        hits = [_per_video(_hits(ranks), query_to_video) for ranks in runs]
        cells.append(np.stack([sums for sums, _ in hits]))
        sizes = hits[0][1]
    videos = len(sizes)
    queries = sizes.sum()
    free = len(ranks_a) + len(ranks_b) - 2
    gains = cells[1].mean(0) - cells[0].mean(0)
    drawn = _resampled(gains, sizes, samples, seed)
    if free and videos > 1:
        among, explained = np.zeros(len(METRICS)), np.zeros(len(METRICS))
        for hits in cells:
            effects = (hits.sum(1) - hits.sum((0, 1)) / len(hits)) / queries  # of each seed, a row
            rest = hits - hits.mean(0) - effects[:, None] * sizes[:, None]
            among += (effects**2).sum(0) / free
            explained += (rest**2).sum((0, 1)) * videos / ((videos - 1) * free * queries**2)
        spread = np.sqrt((1 / len(ranks_a) + 1 / len(ranks_b)) * np.maximum(0, among - explained))
        drawn += 100 * spread * np.random.default_rng([seed, 2]).standard_t(free, size=(samples, 1))
    rarer = np.minimum((drawn <= 0).sum(0), (drawn >= 0).sum(0))
    p_values = np.minimum(1, 2 * (1 + rarer) / (samples + 1))
    return _differences(100 * gains.sum(0) / queries, drawn, p_values)


def holm(p_values: Sequence[float], tests: int | None = None) -> list[float]:
    """The p-values corrected for their number (Holm, 1979), which controls the probability of any false rejection.

    The k-th smallest of m is multiplied by m - k + 1, and is at least as large as those before it.

    Args:
        p_values: of some tests.
        tests: the number of planned tests, if some have no p-value yet; None for `len(p_values)`.

    Examples:
        >>> holm([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    total, largest = len(p_values) if tests is None else tests, 0.0
    corrected = [0.0] * len(p_values)
    for place, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (total - place) * p_values[number]))
        corrected[number] = largest
    return corrected


def _hits(ranks: np.ndarray) -> Float[np.ndarray, "q m"]:
    """One column per name in METRICS; the last is the sum of the others."""
    hits = (ranks[:, None] <= np.array(RECALLS)).astype(np.float64)
    return np.concatenate([hits, hits.sum(1, keepdims=True)], 1)


def _per_video(
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


def _resampled(
    sums: Float[np.ndarray, "v m"], sizes: Float[np.ndarray, " v"], samples: int, seed: int
) -> Float[np.ndarray, "s m"]:
    """The metrics of each resample, in percent."""
    draws = _cached_draws if len(sizes) * samples <= _CACHED else _draws
    parts = [n @ sums / (n @ sizes)[:, None] for n in draws(len(sizes), samples, seed)]
    return 100 * np.concatenate(parts)


def _differences(
    values: np.ndarray, drawn: np.ndarray, p_values: np.ndarray, level: float = 0.95
) -> dict[str, Difference]:
    rows = zip(METRICS, values.tolist(), _intervals(drawn, level), p_values.tolist(), strict=True)
    return {name: Difference(value, interval, p) for name, value, interval, p in rows}


def _intervals(drawn: Float[np.ndarray, "s m"], level: float = 0.95) -> list[Interval]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(float(a), float(b), level) for a, b in zip(low, high, strict=True)]
