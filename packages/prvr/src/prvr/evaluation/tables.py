"""Tables of an evaluation for the terminal: pure functions that return rich renderables."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from prvr.evaluation.metrics import HEADINGS, RetrievalMetrics
from prvr.evaluation.moments import ExampleQuery
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.zero_shot import Comparison

_RECALLS = ("R@1", "R@5", "R@10", "R@100", "SumR")
_PARTS = ("queries", *_RECALLS, "MdR", "MnR")
_BASELINES = {
    "zero-shot": "zero-shot (joint encoder, no training)",
    "training-free": "training-free (the same, by moments)",
    "kernel": "kernel (regression in closed form)",
    "kernel path": "kernel (the path of this model)",
}


def metrics_table(report: EvaluationReport) -> Table:
    """The main table: recalls in percent, SumR with its interval, median and mean rank, in each direction.

    The caption has SumR of chance, mAP and nDCG if the report has them, and the shares of tied queries and videos.

    Args:
        report: the report of an evaluation.
    """
    below = "" if report.above_chance else "; the model is not significantly better"
    lists, caption = report.lists, f"chance: SumR {report.chance:.1f}{below}"
    if lists is not None:
        scores = f"mAP {lists.map:.1f}, nDCG {lists.ndcg:.1f}; {lists.right:.2f} relevant videos per query"
        caption += ("\n" if below else "; ") + scores
    tied = f"{report.text_to_video.tied:.1%} of queries, {report.video_to_text.tied:.1%} of videos"
    caption += f"\n{TIES[report.ties]}; tied: {tied}"
    sumr = report.intervals.get("sumr")
    heading = "interval" if sumr is None else f"{sumr.level:.0%} interval"
    interval = {heading: "-" if sumr is None else f"{sumr.low:.1f} .. {sumr.high:.1f}"}
    rows = {
        name: getattr(report, name.replace(" ", "_")) for name in ("text to video", "video to text", "text to text")
    }
    columns = (*_RECALLS, heading, "MdR", "MnR")
    return _metrics_table(_title(report), caption, "", columns, rows, {"text to video": interval})


def text_video_table(report: EvaluationReport) -> Table:
    """The table of papers on text-to-video retrieval: R@1, R@5, R@10, their sum, median and mean rank, both ways.

    Each caption of a video is a query of its own. Video to text ranks the sets of captions of the videos if the report
    has that, else all captions, of which the best of its own counts.

    Args:
        report: the report of an evaluation, with `caption_sets` if videos have several captions.
    """
    several = len(report.query_ids) > len(set(report.query_to_video.tolist()))
    sets = several and report.video_to_sets is not None
    gallery = "sets of captions" if sets else "all captions, by the best one of a video"
    caption = TIES[report.ties] + f"\nvideo to text: among {gallery}" * several
    to_text = report.video_to_sets if sets else report.video_to_text
    rows = {"text to video": report.text_to_video, "video to text": to_text}
    return _metrics_table(_title(report), caption, "", ("R@1", "R@5", "R@10", "Rsum", "MdR", "MnR"), rows)


def systems_table(reports: Mapping[str, EvaluationReport]) -> Table:
    """One row for each system and direction: recalls, their sum, median and mean rank.

    Args:
        reports: evaluations on the same split, by the name of the system.
    """
    columns = ("R@1", "R@5", "R@10", "Rsum", "R@100", "MdR", "MnR")
    table = new_table(_title(next(iter(reports.values()))), None, [""], columns)
    for direction in ("text_to_video", "video_to_text", "video_to_sets"):
        for name, report in reports.items():
            metrics = getattr(report, direction)
            if metrics is not None:
                table.add_row(f"{direction.replace('_', ' ')}: {name}", *metric_cells(metrics, columns))
        table.add_section()
    return table


def baselines_table(comparison: Comparison, note: str | None = None) -> Table:
    """Recalls of chance, the baselines and the model, with the verdict as caption.

    Args:
        comparison: the comparison of a model with baselines.
        note: a further line of the caption.
    """
    caption = comparison.verdict if note is None else f"{comparison.verdict}\n{note}"
    table = new_table("% of queries with a relevant video among the best k", caption, [""], _RECALLS)
    table.add_row("chance", *(f"{value:.1f}" for value in comparison.chance))
    rows = {_BASELINES[name]: metrics for name, metrics in comparison.baselines.items()}
    for name, metrics in {**rows, "this model": comparison.model}.items():
        table.add_row(name, *metric_cells(metrics, _RECALLS))
    return table


def blocks_table(report: EvaluationReport) -> Table | None:
    """What each block of attention does; None if the report has none."""
    if not report.blocks:
        return None
    caption = (
        "logits before the window, first batch; registers: change of the block's output with others in their place"
    )
    columns = ("logit std", "relative entropy", "registers swapped", "registers averaged")
    table = new_table("attention", caption, ["block"], columns)
    for use in report.blocks:
        changes = ("-" if value is None else f"{value:.1%}" for value in (use.other_registers, use.mean_register))
        table.add_row(use.block, f"{use.deviation:.3g}", f"{use.entropy:.3f}", *changes)
    return table


def groups_table(report: EvaluationReport) -> Table | None:
    """Text to video by the share of the video that the moment takes; None if no moment is known."""
    if not report.groups:
        return None
    caption = _with_moments(sum(group.metrics.queries for group in report.groups), report)
    rows = {f"({group.low:g}, {group.high:g}]": group.metrics for group in report.groups}
    return _metrics_table("text to video by moment-to-video ratio", caption, "ratio", _PARTS, rows)


_TASKS = {"vcmr": "in the corpus (VCMR)", "svmr": "in its video (SVMR)"}


def moments_table(report: EvaluationReport) -> Table | None:
    """Recall of moments, in the corpus and in the query's own video; None if the report has none."""
    if not report.moments:
        return None
    caption = _with_moments(report.moments[0].queries, report)
    table = new_table("moment retrieval", caption, [""], ("IoU", "R@1", "its interval", "R@5", "R@10", "R@100"))
    for metrics in report.moments:
        first = metrics.intervals.get("r1")
        interval = "-" if first is None else f"{first.low:.1f} .. {first.high:.1f}"
        recalls = (f"{value:.1f}" for value in (metrics.r5, metrics.r10, metrics.r100))
        table.add_row(_TASKS[metrics.task], f"{metrics.iou:.1f}", f"{metrics.r1:.1f}", interval, *recalls)
    return table


def moment_baselines_table(report: EvaluationReport) -> Table | None:
    """The first moments beside answers that read no query; None if no moment is known."""
    if not report.baselines:
        return None
    rows = [one for one in report.baselines if one.below == 1 or one.queries < report.baselines[0].queries]
    notes = [] if report.moments else ["moments of this model: not reported, its videos have one row each"]
    if len(rows) < len(report.baselines):
        notes.append(f"all moments are below {report.baselines[-1].below:.0%} of their video")
    columns = ("IoU", "queries", "model", "whole video", "middle third", "random part")
    table = new_table("R@1 of moments beside answers that read no query", "\n".join(notes) or None, [""], columns)
    below = 1.0
    for one in rows:
        if one.below != below:
            table.add_section()
        below = one.below
        name = _TASKS[one.task] + f", below {below:.0%}" * (below < 1)
        rates = ("-" if rate is None else f"{rate:.1f}" for rate in (one.model, one.whole, one.middle, one.random))
        table.add_row(name, f"{one.iou:.1f}", f"{one.queries:,}", *rates)
    return table


def tags_table(report: EvaluationReport) -> Table | None:
    """Text to video by the tags of queries; None if no query has one."""
    rows = {tag.tag: tag.metrics for tag in report.tags}
    caption = "a query counts under each of its tags"
    return _metrics_table("text to video by kind of query", caption, "tag", _PARTS, rows) if rows else None


def queries_table(reports: Mapping[str, EvaluationReport]) -> Table | None:
    """Queries that no video answers, and graded moments; None if no report has either.

    Args:
        reports: evaluations on the same split, by the name of the system.
    """
    table = new_table("further queries and labels", None, ["", "measure"], ["value", "interval"])
    for name, report in reports.items():
        if (one := report.rejection) is not None:
            interval = f"{one.interval.low:.3f} .. {one.interval.high:.3f}"
            table.add_row(name, f"AUROC, {one.queries:,} queries without an answer", f"{one.auroc:.3f}", interval)
        for iou, value in report.graded.items():
            table.add_row(name, f"nDCG@20 of moments, IoU > {iou}", f"{value:.3f}", "-")
    return table if table.row_count else None


def examples_table(examples: Sequence[ExampleQuery]) -> Table:
    """Queries with their best videos and moments, best first, and the true moment below them.

    A video is right if it is relevant to the query, whatever the moment.
    """
    caption = "right: the video is relevant; overlap: intersection over union with the true moment"
    table = new_table("examples", caption)
    table.add_column("query", overflow="fold", min_width=20)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("video", overflow="fold", min_width=8)
    table.add_column("moment", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("right?", justify="center", no_wrap=True)
    table.add_column("overlap", justify="right", no_wrap=True)
    for example in examples:
        # Text, not str: a caption or an id may hold square brackets, which rich would read as markup.
        query = Text(example.caption)
        for place, hit in enumerate(example.hits, 1):
            right = Text("yes", "green") if hit.video_id in example.relevant else Text("no", "red")
            moment = _seconds(hit.start, hit.end)
            overlap = example.overlap(hit)
            cell = "-" if overlap is None or hit.video_id not in example.relevant else f"{overlap:.0%}"
            table.add_row(query, str(place), Text(hit.video_id), moment, f"{hit.score:.3f}", right, cell)
            query = Text("")
        truth = _seconds(example.start, example.end)
        table.add_row("", "true", Text(example.video_id), truth, "", "", "", style="dim", end_section=True)
    return table


TIES = {"worst": "ties: worst rank", "mean": "ties: average rank", "best": "ties: best rank"}
"""The rank among equal scores, in tables."""


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
    cells = {heading: f"{getattr(metrics, name):.1f}" for name, heading in HEADINGS.items()}
    cells |= {"queries": f"{metrics.queries:,}", "MdR": f"{metrics.mdr:g}", **(others or {})}
    return [cells.get(name, "") for name in columns]


def _with_moments(queries: int, report: EvaluationReport) -> str | None:
    """The caption where only a part of the queries has a known moment."""
    total = len(report.query_ids)
    return None if queries == total else f"{queries:,} of {total:,} queries have a known moment"


def _title(report: EvaluationReport) -> str:
    """The split and its size, and the changed keys of the model."""
    size = f"{report.split}: {len(report.query_ids):,} queries, {len(report.video_ids):,} videos"
    size += f", {report.labels} labels" * (report.labels != "original")
    size += f", {report.left_out:,} videos without features left out" * bool(report.left_out)
    changed = ", ".join(f"{key}={value}" for key, value in report.changed.items())
    return size + f"\nchanged after training: {changed}" * bool(changed)


def _metrics_table(
    title: str,
    caption: str | None,
    column: str,
    columns: Sequence[str],
    rows: Mapping[str, RetrievalMetrics | None],
    others: Mapping[str, Mapping[str, str]] | None = None,
) -> Table:
    """A row for each name: its metrics, and its cells of other columns; rows without metrics are left out."""
    table = new_table(title, caption, [column], columns)
    for name, metrics in rows.items():
        if metrics is not None:  # Text, not str: a tag may hold square brackets, which rich would read as markup
            table.add_row(Text(name), *metric_cells(metrics, columns, (others or {}).get(name)))
    return table


def _seconds(start: float | None, end: float | None) -> str:
    return "-" if start is None or end is None else f"{start:.1f} - {end:.1f} s"
