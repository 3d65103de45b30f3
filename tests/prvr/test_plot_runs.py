"""Pictures of trained runs: the numbers behind them, computed again from the run; and what is refused."""

from collections.abc import Iterator
from contextlib import closing
from math import comb

import numpy as np
import pytest
from training_runs import StraightRuns

from prvr.data import PackedSplit
from prvr.evaluation import EvaluationReport
from prvr.pipeline import System, open_system
from prvr.plot import draw


@pytest.fixture(scope="module")
def system(straight_runs: StraightRuns) -> System:
    """With registers and the entailment loss."""
    return open_system(straight_runs["bert_adam"].output)


@pytest.fixture(scope="module")
def packed(system: System) -> Iterator[PackedSplit]:
    with closing(system.open_split("test")) as split:
        yield split


class TestRatios:
    def test_bars_are_the_reports_and_chance_is_that_of_each_group(
        self, system: System, packed: PackedSplit, straight_runs: StraightRuns
    ) -> None:
        runs = [system.folder, straight_runs["short"].output]
        figure = draw("ratios", system, settings={"reports": [str(runs[1])], "metric": "r10"})
        (axes,) = figure.axes
        reports = [EvaluationReport.from_json(run / "evaluation.json") for run in runs]
        heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
        assert heights == [[group.metrics.r10 for group in report.groups] for report in reports]
        (lines,) = axes.collections
        drawn = [segment[0, 1] for segment in lines.get_segments()]  # pyright: ignore[reportAttributeAccessIssue]
        videos, moments = len(packed), packed.moments
        shares = (moments.end - moments.start) / moments.duration
        for group, chance in zip(reports[0].groups, drawn, strict=True):
            wrong = [
                videos - len(packed.relevant[query])
                for query, share in enumerate(shares)
                if group.low < min(share, 1.0) <= group.high
            ]
            assert chance == pytest.approx(100 * np.mean([1 - comb(n, 10) / comb(videos, 10) for n in wrong]))

    def test_a_report_on_another_split_is_refused(self, system: System) -> None:
        with pytest.raises(ValueError, match="expected one on all of"):
            draw("ratios", system, split="val")
