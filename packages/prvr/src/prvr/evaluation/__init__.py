"""Evaluation: encode a split, rank every video for every query, report recalls with their uncertainty, compare."""

from prvr.evaluation.compare import compare_reports
from prvr.evaluation.encode import encode_split
from prvr.evaluation.lists import ranked_rows, write_run
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.evaluation.moments import find_moments
from prvr.evaluation.rank import (
    EvaluationConfig,
    evaluate,
    moment_groups,
    report_from_scores,
    tag_metrics,
)
from prvr.evaluation.report import EvaluationReport

__all__ = [
    "EvaluationConfig",
    "EvaluationReport",
    "RetrievalMetrics",
    "compare_reports",
    "encode_split",
    "evaluate",
    "find_moments",
    "moment_groups",
    "ranked_rows",
    "report_from_scores",
    "tag_metrics",
    "write_run",
]
