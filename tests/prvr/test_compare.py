"""Comparison of run folders: matched by query id, refused where the runs do not belong together."""

from dataclasses import replace

import numpy as np
import pytest
from reports import make_report, printed

from prvr.errors import DataError
from prvr.evaluation import compare_reports
from prvr.evaluation.compare import compare, comparison_table
from prvr.evaluation.significance import paired_test

OWNER = np.repeat(np.arange(30), 3)


def report(seed, shift=0):
    return make_report((np.random.default_rng(seed).integers(1, 40, size=len(OWNER)) + shift).tolist(), OWNER.tolist())


def test_two_run_folders_are_compared(tmp_path):
    a, b = report(0, shift=5), report(1)
    a.to_json(tmp_path / "a" / "evaluation.json")
    b.to_json(tmp_path / "b" / "evaluation.json")
    found = compare(tmp_path / "a", tmp_path / "b" / "evaluation.json", samples=200)
    assert found.differences == paired_test(a.ranks, b.ranks, OWNER, samples=200)
    assert found.differences["sumr"].value == pytest.approx(b.text_to_video.sumr - a.text_to_video.sumr)
    assert [one.text_to_video for one in found.reports] == [a.text_to_video, b.text_to_video]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty.evaluation.json: no such file"):
        compare(tmp_path / "a", tmp_path / "empty")


def test_queries_are_matched_by_id_not_by_place():
    a, b = report(0), report(1)
    order = np.random.default_rng(3).permutation(len(OWNER))
    videos = np.random.default_rng(4).permutation(30)  # new number -> old number
    shuffled = replace(
        b,
        query_ids=tuple(b.query_ids[i] for i in order),
        ranks=b.ranks[order],
        video_ids=tuple(b.video_ids[v] for v in videos),
        query_to_video=np.argsort(videos)[OWNER[order]],
    )
    expected = compare_reports(a, b, samples=100).differences
    assert compare_reports(a, shuffled, samples=100).differences == expected


def test_what_is_not_better_than_chance_is_said():
    tied = replace(report(0).text_to_video, tied=1.0)
    constant = replace(report(0), chance=390.0, text_to_video=tied)
    text = printed(comparison_table(compare_reports(constant, replace(report(1), chance=390.0), samples=100)))
    assert all(f"{name} is not significantly better than chance (SumR 390.0)" in text for name in "AB")
    assert "tied queries: A 100.0%, B 0.0%" in text
    assert "chance" not in printed(comparison_table(compare_reports(report(0), report(1), samples=100)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: {"query_ids": (*b.query_ids[:4], "new", *b.query_ids[5:])}, "query 'v1#enc#4' is only in A"),
        (lambda b: {"video_ids": (*b.video_ids[:-1], "elsewhere")}, "video 'v29' is only in A"),
        (lambda b: {"ties": "best"}, "A was evaluated with ties 'worst', B with 'best'"),
        (lambda b: {"query_to_video": np.roll(OWNER, 1)}, "query 'v0#enc#0' belongs to video 'v0' in A and to 'v29'"),
        (
            lambda b: {"query_ids": (*b.query_ids, "x"), "ranks": [*b.ranks, 1], "query_to_video": [*OWNER, 0]},
            r"A \(90\) and B \(91\).*query 'x' is only in B",
        ),
    ],
)
def test_runs_on_other_queries_are_refused(change, message):
    b = report(1)
    with pytest.raises(DataError, match=message):
        compare_reports(report(0), replace(b, **change(b)))


def test_the_table_shows_both_runs_and_the_difference():
    a, b = report(0, shift=5), report(1)
    found = compare_reports(a, b, names=("runs/[a]", "runs/b"), samples=100)
    text = printed(comparison_table(found), 140)
    row = next(line for line in text.splitlines() if "SumR" in line)
    difference = found.differences["sumr"]
    for part in (f"{a.text_to_video.sumr:.2f}", f"{b.text_to_video.sumr:.2f}", f"{difference.value:+.2f}"):
        assert part in row
    assert "A = runs/[a]" in text
    assert f"{difference.p_value:.4f}" in row
