"""How sure a result is: intervals and tests that resample videos, because the queries of a video stand together."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Real

from prvr.errors import InputError
from prvr.evaluation.metrics import RECALLS

METRICS = (*(f"r{k}" for k in RECALLS), "sumr")
"""What intervals and tests are given for, in this order."""

_CHUNK = 2**22  # weights drawn at a time


@dataclass(frozen=True)
class Interval:
    """A percentile interval: the value lies in [low, high] in a share `level` of the resamples."""

    low: float
    high: float
    level: float = 0.95


@dataclass(frozen=True)
class Difference:
    """What run B has more than run A, its interval, and how often chance alone gives as much."""

    value: float
    interval: Interval
    p_value: float


def bootstrap_intervals(
    ranks: Real[np.ndarray, " q"],
    query_to_video: Int[np.ndarray, " q"],
    *,
    samples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Percentile bootstrap intervals of R@1, 5, 10, 100 and SumR, clustered by video.

    Videos are drawn with replacement, each with all its queries (Field & Welsh, 2007, "Bootstrapping clustered data"):
    a metric of a resample is `sum_v n_v h_v / sum_v n_v m_v`, with n multinomial, h_v the hits and m_v the number of
    queries of video v. Treating queries as independent would give intervals that are too narrow.

    Args:
        ranks: `(q,)` 1-based ranks.
        query_to_video: `(q,)` the video each query was written for.
        samples: number of resamples.
        level: share of the resamples inside the interval, in (0, 1).
        seed: the seed of the draws; the same seed gives the same interval.

    Returns:
        An interval per name in `METRICS`, in the metrics' units (percent).

    Raises:
        ValueError: lengths differ, no query, or `samples` or `level` out of range.

    Examples:
        >>> interval = bootstrap_intervals(np.array([1, 2, 1, 300]), np.array([0, 0, 1, 2]))["r1"]
        >>> 0 <= interval.low <= 50 <= interval.high <= 100
        True
    """
    _check(ranks, query_to_video, samples, level)
    hits, sizes = _per_video(_hits(ranks), query_to_video)
    drawn = np.concatenate([n @ hits / (n @ sizes)[:, None] for n in _resamples(len(sizes), samples, seed)])
    return dict(zip(METRICS, _intervals(100 * drawn, level), strict=True))


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

    Raises:
        ValueError: lengths differ, no query, or `samples` or `level` out of range.

    Examples:
        >>> same = paired_test(np.array([1, 2]), np.array([1, 2]), np.array([0, 1]))["sumr"]
        >>> same.value, same.p_value
        (0.0, 1.0)
    """
    _check(ranks_a, query_to_video, samples, level)
    _check(ranks_b, query_to_video, samples, level)
    gains, sizes = _per_video(_hits(ranks_b) - _hits(ranks_a), query_to_video)
    # Sums of hits are whole numbers: exact in float64, so that a swapped difference equals the observed one exactly.
    total, queries = gains.sum(0), sizes.sum()
    drawn = np.concatenate([n @ gains / (n @ sizes)[:, None] for n in _resamples(len(sizes), samples, seed)])
    as_large = np.zeros(len(METRICS))
    for signs in _swaps(len(sizes), samples, seed):
        as_large += (np.abs(signs @ gains) >= np.abs(total)).sum(0)
    p_values = (1 + as_large) / (samples + 1)
    intervals = _intervals(100 * drawn, level)
    values = (100 * total / queries).tolist()
    return {
        name: Difference(value, interval, p)
        for name, value, interval, p in zip(METRICS, values, intervals, p_values.tolist(), strict=True)
    }


def _check(ranks: np.ndarray, query_to_video: np.ndarray, samples: int, level: float) -> None:
    if len(ranks) != len(query_to_video) or not len(ranks):
        raise InputError(
            f"{len(ranks)} ranks for {len(query_to_video)} queries: expected one rank per query, at least one query"
        )
    if samples < 1 or not 0 < level < 1:
        raise InputError(f"samples={samples}, level={level}: expected samples >= 1 and level in (0, 1), e.g. 0.95")


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


def _resamples(videos: int, samples: int, seed: int) -> Iterator[Float[np.ndarray, "s v"]]:
    """How often each video is drawn, chunk by chunk."""
    generator = np.random.default_rng(seed)
    for size in _chunks(videos, samples):
        yield generator.multinomial(videos, np.full(videos, 1 / videos), size=size).astype(np.float64)


def _swaps(videos: int, samples: int, seed: int) -> Iterator[Float[np.ndarray, "s v"]]:
    """+1 where the runs stay, -1 where they change places, chunk by chunk."""
    generator = np.random.default_rng([seed, 1])
    for size in _chunks(videos, samples):
        yield generator.integers(0, 2, size=(size, videos)) * 2.0 - 1.0


def _intervals(drawn: Float[np.ndarray, "s m"], level: float) -> list[Interval]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(float(a), float(b), level) for a, b in zip(low, high, strict=True)]
