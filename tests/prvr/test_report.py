"""Tables: what a reader must be able to find in them."""

import io
import re
from dataclasses import replace

import pytest
import torch
from reports import make_report, printed
from rich.console import Console

from prvr.cli.evaluate import show_report
from prvr.evaluation import EvaluationReport, RetrievalMetrics
from prvr.evaluation.moments import ExampleQuery, Hit
from prvr.evaluation.report import GroupMetrics, TagMetrics
from prvr.evaluation.significance import Interval
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


def test_metrics_table(report):
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


def test_metrics_table_without_interval_and_without_siblings(report):
    bare = EvaluationReport(**{**vars(report), "intervals": {}, "text_to_text": None})
    by_name = {row[0]: row[1:] for row in rows(metrics_table(bare))}
    assert by_name["text to video"][5] == "-"
    assert "text to text" not in by_name


def test_groups_table(report):
    table = groups_table(report)
    assert ["(0, 0.2]", "3", "33.3", "66.7", "100.0", "100.0", "300.0", "4", "4.7"] in rows(table)
    assert "3 of 5 queries have a known moment" in printed(table)
    assert groups_table(EvaluationReport(**{**vars(report), "groups": ()})) is None


def test_tags_table_shows_tags_as_they_are(report):
    table = tags_table(report)
    assert ["[red] words", "3", "0.0", "33.3", "66.7", "100.0", "200.0", "9", "31.0"] in rows(table)
    assert ["seen", "1", *["100.0"] * 4, "400.0", "1", "1.0"] in rows(table)
    assert "text to video by kind of query" in printed(table)
    assert tags_table(replace(report, tags=())) is None


def test_all_tables_of_a_report_are_printed_in_order(report):
    console = Console(width=80, file=io.StringIO())
    show_report(console, report)
    text = console.file.getvalue()
    places = [text.index(part) for part in ("video to text", "moment-to-video ratio", "kind of query", "[red] words")]
    assert places == sorted(places)
    console = Console(width=80, file=io.StringIO())
    show_report(console, replace(report, tags=(), groups=()))
    assert "video to text" in console.file.getvalue()
    assert "text to video by" not in console.file.getvalue()


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
    wide = EvaluationReport(**{**vars(report), "text_to_video": huge, "groups": (GroupMetrics(0.2, 0.4, huge),)})
    assert ["text to video", *["100.0"] * 4, "400.0", "171.2 .. 230.0", "123.5", "1234.6"] in rows(metrics_table(wide))
    assert ["(0.2, 0.4]", "1,000,000", *["100.0"] * 4, "400.0", "123.5", "1234.6"] in rows(groups_table(wide))
    tags = (TagMetrics("a_very_long_tag_" * 4, huge), TagMetrics("seen compositions", huge))
    found = rows(tags_table(replace(report, tags=tags)))
    numbers = ["1,000,000", *["100.0"] * 4, "400.0", "123.5", "1234.6"]
    assert ["seen compositions", *numbers] in found
    start = next(i for i, row in enumerate(found) if row[0].startswith("a_very"))
    assert found[start][1:] == numbers
    assert "".join(row[0] for row in found[start:-2]).startswith("a_very_long_tag_" * 4)
    hit = Hit("castle_s01e02_seg02_clip_05", 0.5, 1000.0, 1010.5)
    example = ExampleQuery("q", "a woman walks " * 5, (hit,), hit.video_id, 0.0, 9.0, frozenset())
    text = printed(examples_table([example]))
    assert "1000.0 - 1010.5 s" in text
    assert "castle_s01e02" in text
