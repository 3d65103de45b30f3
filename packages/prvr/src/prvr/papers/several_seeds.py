"""A test of systems that were trained with several seeds, and p-values corrected for their number."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Real

from prvr.evaluation.significance import METRICS, Difference, differences, hits_of, per_video, resamples


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
    _, sizes = per_video(hits_of(ranks_a[0]), query_to_video)
    cells = [np.stack([per_video(hits_of(ranks), query_to_video)[0] for ranks in runs]) for runs in (ranks_a, ranks_b)]
    videos = len(sizes)
    queries = sizes.sum()
    free = len(ranks_a) + len(ranks_b) - 2
    gains = cells[1].mean(0) - cells[0].mean(0)
    drawn = resamples(gains, sizes, samples, seed)
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
    return differences(100 * gains.sum(0) / queries, drawn, p_values)


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
    values, total = np.array(p_values, float), len(p_values) if tests is None else tests
    order = values.argsort(kind="stable")
    factors = total - np.arange(len(values))
    values[order] = np.maximum.accumulate(np.minimum(1, factors * values[order]))
    return values.tolist()
