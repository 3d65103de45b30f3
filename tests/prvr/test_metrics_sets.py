"""Rsum, and video to text among sets of captions, against ir-measures and plain loops."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from reports import make_report, printed

from prvr.evaluation import EvaluationReport, RetrievalMetrics
from prvr.evaluation.streaming import stream_set_counts
from prvr.evaluation.tables import text_video_table


@st.composite
def problems(draw):
    """Scores on a coarse grid, so that ties are common; every video has a query or none."""
    q, v = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    levels = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])
    scores = torch.from_numpy(draw(npst.arrays(np.float32, (q, v), elements=levels)))
    owner = torch.from_numpy(draw(npst.arrays(np.int64, q, elements=st.integers(0, v - 1))))
    return scores, owner


def slices(size, step):
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def loop_set_ranks(scores, owner):
    """For each video with a query, 1 + how many other sets have a query that scores at least as high as its best."""
    found = []
    for video in sorted(set(owner.tolist())):
        sets: dict[int, list[float]] = {}
        for query, of in enumerate(owner.tolist()):
            sets.setdefault(of, []).append(scores[query, video].item())
        found.append(1 + sum(max(some) >= max(sets[video]) for of, some in sets.items() if of != video))
    return found


@given(problems(), st.integers(1, 12), st.integers(1, 8))
def test_set_ranks_agree_with_a_loop_whatever_the_blocks(problem, queries, videos):
    scores, owner = problem
    counts = stream_set_counts(
        lambda q, v: scores[q, v], owner, slices(len(owner), queries), slices(scores.shape[1], videos)
    )
    assert counts.ranks().tolist() == loop_set_ranks(scores, owner)


def test_a_nan_is_refused():
    scores = torch.tensor([[0.1, 0.2], [float("nan"), 0.3]])
    with pytest.raises(ValueError, match="NaN"):
        stream_set_counts(lambda q, v: scores[q, v], torch.tensor([0, 1]), [slice(0, 2)], [slice(0, 2)])


def report(query_to_video, video_to_sets=None, ranks_=(1, 2, 11)):
    return make_report(ranks_, query_to_video, video_to_sets=video_to_sets)


def lines_of(table):
    return [line.split() for line in printed(table).splitlines()]


class TestReport:
    def test_the_table_has_the_columns_of_papers(self) -> None:
        lines = lines_of(text_video_table(report([0, 1, 2])))
        assert ["R@1", "R@5", "R@10", "Rsum", "MdR", "MnR"] in lines
        assert ["text", "to", "video", "33.3", "66.7", "66.7", "166.7", "2", "4.7"] in lines

    def test_video_to_text_is_among_sets_where_the_report_has_them(self) -> None:
        sets = RetrievalMetrics.from_ranks(torch.tensor([1, 1]))
        lines = lines_of(text_video_table(report([0, 0, 1], sets)))
        assert ["video", "to", "text", "100.0", "100.0", "100.0", "300.0", "1", "1.0"] in lines
        assert any("sets" in line for line in lines)
        without = lines_of(text_video_table(report([0, 0, 1])))
        assert ["video", "to", "text", "33.3", "66.7", "66.7", "166.7", "2", "4.7"] in without
        assert any("best" in line for line in without)

    def test_sets_are_kept_in_json(self, tmp_path: Path) -> None:
        sets = RetrievalMetrics.from_ranks(torch.tensor([1, 4]))
        for name, given_ in (("with", sets), ("without", None)):
            found = report([0, 0, 1], given_)
            found.to_json(tmp_path / f"{name}.json")
            assert EvaluationReport.from_json(tmp_path / f"{name}.json").video_to_sets == given_
