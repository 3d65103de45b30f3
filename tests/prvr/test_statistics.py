"""Intervals and tests: laws, plain-loop oracles, and behaviour on data whose answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prvr.errors import InputError
from prvr.evaluation.rejection import rejection_auroc
from prvr.evaluation.significance import METRICS, bootstrap_intervals, paired_test
from prvr.papers.several_seeds import holm, seeds_test


def simulated(videos=150, per_video=5, seed=0, spread=1.0):
    """Queries of one video share most of their luck."""
    generator = np.random.default_rng(seed)
    owner = np.repeat(np.arange(videos), per_video)
    luck = generator.normal(size=videos)[owner] + spread * generator.normal(size=len(owner))
    return np.ceil(np.exp(2 * luck + 2)).astype(np.int64), owner


def loop_sumr(ranks):
    return 100 * sum(sum(rank <= k for k in (1, 5, 10, 100)) for rank in ranks) / len(ranks)


def test_interval_agrees_with_a_loop_over_resampled_videos():
    ranks, owner = simulated(videos=40)
    generator = np.random.default_rng(7)
    drawn = []
    for _ in range(1500):
        chosen = generator.integers(0, 40, size=40)
        drawn.append(loop_sumr(np.concatenate([ranks[owner == video] for video in chosen])))
    found = bootstrap_intervals(ranks, owner, samples=4000)["sumr"]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=4.0)


def test_paired_difference_is_exact_and_antisymmetric():
    (a, owner), (b, _) = simulated(seed=0), simulated(seed=1)
    forth, back = paired_test(a, b, owner, samples=500), paired_test(b, a, owner, samples=500)
    assert forth["sumr"].value == pytest.approx(loop_sumr(b) - loop_sumr(a), abs=1e-9)
    for name in METRICS:
        assert back[name].value == -forth[name].value
        assert back[name].interval.low == pytest.approx(-forth[name].interval.high, abs=1e-9)
        assert back[name].p_value == forth[name].p_value


def test_permutation_p_value_agrees_with_all_swaps():
    ranks_a, ranks_b = np.array([1, 7, 20, 3, 200, 1, 8, 60]), np.array([1, 2, 4, 3, 90, 3, 1, 60])
    owner = np.array([0, 0, 1, 2, 3, 4, 5, 5])
    gain = np.array([loop_sumr([b]) - loop_sumr([a]) for a, b in zip(ranks_a, ranks_b, strict=True)])
    per_video = np.bincount(owner, gain)
    sums = [abs(sum(g if bit >> v & 1 else -g for v, g in enumerate(per_video))) for bit in range(2 ** len(per_video))]
    exact = np.mean(np.array(sums) >= abs(per_video.sum()) - 1e-9)
    assert paired_test(ranks_a, ranks_b, owner, samples=20_000)["sumr"].p_value == pytest.approx(exact, abs=0.015)


def studied(generator, gain=0.0, spread=0.0, seeds=3, videos=80, per_video=4):
    """Ranks of the seeds of two systems on the same queries. `spread` is that of how good a seed is, `gain` is B's."""
    owner = np.repeat(np.arange(videos), per_video)
    hard = generator.normal(size=videos)[owner]

    def system(shift):
        luck = spread * generator.normal(size=(seeds, 1)) + 0.7 * generator.normal(size=(seeds, len(owner)))
        return np.ceil(np.exp(2.5 + 1.5 * (hard + luck - shift))).astype(np.int64)

    return system(0.0), system(gain), owner


def test_seeds_test_is_the_difference_of_means_and_antisymmetric():
    a, b, owner = studied(np.random.default_rng(0), gain=0.3, spread=0.2)
    forth, back = seeds_test(a, b[:2], owner, samples=500), seeds_test(b[:2], a, owner, samples=500)
    wanted = np.mean([loop_sumr(run) for run in b[:2]]) - np.mean([loop_sumr(run) for run in a])
    assert forth["sumr"].value == pytest.approx(wanted, abs=1e-9)
    assert tuple(forth) == METRICS
    for name in METRICS:
        assert back[name].value == pytest.approx(-forth[name].value, abs=1e-9)
        assert forth[name].interval.low < forth[name].value < forth[name].interval.high


def test_one_seed_each_or_seeds_that_agree_are_the_paired_bootstrap_over_videos():
    a, b, owner = studied(np.random.default_rng(1), gain=0.3, seeds=1)
    ours, paired = seeds_test(a, b, owner, samples=400)["sumr"], paired_test(a[0], b[0], owner, samples=400)["sumr"]
    several = seeds_test(np.repeat(a, 3, 0), np.repeat(b, 3, 0), owner, samples=400)["sumr"]
    for one in (ours, several):
        assert (one.value, one.interval.low, one.interval.high) == pytest.approx(
            (paired.value, paired.interval.low, paired.interval.high)
        )


@pytest.mark.parametrize("spread", [0.0, 0.15, 0.6])
def test_seeds_intervals_cover_the_truth_about_as_often_as_they_say(spread):
    """Whatever dominates: the choice of videos, that of seeds, or neither. The true difference of the systems is 0."""
    generator, studies = np.random.default_rng(3), 300
    found = [seeds_test(*studied(generator, spread=spread), samples=400)["sumr"] for _ in range(studies)]
    covered = np.mean([one.interval.low <= 0 <= one.interval.high for one in found])
    assert 0.91 <= covered <= 0.98, covered  # 95 % of 300, and three standard errors
    assert np.mean([one.p_value < 0.05 for one in found]) == pytest.approx(1 - covered, abs=0.02)


def test_holm_agrees_with_values_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, 0.04], tests=5) == pytest.approx([0.05, 0.16])
    assert holm([0.5, 0.6, 0.9]) == [1.0, 1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.integers(0, 5), min_size=2, max_size=9), st.lists(st.integers(0, 5), min_size=2, max_size=9))
def test_rejection_is_the_share_of_pairs_and_its_interval_that_of_delong(right: list[int], wrong: list[int]) -> None:
    answered, unanswered = np.array(right, float), np.array(wrong, float)
    pairs = (answered[:, None] > unanswered) + 0.5 * (answered[:, None] == unanswered)
    area, interval = rejection_auroc(answered, unanswered)
    assert area == pytest.approx(pairs.mean())
    error = 1.959964 * math.sqrt(sum(np.var(pairs.mean(axis), ddof=1) / len(pairs.mean(axis)) for axis in (0, 1)))
    assert (interval.low, interval.high) == pytest.approx((max(0, area - error), min(1, area + error)), abs=1e-6)
    assert rejection_auroc(-unanswered, -answered)[0] == pytest.approx(area)
    for bad in ([1.0], [1.0, math.nan]):
        with pytest.raises(InputError, match="at least two finite ones"):
            rejection_auroc(answered, np.array(bad))
