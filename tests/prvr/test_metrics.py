"""Ranks and recalls against a plain loop, ir-measures, and numbers from the released code."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from reports import make_report, printed

from prvr.evaluation import RetrievalMetrics
from prvr.evaluation.metrics import chance_recall, count_ranks, ranks, recall_at_k, text_to_text_ranks
from prvr.evaluation.streaming import stream_counts, stream_set_counts
from prvr.evaluation.tables import text_video_table

GOLDEN = Path(__file__).parents[1] / "fixtures" / "prvr_metrics.npz"


@st.composite
def problems(draw, max_queries=12, max_videos=9):
    """Scores on a coarse grid, so that ties are common, and at least one relevant video per query."""
    q, v = draw(st.integers(1, max_queries)), draw(st.integers(1, max_videos))
    levels = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0])
    scores = torch.from_numpy(draw(npst.arrays(np.float32, (q, v), elements=levels)))
    relevant = torch.from_numpy(draw(npst.arrays(np.bool_, (q, v))))
    own = torch.from_numpy(draw(npst.arrays(np.int64, q, elements=st.integers(0, v - 1))))
    relevant[torch.arange(q), own] = True
    return scores, relevant


def loop_rank(scores, relevant, ties):
    best = max(s for s, r in zip(scores, relevant, strict=True) if r)
    above = sum(1 for s, r in zip(scores, relevant, strict=True) if not r and s > best)
    level = sum(1 for s, r in zip(scores, relevant, strict=True) if not r and s == best)
    return 1 + above + {"worst": level, "mean": level / 2, "best": 0}[ties]


@given(problems(), st.sampled_from(["worst", "mean", "best"]))
def test_ranks_agree_with_a_loop(problem, ties):
    scores, relevant = problem
    expected = [loop_rank(s, r, ties) for s, r in zip(scores.tolist(), relevant.tolist(), strict=True)]
    assert ranks(scores, relevant, ties).tolist() == expected
    differ = ranks(scores, relevant, "worst") != ranks(scores, relevant, "best")
    assert count_ranks(scores, relevant).metrics().tied == pytest.approx(differ.float().mean().item())


@given(problems(), st.integers(1, 5), st.integers(1, 5))
def test_streamed_counts_equal_the_whole_matrix_in_both_directions(problem, query_chunk, video_chunk):
    scores, relevant = problem
    q, v = scores.shape
    to_video, to_text = stream_counts(
        lambda rows, columns: scores[rows, columns],
        relevant.nonzero(),
        [slice(i, min(i + query_chunk, q)) for i in range(0, q, query_chunk)],
        [slice(i, min(i + video_chunk, v)) for i in range(0, v, video_chunk)],
    )
    right = relevant.any(0)  # a video without queries has no rank
    for found, matrix, own in ((to_video, scores, relevant), (to_text, scores.T[right], relevant.T[right])):
        whole = count_ranks(matrix, own)
        assert found.above.tolist() == whole.above.tolist()
        assert found.tied.tolist() == whole.tied.tolist()


def test_released_prvr_metric():
    with np.load(GOLDEN) as golden:
        scores, own = torch.from_numpy(golden["prvr/scores"]), torch.from_numpy(golden["prvr/gt_video"])
        expected = golden["prvr/R1_R5_R10_R100_SumR"]
    found = RetrievalMetrics.from_ranks(ranks(scores, own[:, None] == torch.arange(scores.shape[1])))
    assert [found.r1, found.r5, found.r10, found.r100, found.sumr] == pytest.approx(expected.tolist(), rel=1e-12)


def test_released_diffusionret_metric():
    """In both directions; and with several captions for each video."""
    with np.load(GOLDEN) as golden:
        scores = torch.from_numpy(golden["diffusionret/sim"])
        own = torch.eye(len(scores), dtype=torch.bool)
        assert (ranks(scores, own) - 1).tolist() == golden["diffusionret/t2v/rank0"].tolist()
        several, count = golden["diffusionret/multi/sim"], golden["diffusionret/multi/count"]
        rows = torch.from_numpy(np.concatenate([several[video, :n] for video, n in enumerate(count)]))
        owner = np.repeat(np.arange(len(count)), count)
        pairs = torch.from_numpy(owner[:, None] == np.arange(len(count)))
        for name, matrix, relevant in (("t2v", scores, own), ("v2t", scores.T, own), ("multi/t2v", rows, pairs)):
            found, expected = (
                ranks(matrix, relevant),
                {k: float(golden[f"diffusionret/{name}/R{k}"]) for k in (1, 5, 10)},
            )
            assert {k: recall_at_k(found, k) for k in expected} == pytest.approx(expected, rel=1e-12)
            metrics = RetrievalMetrics.from_ranks(found)
            assert metrics.mnr == pytest.approx(float(golden[f"diffusionret/{name}/MeanR"]), rel=1e-12)
            if name != "multi/t2v":
                assert metrics.mdr == golden[f"diffusionret/{name}/MedianR"]


@given(problems(max_queries=8))
def test_text_to_text_agrees_with_a_loop(problem):
    text, _ = problem
    owner = torch.arange(len(text)) % 3
    text = text.double() + torch.randn(text.shape, dtype=torch.float64)
    expected = []
    for i in range(len(text)):
        cosine = [torch.cosine_similarity(text[i], text[j], dim=0).item() for j in range(len(text))]
        own = [cosine[j] for j in range(len(text)) if j != i and owner[j] == owner[i]]
        if own:
            others = [cosine[j] for j in range(len(text)) if owner[j] != owner[i]]
            # In one dimension all cosines are +-1: level within rounding counts as a tie.
            expected.append(1 + sum(c > max(own) - 1e-12 for c in others))
    if text.shape[1] == 1:
        text = text.sign()
    assert text_to_text_ranks(text, owner, chunk=3).tolist() == expected
    text[-1, 0] = torch.nan
    with pytest.raises(ValueError, match=f"text embedding {len(text) - 1} is not finite"):
        text_to_text_ranks(text, owner)


@given(st.integers(2, 7), st.integers(1, 7), st.integers(1, 9))
def test_chance_recall_is_the_mean_over_all_orders(videos, relevant, k):
    relevant = min(relevant, videos)
    # Where the relevant videos land: every set of places is equally likely.
    best = [1 + min(places) for places in combinations(range(videos), relevant)]
    expected = 100 * sum(rank <= k for rank in best) / len(best)
    assert chance_recall(videos, torch.tensor([relevant]), k) == pytest.approx(expected, abs=1e-9)


def test_nan_scores_are_rejected_by_name():
    scores, relevant = torch.zeros(2, 3), torch.eye(2, 3, dtype=torch.bool)
    scores[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"NaN for 1 of 2 queries \(first: index 1\) and 1 of 3 videos"):
        ranks(scores, relevant)
    blocks, ids = [slice(0, 2), slice(2, 3)], {"query_ids": ["q0", "q1"], "video_ids": ["v0", "v1", "v2"]}
    with pytest.raises(ValueError, match=r"first: 'q1'.*first: 'v2'"):
        stream_counts(lambda q, v: scores[q, v], relevant.nonzero(), [slice(0, 2)], blocks, **ids)


def loop_set_ranks(scores, owner):
    """For each video with a query, 1 + how many other sets have a query that scores at least as high as its best."""
    expected = []
    for video in sorted(set(owner.tolist())):
        best = {of: float(scores[owner == of, video].max()) for of in set(owner.tolist())}
        expected.append(sum(value >= best[video] for value in best.values()))
    return expected


@given(problems(), st.integers(1, 12), st.integers(1, 8))
def test_set_ranks_agree_with_a_loop_whatever_the_blocks(problem, queries, videos):
    scores, relevant = problem
    owner = relevant.int().argmax(1)
    blocks = [
        [slice(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(scores.shape, (queries, videos), strict=True)
    ]
    assert stream_set_counts(lambda q, v: scores[q, v], owner, *blocks).ranks().tolist() == loop_set_ranks(
        scores, owner
    )
    scores[0, owner[0]] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        stream_set_counts(lambda q, v: scores[q, v], owner, *blocks)


def test_the_table_has_the_columns_of_papers_and_says_what_video_to_text_is():
    def table(sets=None):
        report = make_report((1, 2, 11), [0, 0, 1], video_to_sets=sets)
        return [line.split() for line in printed(text_video_table(report)).splitlines()]

    lines = table(RetrievalMetrics.from_ranks(torch.tensor([1, 1])))
    assert ["R@1", "R@5", "R@10", "Rsum", "MdR", "MnR"] in lines
    assert ["text", "to", "video", "33.3", "66.7", "66.7", "166.7", "2", "4.7"] in lines
    assert ["video", "to", "text", "100.0", "100.0", "100.0", "300.0", "1", "1.0"] in lines
    assert any("sets" in line for line in lines)
    assert ["video", "to", "text", "33.3", "66.7", "66.7", "166.7", "2", "4.7"] in table()
    assert any("best" in line for line in table())
