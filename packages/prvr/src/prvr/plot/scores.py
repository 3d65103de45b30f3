"""Scores of right and wrong pairs, in and out of domain (DiffusionRet, figure 4), and recall by the share of the video
that the moment takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation import EvaluationReport, GroupMetrics, ranked_rows
from prvr.evaluation.metrics import RECALLS, chance_recall
from prvr.evaluation.rank import moment_ratios
from prvr.evaluation.transfer import target_config
from prvr.plot.drawing import PlotInput
from prvr.plot.figures import COLOURS, RIGHT, WRONG, brief, new_figure
from prvr.plot.registry import RatiosSettings, ScoresSettings
from prvr.stages import EncodedSplit, FirstStage, Pipeline, ScoreMatrix
from prvr.stages.pipelines import as_pipeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METRICS = {"sumr": ("SumR", RECALLS)} | {f"r{k}": (f"R@{k}", (k,)) for k in RECALLS}


@dataclass(frozen=True)
class PairScores:
    """Scores of queries with right and with wrong videos, at least one of each.

    Args:
        positive: scores of right pairs.
        negative: scores of wrong pairs, all of them or a sample.
    """

    positive: Float[np.ndarray, " p"]
    negative: Float[np.ndarray, " n"]

    def __post_init__(self) -> None:
        for name, values in (("positive", self.positive), ("negative", self.negative)):
            if not len(values) or not np.isfinite(values).all():
                raise InputError(f"{name}: {len(values)} scores, expected at least one, and all of them finite")

    @property
    def auc(self) -> float:
        """How often a right pair scores above a wrong one, ties counting half; 0.5 is chance, 1 is perfect.

        Examples:
            >>> PairScores(np.array([0.5, 0.9]), np.array([0.5, 0.1])).auc
            0.875
        """
        ordered = np.sort(self.negative)
        below, level = (np.searchsorted(ordered, self.positive, side) for side in ("left", "right"))
        return float((below + level).mean() / (2 * len(ordered)))

    def overlap(self, edges: Float[np.ndarray, " b"]) -> float:
        """The share that the two histograms have in common, in [0, 1].

        Args:
            edges: the edges of the bins, ascending.
        """
        shares = [np.histogram(values, edges)[0] / len(values) for values in (self.positive, self.negative)]
        return float(np.minimum(*shares).sum())


@torch.no_grad()
def pair_scores(
    system: FirstStage | Pipeline,
    split: PackedSplit,
    encoded: EncodedSplit,
    *,
    most: int = 200_000,
    block: int = 256,
    seed: int = 0,
) -> PairScores:
    """Scores of all right pairs of a split, and of a sample of the wrong ones.

    Args:
        system: a retriever or a pipeline, in evaluation mode; the scores are those after its stages.
        split: a packed split.
        encoded: what `prvr.evaluation.encode_split` gave for it.
        most: wrong pairs kept; each is kept with the same probability.
        block: queries scored at a time.
        seed: the seed of the sample.

    Raises:
        ValueError: a score is not finite, or there is no wrong pair.
    """
    keep = min(1.0, most / max(1, len(split.query_ids) * len(split)))
    numbers = torch.Generator("cpu").manual_seed(seed)
    positive, negative = [], []
    pipeline = as_pipeline(system)
    matrix = ScoreMatrix(pipeline.first, encoded, split.relevant)
    for rows, scores in ranked_rows(pipeline, encoded, "t2v", block):
        values, right = scores.cpu(), matrix.positives("t2v", rows).cpu()
        drawn = torch.rand(values.shape, generator=numbers) < keep
        positive.append(values[right])
        negative.append(values[~right & drawn])
    return PairScores(torch.cat(positive).double().numpy(), torch.cat(negative).double().numpy())


def scores_figure(domains: Mapping[str, PairScores], *, bins: int = 50) -> "Figure":
    """A histogram of right (green) and wrong (grey) pairs for each domain, all over the same range.

    Args:
        domains: scores by the name of the corpus, for example that of the training, then others.
        bins: the number of bins of each histogram.

    Raises:
        ValueError: no domain.
    """
    if not domains:
        raise InputError("no domain: give the scores of at least one corpus")
    every = [values for pairs in domains.values() for values in (pairs.positive, pairs.negative)]
    edges = np.linspace(min(x.min() for x in every), max(x.max() for x in every) + 1e-9, bins + 1)
    figure = new_figure(3.4 * len(domains), 3.5)
    panels = np.atleast_1d(figure.subplots(1, len(domains), sharey=True))
    for axes, (name, pairs) in zip(panels, domains.items(), strict=True):
        for values, colour, label in ((pairs.negative, WRONG, "wrong pairs"), (pairs.positive, RIGHT, "right pairs")):
            share = np.full(len(values), 100 / len(values))
            axes.hist(values, edges, weights=share, color=colour, alpha=0.7, label=label)
        told = "\n".join(wrap(name, 36, max_lines=2)).replace("$", r"\$")
        axes.set_title(f"{told}\nAUC {pairs.auc:.3f}, overlap {100 * pairs.overlap(edges):.0f} %", fontsize="medium")
        axes.set(xlabel="score", xlim=(edges[0], edges[-1]))
    panels[0].set_ylabel("% of pairs")
    panels[0].legend(fontsize="small", loc="upper left")
    return figure


def draw_scores(given: PlotInput, settings: ScoresSettings) -> "Figure":
    """The scores of right and wrong pairs on a run's own corpus and on others, after each stage of the system."""
    source = given.config.data.collection
    wanted = None if given.split == given.config.data.eval_split else given.split  # asked for, on every corpus
    asked = [(source, given.config, given.split)]
    for target in settings.transfer:
        config, split = target_config(given.config, Path(target), wanted)
        asked.append((f"{source} -> {config.data.collection}", config, split))
    parts, domains = given.system.parts(), {}
    for name, config, split in asked:
        with given.encoded(config, split) as (packed, encoded):
            for part, pipeline in parts.items():
                label = f"{name}, {part}" if len(parts) > 1 else name
                domains[label] = pair_scores(pipeline, packed, encoded)
    return scores_figure(domains, bins=settings.bins)


def chance_by_ratio(split: PackedSplit, groups: Sequence[GroupMetrics], metric: str = "sumr") -> list[float]:
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
