"""Recall by the share of the video that the moment takes, from the reports of one or several runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from prvr.errors import InputError
from prvr.evaluation import EvaluationReport
from prvr.evaluation.metrics import RECALLS, chance_recall
from prvr.evaluation.rank import moment_ratios
from prvr.plot.drawing import PlotInput
from prvr.plot.figures import COLOURS, brief, new_figure
from prvr.plot.registry import RatiosSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prvr.data import PackedSplit
    from prvr.evaluation import GroupMetrics

_METRICS = {"sumr": ("SumR", RECALLS)} | {f"r{k}": (f"R@{k}", (k,)) for k in RECALLS}


def chance_by_ratio(split: "PackedSplit", groups: Sequence["GroupMetrics"], metric: str = "sumr") -> list[float]:
    """What a random order of the gallery gives for the queries of each group, in percent.

    Args:
        split: the split that was evaluated.
        groups: the groups of its report.
        metric: `sumr`, or `r1`, `r5`, `r10` or `r100`.
    """
    ratios = moment_ratios(split.moments)
    counts = torch.tensor([len(videos) for videos in split.relevant])
    return [
        sum(
            chance_recall(len(split), counts[(ratios > group.low) & (ratios <= group.high)], k)
            for k in _METRICS[metric][1]
        )
        for group in groups
    ]


def ratios_figure(
    reports: Mapping[str, EvaluationReport], chance: Sequence[float], *, metric: str = "sumr"
) -> "Figure":
    """A bar for each report in each group of moment-to-video ratios, with a line across the group where chance lies.

    Args:
        reports: by the name of the run; all of one split.
        chance: the metric of a random order for each group.
        metric: `sumr`, or `r1`, `r5`, `r10` or `r100`.

    Raises:
        InputError: no report, one without known moments, or reports with different groups.
    """
    found = {
        name: {(g.low, g.high): getattr(g.metrics, metric) for g in report.groups} for name, report in reports.items()
    }
    groups = next(iter(reports.values())).groups if reports else ()
    if not groups or len(groups) != len(chance) or len({tuple(values) for values in found.values()}) > 1:
        raise InputError(
            f"{', '.join(found) or 'no report'}: expected reports with the same groups of moment-to-video ratios, and "
            f"the chance of each ({len(chance)} given, {len(groups)} groups)"
        )
    figure = new_figure(2.2 + 1.1 * len(groups) * max(1.2, 0.5 * len(found)), 3.8)
    axes, width = figure.subplots(), 0.8 / len(found)
    for number, (name, values) in enumerate(found.items()):
        x = [place + (number - (len(found) - 1) / 2) * width for place in range(len(groups))]
        bars = axes.bar(
            x, list(values.values()), 0.92 * width, color=COLOURS[number % len(COLOURS)], label=brief(name, 40)
        )
        axes.bar_label(bars, fmt="%.1f", fontsize="small", padding=2)
    axes.hlines(
        chance, [x - 0.45 for x in range(len(groups))], [x + 0.45 for x in range(len(groups))],
        color="black", linestyle=":", linewidth=1.5, label="chance",
    )  # fmt: skip
    axes.set_xticks(range(len(groups)), [f"({g.low:g}, {g.high:g}]\n{g.metrics.queries:,} queries" for g in groups])
    axes.set(xlabel="moment-to-video ratio", ylabel=f"{_METRICS[metric][0]}, text to video")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.12)
    figure.legend(loc="outside upper left", ncols=min(3, len(found) + 1), frameon=False, fontsize="small")
    return figure


def draw_ratios(given: PlotInput, settings: RatiosSettings) -> "Figure":
    """The reports of a system and of others on one split, by moment-to-video ratio."""
    reports, first = {}, str(given.system.folder)
    with given.opened() as packed:
        for name in (first, *settings.reports):
            path = Path(name).expanduser()
            file = path / "evaluation.json" if path.is_dir() else path
            report = EvaluationReport.from_json(file)
            if report.query_ids != packed.query_ids or report.video_ids != packed.video_ids:
                raise InputError(f"{file}: a report on {report.split}, expected one on all of {packed.name}")
            reports[path.stem if path.is_file() else path.name] = report
        chance = chance_by_ratio(packed, reports[next(iter(reports))].groups, settings.metric)
    return ratios_figure(reports, chance, metric=settings.metric)
