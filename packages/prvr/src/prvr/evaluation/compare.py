"""Comparison of two runs on the same queries with a paired test."""

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Comparison:
    """Two evaluations on the same queries, by name, and the paired test of each metric (B - A)."""

    names: tuple[str, str]
    reports: tuple[EvaluationReport, EvaluationReport]
    differences: dict[str, Difference]


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
    paths = [path / "evaluation.json" if path.is_dir() else path for path in (Path(run_a), Path(run_b))]
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
    differences = paired_test(report_a.ranks, ranks, report_a.query_to_video, samples=samples, seed=seed)
    return Comparison(names, (report_a, report_b), differences)


def matched_ranks(
    report_a: EvaluationReport, report_b: EvaluationReport, names: tuple[str, str] = ("A", "B")
) -> Real[np.ndarray, " q"]:
    """The ranks of `report_b` in the order of the queries of `report_a`, `(q,)`; queries are matched by their ids.

    Raises:
        DataError: they differ in queries, videos, the video of a query, labels, or ties.
    """
    reports = (report_a, report_b)
    for what in ("query", "video"):
        ids = [set(getattr(report, f"{what}_ids")) for report in reports]
        for name, extra in ((names[0], ids[0] - ids[1]), (names[1], ids[1] - ids[0])):
            if extra:
                raise DataError(
                    f"{names[0]} ({len(ids[0])}) and {names[1]} ({len(ids[1])}) were not evaluated on the same {what} "
                    f"ids: {what} {min(extra)!r} is only in {name}, and {len(extra) - 1} more. Evaluate both on the "
                    "same split."
                )
    for what in ("labels", "ties"):
        a, b = (getattr(report, what) for report in reports)
        if a != b:
            raise DataError(
                f"{names[0]} was evaluated with {what} {a!r}, {names[1]} with {b!r}. Evaluate both the same way."
            )
    place = {query_id: i for i, query_id in enumerate(report_b.query_ids)}
    order = np.array([place[query_id] for query_id in report_a.query_ids])
    owners = [np.array(report.video_ids)[report.query_to_video] for report in reports]
    for query_id, a, b in zip(report_a.query_ids, owners[0], owners[1][order], strict=True):
        if a != b:
            raise DataError(
                f"query {query_id!r} belongs to video {str(a)!r} in {names[0]} and to {str(b)!r} in {names[1]}. "
                "Evaluate both on the same corpus."
            )
    return report_b.ranks[order]


def comparison_table(comparison: Comparison) -> Table:
    """A row per metric: both runs, the difference B - A with its interval, and the p-value.

    The caption names runs that are not better than chance, and the shares of tied queries.
    """
    a, b = comparison.reports
    notes = [f"{letter} = {name}" for letter, name in zip("AB", comparison.names, strict=True)]
    notes.append("paired by query, resampled by video")
    if a.text_to_video.tied or b.text_to_video.tied:
        notes.append(f"tied queries: A {a.text_to_video.tied:.1%}, B {b.text_to_video.tied:.1%}")
    notes += [
        f"{name} is not significantly better than chance (SumR {report.chance:.1f})"
        for name, report in zip("AB", comparison.reports, strict=True)
        if not report.above_chance
    ]
    level = comparison.differences[METRICS[-1]].interval.level
    title = f"{a.split}: {len(a.query_ids):,} queries, {len(a.video_ids):,} videos"
    columns = ("A", "B", "B - A", f"{level:.0%} interval", "p")
    table = new_table(title, Text("\n".join(notes)), ["text to video"], columns)
    return with_differences(table, (a.text_to_video, b.text_to_video), comparison.differences)


def with_differences(table: Table, both: Sequence[RetrievalMetrics], differences: Mapping[str, Difference]) -> Table:
    """The table with a row per metric: its name, both values, their difference with its interval, and the p-value."""
    for name in METRICS:
        difference = differences[name]
        table.add_row(
            "SumR" if name == "sumr" else f"R@{name[1:]}",
            *(f"{getattr(metrics, name):.2f}" for metrics in both),
            f"{difference.value:+.2f}",
            f"{difference.interval.low:+.2f} .. {difference.interval.high:+.2f}",
            f"{difference.p_value:.4f}",
        )
    return table
