"""What a run gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prvr.evaluation.report import EvaluationReport

__all__ = ["RunResult"]


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Args:
        output: the run folder.
        epochs: completed.
        best_epoch: the selected one, from 0.
        best_score: its SumR on the split that selects.
        stopped_early: by patience.
        history: the lines of `metrics.jsonl`.
        report: of the selected epoch on the reported split, as in `evaluation.json`.
    """

    output: Path
    epochs: int
    best_epoch: int
    best_score: float
    stopped_early: bool
    history: tuple[Mapping[str, Any], ...]
    report: EvaluationReport
