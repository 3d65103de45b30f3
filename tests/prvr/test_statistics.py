"""Intervals and tests: laws, plain-loop oracles, and behaviour on data whose answer is known."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prvr.evaluation.significance import METRICS, bootstrap_intervals, paired_test


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


def test_clustering_widens_the_interval_when_queries_stand_together():
    ranks, owner = simulated(spread=0.1)
    clustered = bootstrap_intervals(ranks, owner)["sumr"]
    alone = bootstrap_intervals(ranks, np.arange(len(ranks)))["sumr"]
    assert clustered.high - clustered.low > 1.7 * (alone.high - alone.low)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    _, owner = simulated(videos=60)
    truth = loop_sumr(simulated(videos=20_000, seed=1)[0])
    covered = 0
    for seed in range(60):
        interval = bootstrap_intervals(simulated(videos=60, seed=100 + seed)[0], owner, samples=300)["sumr"]
        covered += interval.low <= truth <= interval.high
    assert covered >= 50


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 4)), min_size=1, max_size=30), st.integers(0, 5))
def test_intervals_lie_in_range_and_depend_on_the_seed_only(pairs, seed):
    ranks, owner = (np.array(column) for column in zip(*pairs, strict=True))
    found = bootstrap_intervals(ranks, owner, samples=50, seed=seed)
    assert tuple(found) == METRICS
    for name, interval in found.items():
        assert 0 <= interval.low <= interval.high <= (400 if name == "sumr" else 100) + 1e-9
    assert found == bootstrap_intervals(ranks, owner, samples=50, seed=seed)
    assert found == bootstrap_intervals(
        ranks, owner * 10 + 3, samples=50, seed=seed
    )  # numbers of videos are only names


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


def test_equal_runs_do_not_differ_and_a_clear_gain_does():
    ranks, owner = simulated()
    same = paired_test(ranks, ranks, owner, samples=300)["sumr"]
    assert (same.value, same.interval.low, same.interval.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    better = paired_test(ranks, np.maximum(ranks // 4, 1), owner, samples=300)["sumr"]
    assert better.interval.low > 0
    assert better.p_value == pytest.approx(1 / 301)


def test_p_values_of_equal_models_are_not_small():
    p_values = []
    for seed in range(60):
        (a, owner), (b, _) = simulated(60, seed=2 * seed), simulated(60, seed=2 * seed + 1)
        p_values.append(paired_test(a, b, owner, samples=300)["sumr"].p_value)
    assert sum(p <= 0.05 for p in p_values) <= 9  # 3 expected
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_to_video": np.array([0])}, "2 ranks for 1 queries"),
        ({"samples": 0}, "samples >= 1"),
        ({"level": 1.0}, "level in"),
    ],
)
def test_bad_arguments_are_rejected(change, message):
    arguments = {"query_to_video": np.array([0, 1]), "samples": 10, "level": 0.95} | change
    ranks, owner = np.array([1, 2]), arguments.pop("query_to_video")
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(bootstrap_intervals)(ranks, owner, **arguments)  # past the check of shapes
