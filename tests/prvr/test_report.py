"""Tables: what a reader must be able to find in them; and comparisons of two runs, matched by query id."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from reports import make_report, printed

from prvr.errors import DataError
from prvr.evaluation import RetrievalMetrics, compare_reports
from prvr.evaluation.compare import compare, comparison_table
from prvr.evaluation.moments import ExampleQuery, Hit
from prvr.evaluation.report import GroupMetrics, TagMetrics
from prvr.evaluation.significance import Interval, paired_test
from prvr.evaluation.tables import examples_table, groups_table, metrics_table, tags_table


def rows(renderable, width=80):
    """Cells of each line: they stand at least two blanks apart."""
    return [re.split(r"\s{2,}", line.strip()) for line in printed(renderable, width).splitlines()]


@pytest.fixture
def report():
    found = torch.tensor([1, 4, 9, 80, 300])
    return make_report(
        found.tolist(),
        [0, 0, 0, 1, 1],
        chance=5.32,
        text_to_video=RetrievalMetrics.from_ranks(found, tied=0.2),
        video_to_text=RetrievalMetrics.from_ranks(found[:2]),
        text_to_text=RetrievalMetrics.from_ranks(found[:2], misses=2),
        intervals={"sumr": Interval(171.23, 230.0)},
        groups=(GroupMetrics(0.0, 0.2, RetrievalMetrics.from_ranks(found[:3])),),
        tags=(TagMetrics("[red] words", RetrievalMetrics.from_ranks(found[1:4])),),
    )


def test_tables_of_a_report(report) -> None:
    table = metrics_table(report)
    by_name = {row[0]: row[1:] for row in rows(table)}
    assert by_name["text to video"] == ["20.0", "40.0", "60.0", "80.0", "200.0", "171.2 .. 230.0", "9", "78.8"]
    assert by_name["video to text"] == ["50.0", "100.0", "100.0", "100.0", "350.0", "2.5", "2.5"]
    assert by_name["text to text"][:5] == ["25.0", "50.0", "50.0", "50.0", "175.0"]
    text = printed(table)
    for part in ("tvr test: 5 queries, 2 videos", "chance: SumR 5.3", "tied: 20.0% of queries, 0.0% of videos"):
        assert part in text
    by_name = {row[0]: row[1:] for row in rows(metrics_table(replace(report, intervals={}, text_to_text=None)))}
    assert by_name["text to video"][5] == "-"
    assert "text to text" not in by_name
    table = groups_table(report)
    assert ["(0, 0.2]", "3", "33.3", "66.7", "100.0", "100.0", "300.0", "4", "4.7"] in rows(table)
    assert "3 of 5 queries have a known moment" in printed(table)
    assert ["[red] words", "3", "0.0", "33.3", "66.7", "100.0", "200.0", "9", "31.0"] in rows(tags_table(report))
    assert groups_table(replace(report, groups=())) is tags_table(replace(report, tags=())) is None


def test_examples_table_shows_text_as_it_is():
    example = ExampleQuery(
        query_id="v#0",
        caption="a [bold]man[/bold] [/]",
        hits=(Hit("w[1]", 0.81234, 3.0, 9.5), Hit("v", 0.7, None, None), Hit("v", 0.6, 11.0, 12.25)),
        video_id="v",
        start=10.0,
        end=12.25,
        relevant=frozenset({"v"}),
    )
    assert not example.correct
    lines = rows(examples_table([example]))
    assert ["a [bold]man[/bold] [/]", "1", "w[1]", "3.0 - 9.5 s", "0.812", "no", "-"] in lines
    assert ["2", "v", "-", "0.700", "yes", "-"] in lines
    assert ["3", "v", "11.0 - 12.2 s", "0.600", "yes", "56%"] in lines
    assert ["true", "v", "10.0 - 12.2 s"] in lines


OWNER = np.repeat(np.arange(30), 3)


def drawn(seed, shift=0):
    return make_report((np.random.default_rng(seed).integers(1, 40, size=len(OWNER)) + shift).tolist(), OWNER.tolist())


def test_two_run_folders_are_compared_and_shown(tmp_path) -> None:
    a, b = drawn(0, shift=5), drawn(1)
    a.to_json(tmp_path / "a" / "evaluation.json")
    b.to_json(tmp_path / "b" / "evaluation.json")
    found = compare(tmp_path / "a", tmp_path / "b" / "evaluation.json", samples=200)
    assert found.differences == paired_test(a.ranks, b.ranks, OWNER, samples=200)
    difference = found.differences["sumr"]
    assert difference.value == pytest.approx(b.text_to_video.sumr - a.text_to_video.sumr)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty.evaluation.json: no such file"):
        compare(tmp_path / "a", tmp_path / "empty")
    text = printed(comparison_table(replace(found, names=("runs/[a]", "runs/b"))), 140)
    row = next(line for line in text.splitlines() if "SumR" in line)
    numbers = [f"{one.text_to_video.sumr:.2f}" for one in (a, b)]
    for part in (*numbers, f"{difference.value:+.2f}", f"{difference.p_value:.4f}"):
        assert part in row
    assert "A = runs/[a]" in text


def test_queries_are_matched_by_id_not_by_place():
    a, b = drawn(0), drawn(1)
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
    tied = replace(drawn(0).text_to_video, tied=1.0)
    constant = replace(drawn(0), chance=390.0, text_to_video=tied)
    text = printed(comparison_table(compare_reports(constant, replace(drawn(1), chance=390.0), samples=100)))
    assert all(f"{name} is not significantly better than chance (SumR 390.0)" in text for name in "AB")
    assert "tied queries: A 100.0%, B 0.0%" in text


def test_runs_on_other_queries_are_refused():
    a, b = drawn(0), drawn(1)
    for change, message in (
        ({"query_ids": (*b.query_ids[:4], "new", *b.query_ids[5:])}, "query 'v1#enc#4' is only in A"),
        ({"query_to_video": np.roll(OWNER, 1)}, "query 'v0#enc#0' belongs to video 'v0' in A and to 'v29'"),
    ):
        with pytest.raises(DataError, match=message):
            compare_reports(a, replace(b, **change))
