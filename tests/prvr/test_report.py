"""Tables: what a reader must be able to find in them; and comparisons of two runs, matched by query id."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from reports import make_report, printed
from rich.console import Console

from prvr.cli.evaluate import show_report
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
        tags=(
            TagMetrics("[red] words", RetrievalMetrics.from_ranks(found[1:4])),
            TagMetrics("seen", RetrievalMetrics.from_ranks(found[:1])),
        ),
    )


def test_tables_of_a_report(report) -> None:
    table = metrics_table(report)
    by_name = {row[0]: row[1:] for row in rows(table)}
    assert by_name["text to video"] == ["20.0", "40.0", "60.0", "80.0", "200.0", "171.2 .. 230.0", "9", "78.8"]
    assert by_name["video to text"] == ["50.0", "100.0", "100.0", "100.0", "350.0", "2.5", "2.5"]
    assert by_name["text to text"][:5] == ["25.0", "50.0", "50.0", "50.0", "175.0"]
    text = printed(table)
    for part in (
        "tvr test: 5 queries, 2 videos",
        "chance: SumR 5.3",
        "ties: worst rank; tied: 20.0% of queries, 0.0% of videos",
        "95% interval",
    ):
        assert part in text
    by_name = {row[0]: row[1:] for row in rows(metrics_table(replace(report, intervals={}, text_to_text=None)))}
    assert by_name["text to video"][5] == "-"
    assert "text to text" not in by_name
    table = groups_table(report)
    assert ["(0, 0.2]", "3", "33.3", "66.7", "100.0", "100.0", "300.0", "4", "4.7"] in rows(table)
    assert "3 of 5 queries have a known moment" in printed(table)
    assert groups_table(replace(report, groups=())) is None
    console = Console(width=80, file=io.StringIO())
    show_report(console, report)
    text = console.file.getvalue()
    places = [text.index(part) for part in ("video to text", "moment-to-video ratio", "kind of query", "[red] words")]
    assert places == sorted(places)
    table = tags_table(report)
    assert ["[red] words", "3", "0.0", "33.3", "66.7", "100.0", "200.0", "9", "31.0"] in rows(table)
    assert ["seen", "1", *["100.0"] * 4, "400.0", "1", "1.0"] in rows(table)
    assert "text to video by kind of query" in printed(table)
    assert tags_table(replace(report, tags=())) is None


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


def test_tables_fit_a_narrow_terminal(report):
    huge = RetrievalMetrics(100.0, 100.0, 100.0, 100.0, 400.0, 123.5, 1234.6, 1_000_000, 1.0)
    wide = replace(report, text_to_video=huge, groups=(GroupMetrics(0.2, 0.4, huge),))
    assert ["text to video", *["100.0"] * 4, "400.0", "171.2 .. 230.0", "123.5", "1234.6"] in rows(metrics_table(wide))
    assert ["(0.2, 0.4]", "1,000,000", *["100.0"] * 4, "400.0", "123.5", "1234.6"] in rows(groups_table(wide))
    hit = Hit("castle_s01e02_seg02_clip_05", 0.5, 1000.0, 1010.5)
    example = ExampleQuery("q", "a woman walks " * 5, (hit,), hit.video_id, 0.0, 9.0, frozenset())
    text = printed(examples_table([example]))
    assert "1000.0 - 1010.5 s" in text
    assert "castle_s01e02" in text


OWNER = np.repeat(np.arange(30), 3)


def drawn(seed, shift=0):
    return make_report((np.random.default_rng(seed).integers(1, 40, size=len(OWNER)) + shift).tolist(), OWNER.tolist())


def test_two_run_folders_are_compared_and_shown(tmp_path) -> None:
    a, b = drawn(0, shift=5), drawn(1)
    a.to_json(tmp_path / "a" / "evaluation.json")
    b.to_json(tmp_path / "b" / "evaluation.json")
    found = compare(tmp_path / "a", tmp_path / "b" / "evaluation.json", samples=200)
    assert found.differences == paired_test(a.ranks, b.ranks, OWNER, samples=200)
    assert found.differences["sumr"].value == pytest.approx(b.text_to_video.sumr - a.text_to_video.sumr)
    assert [one.text_to_video for one in found.reports] == [a.text_to_video, b.text_to_video]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty.evaluation.json: no such file"):
        compare(tmp_path / "a", tmp_path / "empty")
    a, b = drawn(0, shift=5), drawn(1)
    found = compare_reports(a, b, names=("runs/[a]", "runs/b"), samples=100)
    text = printed(comparison_table(found), 140)
    row = next(line for line in text.splitlines() if "SumR" in line)
    difference = found.differences["sumr"]
    for part in (f"{a.text_to_video.sumr:.2f}", f"{b.text_to_video.sumr:.2f}", f"{difference.value:+.2f}"):
        assert part in row
    assert "A = runs/[a]" in text
    assert f"{difference.p_value:.4f}" in row


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
    assert "chance" not in printed(comparison_table(compare_reports(drawn(0), drawn(1), samples=100)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: {"query_ids": (*b.query_ids[:4], "new", *b.query_ids[5:])}, "query 'v1#enc#4' is only in A"),
        (lambda b: {"query_to_video": np.roll(OWNER, 1)}, "query 'v0#enc#0' belongs to video 'v0' in A and to 'v29'"),
        (
            lambda b: {"query_ids": (*b.query_ids, "x"), "ranks": [*b.ranks, 1], "query_to_video": [*OWNER, 0]},
            r"A \(90\) and B \(91\).*query 'x' is only in B",
        ),
    ],
)
def test_runs_on_other_queries_are_refused(change, message):
    b = drawn(1)
    with pytest.raises(DataError, match=message):
        compare_reports(drawn(0), replace(b, **change(b)))
