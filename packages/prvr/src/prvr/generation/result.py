"""What a run of stage 2 gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prvr.evaluation.report import EvaluationReport
from prvr.stages import Direction

__all__ = ["BestEpoch", "GenerationResult"]


@dataclass(frozen=True)
class BestEpoch:
    """The selected epoch of one direction.

    Args:
        epoch: from 0; -1 before the first.
        rsum: R@1 + R@5 + R@10 on the split that selects.
        weight: of the probability, with which that was reached.
    """

    epoch: int = -1
    rsum: float = float("-inf")
    weight: float = 0.0


@dataclass(frozen=True)
class GenerationResult:
    """How a run of stage 2 ended.

    Args:
        output: the run folder.
        epochs: completed.
        best: of each direction.
        history: the lines of `metrics.jsonl`.
        retriever: the retriever alone, on the reported split.
        reranked: with the selected re-rankers, as in `evaluation.json`.
    """

    output: Path
    epochs: int
    best: Mapping[Direction, BestEpoch]
    history: tuple[Mapping[str, Any], ...]
    retriever: EvaluationReport
    reranked: EvaluationReport
