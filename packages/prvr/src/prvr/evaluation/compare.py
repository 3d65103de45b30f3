"""Comparison of two runs on the same queries: is B better than A, or would chance do?"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Real
from rich.table import Table
from rich.text import Text

from prvr.errors import DataError
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.evaluation.report import EvaluationReport
from prvr.evaluation.significance import METRICS, Difference, paired_test
from prvr.evaluation.tables import new_table

EVALUATION_FILE = "evaluation.json"


@dataclass(frozen=True)
class Comparison:
    """Two runs on one split, the paired test of each metric (B - A), and whether each run is better than chance."""

    name_a: str
    name_b: str
    split: str
    videos: int
    metrics_a: RetrievalMetrics
    metrics_b: RetrievalMetrics
    differences: dict[str, Difference]
    chance: float
    above_chance: tuple[bool, bool]


def compare(run_a: Path | str, run_b: Path | str, *, samples: int = 10_000, seed: int = 0) -> Comparison:
    """The paired test of two runs, from the evaluation files in their folders.

    Args:
        run_a: a run folder that holds `evaluation.json` and `evaluation_ranks.npz`, or the path of such a JSON file.
        run_b: the same of the other run.
        samples: number of resamples and of permutations.
        seed: the seed of the draws.

    Raises:
        DataError: a file is missing or damaged, or the runs were not evaluated on the same queries and videos.
    """
    paths = [path / EVALUATION_FILE if path.is_dir() else path for path in (Path(run_a), Path(run_b))]
    reports = [EvaluationReport.from_json(path) for path in paths]
    return compare_reports(*reports, names=(str(run_a), str(run_b)), samples=samples, seed=seed)


def compare_reports(
    report_a: EvaluationReport,
    report_b: EvaluationReport,
    *,
    names: tuple[str, str] = ("A", "B"),
    samples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """The paired test of two evaluations; queries are matched by their ids.

    Raises:
        DataError: as `matched_ranks`.
    """
    ranks = matched_ranks(report_a, report_b, names)
    return Comparison(
        name_a=names[0],
        name_b=names[1],
        split=report_a.split,
        videos=len(report_a.video_ids),
        metrics_a=report_a.text_to_video,
        metrics_b=report_b.text_to_video,
        differences=paired_test(report_a.ranks, ranks, report_a.query_to_video, samples=samples, seed=seed),
        chance=report_a.chance,
        above_chance=(report_a.above_chance, report_b.above_chance),
    )


def matched_ranks(
    report_a: EvaluationReport, report_b: EvaluationReport, names: tuple[str, str] = ("A", "B")
) -> Real[np.ndarray, " q"]:
    """The ranks of `report_b` in the order of the queries of `report_a`, `(q,)`; queries are matched by their ids.

    Raises:
        DataError: they differ in queries, videos, the video of a query, the labels, or in how ties count.
    """
    _check_same(names, "query", report_a.query_ids, report_b.query_ids)
    _check_same(names, "video", report_a.video_ids, report_b.video_ids)
    if report_a.labels != report_b.labels:
        raise DataError(
            f"{names[0]} was evaluated under {report_a.labels} labels, {names[1]} under {report_b.labels} ones: "
            "compare two files of the same labels."
        )
    if report_a.ties != report_b.ties:
        raise DataError(
            f"{names[0]} counts ties as {report_a.ties!r}, {names[1]} as {report_b.ties!r}: evaluate both the same way."
        )
    place = {query_id: i for i, query_id in enumerate(report_b.query_ids)}
    order = np.array([place[query_id] for query_id in report_a.query_ids])
    owners = [[report.video_ids[video] for video in report.query_to_video] for report in (report_a, report_b)]
    for i, query_id in enumerate(report_a.query_ids):
        if owners[0][i] != owners[1][order[i]]:
            raise DataError(
                f"query {query_id!r} belongs to video {owners[0][i]!r} in {names[0]} and to {owners[1][order[i]]!r} in "
                f"{names[1]}: evaluate both on the same corpus."
            )
    return report_b.ranks[order]


def comparison_table(comparison: Comparison) -> Table:
    """A row per metric: both runs, the difference B - A with its interval, and the p-value.

    What is not better than chance, and how many queries are tied, stands below.
    """
    notes = [f"A = {comparison.name_a}", f"B = {comparison.name_b}", "paired by query, resampled by video"]
    tied = (comparison.metrics_a.tied, comparison.metrics_b.tied)
    if any(tied):
        notes.append(f"tied queries: A {tied[0]:.1%}, B {tied[1]:.1%}")
    lost = [name for name, above in zip("AB", comparison.above_chance, strict=True) if not above]
    if lost:
        verb = "are" if len(lost) > 1 else "is"
        notes.append(f"{' and '.join(lost)} {verb} not shown to be better than chance (SumR {comparison.chance:.1f})")
    level = comparison.differences[METRICS[-1]].interval.level
    title = f"{comparison.split}: {comparison.metrics_a.queries:,} queries, {comparison.videos:,} videos"
    columns = ("A", "B", "B - A", f"{level:.0%} interval", "p")
    table = new_table(title, Text("\n".join(notes)), ["text to video"], columns)
    for name in METRICS:
        difference = comparison.differences[name]
        table.add_row(
            "SumR" if name == "sumr" else f"R@{name[1:]}",
            f"{getattr(comparison.metrics_a, name):.2f}",
            f"{getattr(comparison.metrics_b, name):.2f}",
            f"{difference.value:+.2f}",
            f"{difference.interval.low:+.2f} .. {difference.interval.high:+.2f}",
            f"{difference.p_value:.4f}",
        )
    return table


def _check_same(names: tuple[str, str], what: str, ids_a: tuple[str, ...], ids_b: tuple[str, ...]) -> None:
    if set(ids_a) == set(ids_b):
        return
    for name, own, other in ((names[0], ids_a, set(ids_b)), (names[1], ids_b, set(ids_a))):
        alone = [identifier for identifier in own if identifier not in other]
        if alone:
            raise DataError(
                f"{names[0]} ({len(ids_a)}) and {names[1]} ({len(ids_b)}) were not evaluated on the same {what} ids: "
                f"{what} {alone[0]!r} is only in {name}, with {len(alone) - 1} more. Evaluate both on the same split."
            )
