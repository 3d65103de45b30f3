"""Tables of an evaluation for the terminal: pure functions that return rich renderables."""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from prvr.evaluation.metrics import RECALLS, RetrievalMetrics
from prvr.evaluation.moments import ExampleQuery
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.zero_shot import Beside

__all__ = [
    "beside_table",
    "examples_table",
    "groups_table",
    "metrics_table",
    "systems_table",
    "tags_table",
    "text_video_table",
]

_RECALLS = ("R@1", "R@5", "R@10", "R@100", "SumR")


def metrics_table(report: EvaluationReport, title: str | None = None) -> Table:
    """The main table: recalls in percent, SumR with its interval, median and mean rank, in each direction.

    SumR of chance, whether the model is better, and the shares of tied queries and videos stand below.

    Args:
        report: what `prvr.evaluation.evaluate` gave.
        title: default: the split and its size.
    """
    size = f"{report.split}: {len(report.query_ids):,} queries, {len(report.video_ids):,} videos"
    below = "" if report.above_chance else "; this is not shown to be better"
    caption = (
        f"chance: SumR {report.chance:.1f}{below}\nties count {_TIES[report.ties]}; tied: "
        f"{report.text_to_video.tied:.1%} of queries, {report.video_to_text.tied:.1%} of videos"
    )
    table = _table(title or size, caption)
    table.add_column("", no_wrap=True)
    sumr = report.intervals.get("sumr")
    for name in (*_RECALLS, "interval" if sumr is None else f"{sumr.level:.0%} interval", "MdR", "MnR"):
        table.add_column(name, justify="right", no_wrap=True)
    interval = "-" if sumr is None else f"{sumr.low:.1f} .. {sumr.high:.1f}"
    table.add_row("text to video", *_recalls(report.text_to_video), interval, *_middle(report.text_to_video))
    table.add_row("video to text", *_recalls(report.video_to_text), "", *_middle(report.video_to_text))
    if report.text_to_text is not None:
        table.add_row("text to text", *_recalls(report.text_to_text), "", *_middle(report.text_to_text))
    return table


def text_video_table(report: EvaluationReport, title: str | None = None) -> Table:
    """The table of papers on text-to-video retrieval: R@1, R@5, R@10, their sum, median and mean rank, both ways.

    Where videos have several captions, each is a query of its own, and video to text ranks the sets of captions of the
    videos if the report has that, else all captions, of which the best of its own counts.

    Args:
        report: what `prvr.evaluation.evaluate` gave, with `caption_sets` where videos have several captions.
        title: default: the split and its size.
    """
    several = len(report.query_ids) > len(set(report.query_to_video.tolist()))
    to_text = report.video_to_sets if several and report.video_to_sets is not None else report.video_to_text
    among = "sets of captions" if to_text is report.video_to_sets else "all captions, its best one counts"
    caption = f"ties count {_TIES[report.ties]}" + f"\nvideo to text: among {among}" * several
    table = _table(
        title or f"{report.split}: {len(report.query_ids):,} queries, {len(report.video_ids):,} videos", caption
    )
    table.add_column("", no_wrap=True)
    for name in ("R@1", "R@5", "R@10", "Rsum", "MdR", "MnR"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, metrics in (("text to video", report.text_to_video), ("video to text", to_text)):
        values = (metrics.r1, metrics.r5, metrics.r10, metrics.rsum)
        table.add_row(name, *(f"{value:.1f}" for value in values), *_middle(metrics))
    return table


def systems_table(reports: Mapping[str, EvaluationReport], title: str) -> Table:
    """One row for each system and direction: recalls, their sum, median and mean rank.

    Args:
        reports: by the name of the system.
        title: above the table.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("")
    for name in ("R@1", "R@5", "R@10", "Rsum", "R@100", "MdR", "MnR"):
        table.add_column(name, justify="right", no_wrap=True)
    for direction in ("text_to_video", "video_to_text", "video_to_sets"):
        for name, report in reports.items():
            m = getattr(report, direction)
            if m is None:  # sets of captions were not ranked
                continue
            values = (m.r1, m.r5, m.r10, m.r1 + m.r5 + m.r10, m.r100)
            label = f"{direction.replace('_', ' ')}: {name}"
            table.add_row(label, *(f"{value:.1f}" for value in values), f"{m.mdr:g}", f"{m.mnr:.1f}")
        table.add_section()
    return table


def beside_table(beside: Beside, note: str | None = None) -> Table:
    """Recalls of chance, of the joint encoder alone, and of the model; what follows from them stands below.

    Args:
        beside: what `prvr.evaluation.zero_shot.beside_zero_shot` gave.
        note: a further line below.
    """
    caption = beside.verdict if note is None else f"{beside.verdict}\n{note}"
    table = _table("% of sentences with a right video among the first k", caption)
    table.add_column("")
    for name in (*(f"R@{k}" for k in RECALLS), "SumR"):
        table.add_column(name, justify="right")
    table.add_row("chance", *(f"{value:.1f}" for value in beside.chance))
    table.add_row("zero-shot (joint encoder, no training)", *_recalls(beside.zero_shot))
    table.add_row("this model", *_recalls(beside.model))
    return table


def groups_table(report: EvaluationReport) -> Table | None:
    """Text to video by the share of the video that the moment takes; None where no moment is known."""
    if not report.groups:
        return None
    known = sum(group.metrics.queries for group in report.groups)
    known = f"{known:,} of {len(report.query_ids):,} queries have a known moment"
    parts = ((f"({group.low:g}, {group.high:g}]", group.metrics) for group in report.groups)
    return _parts_table("text to video by moment-to-video ratio", known, "ratio", parts)


def tags_table(report: EvaluationReport) -> Table | None:
    """Text to video by the tags of queries; None where no query has one."""
    if not report.tags:
        return None
    parts = ((tag.tag, tag.metrics) for tag in report.tags)
    return _parts_table("text to video by kind of query", "a query counts under each of its tags", "tag", parts)


def examples_table(examples: Sequence[ExampleQuery]) -> Table:
    """Queries with the videos found for them and where in time, best first, and below them what is true.

    A video is right if it answers the query: its own, or another of its relevance set. A moment is judged apart.
    """
    table = _table("examples", "right: the video answers the query; shared: of the moments found and true together")
    table.add_column("query", overflow="fold", min_width=20)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("video", overflow="fold", min_width=8)
    table.add_column("moment", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("right?", justify="center", no_wrap=True)
    table.add_column("shared", justify="right", no_wrap=True)
    for example in examples:
        # Text, not str: a caption or an id may hold square brackets, which rich would read as markup.
        query = Text(example.caption)
        for place, hit in enumerate(example.hits, 1):
            right = Text("yes", "green") if hit.video_id in example.relevant else Text("no", "red")
            moment = _seconds(hit.start, hit.end)
            shared = example.shared(hit)
            common = "-" if shared is None or hit.video_id not in example.relevant else f"{shared:.0%}"
            table.add_row(query, str(place), Text(hit.video_id), moment, f"{hit.score:.3f}", right, common)
            query = Text("")
        truth = _seconds(example.start, example.end)
        table.add_row("", "true", Text(example.video_id), truth, "", "", "", style="dim", end_section=True)
    return table


_TIES = {"worst": "against us", "mean": "half", "best": "for us"}


def _table(title: str, caption: str | None) -> Table:
    """All tables fit 80 columns."""
    return Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )


def _parts_table(title: str, caption: str, column: str, parts: Iterable[tuple[str, RetrievalMetrics]]) -> Table:
    """A row per part of the queries, text to video."""
    table = _table(title, caption)
    table.add_column(column, overflow="fold")
    for name in ("queries", *_RECALLS, "MdR", "MnR"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, metrics in parts:
        # Text, not str: a tag may hold square brackets, which rich would read as markup.
        table.add_row(Text(name), f"{metrics.queries:,}", *_recalls(metrics), *_middle(metrics))
    return table


def _recalls(metrics: RetrievalMetrics) -> list[str]:
    return [f"{value:.1f}" for value in (metrics.r1, metrics.r5, metrics.r10, metrics.r100, metrics.sumr)]


def _middle(metrics: RetrievalMetrics) -> list[str]:
    return [f"{metrics.mdr:g}", f"{metrics.mnr:.1f}"]


def _seconds(start: float | None, end: float | None) -> str:
    return "-" if start is None or end is None else f"{start:.1f} - {end:.1f} s"
