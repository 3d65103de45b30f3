"""Tables of an evaluation for the terminal: pure functions that return rich renderables."""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from prvr.evaluation.metrics import RetrievalMetrics
from prvr.evaluation.moments import ExampleQuery
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.zero_shot import Beside

_RECALLS = ("R@1", "R@5", "R@10", "R@100", "SumR")


def metrics_table(report: EvaluationReport) -> Table:
    """The main table: recalls in percent, SumR with its interval, median and mean rank, in each direction.

    SumR of chance, whether the model is better, and the shares of tied queries and videos stand below.

    Args:
        report: what `prvr.evaluation.evaluate` gave.
    """
    below = "" if report.above_chance else "; this is not shown to be better"
    caption = (
        f"chance: SumR {report.chance:.1f}{below}\nties count {TIES[report.ties]}; tied: "
        f"{report.text_to_video.tied:.1%} of queries, {report.video_to_text.tied:.1%} of videos"
    )
    sumr = report.intervals.get("sumr")
    interval = "interval" if sumr is None else f"{sumr.level:.0%} interval"
    columns = (*_RECALLS, interval, "MdR", "MnR")
    table = new_table(_size(report), caption, [""], columns)
    own = {interval: "-" if sumr is None else f"{sumr.low:.1f} .. {sumr.high:.1f}"}
    table.add_row("text to video", *metric_cells(report.text_to_video, columns, own))
    table.add_row("video to text", *metric_cells(report.video_to_text, columns))
    if report.text_to_text is not None:
        table.add_row("text to text", *metric_cells(report.text_to_text, columns))
    return table


def text_video_table(report: EvaluationReport) -> Table:
    """The table of papers on text-to-video retrieval: R@1, R@5, R@10, their sum, median and mean rank, both ways.

    Where videos have several captions, each is a query of its own, and video to text ranks the sets of captions of the
    videos if the report has that, else all captions, of which the best of its own counts.

    Args:
        report: what `prvr.evaluation.evaluate` gave, with `caption_sets` where videos have several captions.
    """
    several = len(report.query_ids) > len(set(report.query_to_video.tolist()))
    to_text = report.video_to_sets if several and report.video_to_sets is not None else report.video_to_text
    among = "sets of captions" if to_text is report.video_to_sets else "all captions, its best one counts"
    caption = f"ties count {TIES[report.ties]}" + f"\nvideo to text: among {among}" * several
    columns = ("R@1", "R@5", "R@10", "Rsum", "MdR", "MnR")
    table = new_table(_size(report), caption, [""], columns)
    for name, metrics in (("text to video", report.text_to_video), ("video to text", to_text)):
        table.add_row(name, *metric_cells(metrics, columns))
    return table


def systems_table(reports: Mapping[str, EvaluationReport]) -> Table:
    """One row for each system and direction: recalls, their sum, median and mean rank.

    Args:
        reports: evaluations on the same split, by the name of the system.
    """
    columns = ("R@1", "R@5", "R@10", "Rsum", "R@100", "MdR", "MnR")
    table = new_table(_size(next(iter(reports.values()))), None, [""], columns)
    for direction in ("text_to_video", "video_to_text", "video_to_sets"):
        for name, report in reports.items():
            metrics = getattr(report, direction)
            if metrics is not None:  # None: sets of captions were not ranked
                table.add_row(f"{direction.replace('_', ' ')}: {name}", *metric_cells(metrics, columns))
        table.add_section()
    return table


def beside_table(beside: Beside, note: str | None = None) -> Table:
    """Recalls of chance, the joint encoder alone and the model; what follows from them stands below.

    Args:
        beside: what `prvr.evaluation.zero_shot.beside_zero_shot` gave.
        note: a further line below.
    """
    caption = beside.verdict if note is None else f"{beside.verdict}\n{note}"
    table = new_table("% of sentences with a right video among the first k", caption, [""], _RECALLS)
    table.add_row("chance", *(f"{value:.1f}" for value in beside.chance))
    table.add_row("zero-shot (joint encoder, no training)", *metric_cells(beside.zero_shot, _RECALLS))
    table.add_row("this model", *metric_cells(beside.model, _RECALLS))
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
    table = new_table("examples", "right: the video answers the query; shared: of the moments found and true together")
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


TIES = {"worst": "against us", "mean": "half", "best": "for us"}
"""How tables say that queries with equal scores count."""


def new_table(title: str, caption: str | Text | None, texts: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """An empty table that fits 80 columns.

    Args:
        title: above the table.
        caption: below it.
        texts: the headings of the columns that hold text.
        numbers: the headings of the columns after them, which hold numbers.
    """
    table = Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def metric_cells(
    metrics: RetrievalMetrics, columns: Sequence[str], others: Mapping[str, str] | None = None
) -> list[str]:
    """The cells of a row of metrics.

    Args:
        metrics: what the row shows.
        columns: the headings.
        others: cells of other columns by their heading; a column that is in neither stays empty.
    """
    cells = {
        "queries": f"{metrics.queries:,}",
        "R@1": f"{metrics.r1:.1f}",
        "R@5": f"{metrics.r5:.1f}",
        "R@10": f"{metrics.r10:.1f}",
        "R@100": f"{metrics.r100:.1f}",
        "Rsum": f"{metrics.rsum:.1f}",
        "SumR": f"{metrics.sumr:.1f}",
        "MdR": f"{metrics.mdr:g}",
        "MnR": f"{metrics.mnr:.1f}",
    } | dict(others or {})
    return [cells.get(name, "") for name in columns]


def _size(report: EvaluationReport) -> str:
    """The title of a table: the split and its size, and what of the model was changed."""
    size = f"{report.split}: {len(report.query_ids):,} queries, {len(report.video_ids):,} videos"
    size += f", {report.labels} labels" * (report.labels != "original")
    changed = ", ".join(f"{key}={value}" for key, value in report.changed.items())
    return size + f"\nchanged after training: {changed}" * bool(changed)


def _parts_table(title: str, caption: str, column: str, parts: Iterable[tuple[str, RetrievalMetrics]]) -> Table:
    """A row per part of the queries, text to video."""
    columns = ("queries", *_RECALLS, "MdR", "MnR")
    table = new_table(title, caption, [column], columns)
    for name, metrics in parts:
        # Text, not str: a tag may hold square brackets, which rich would read as markup.
        table.add_row(Text(name), *metric_cells(metrics, columns))
    return table


def _seconds(start: float | None, end: float | None) -> str:
    return "-" if start is None or end is None else f"{start:.1f} - {end:.1f} s"
