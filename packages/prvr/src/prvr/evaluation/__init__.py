"""Evaluation: encode a split, rank every video for every query, report recalls with their uncertainty, compare."""

from prvr.evaluation.compare import compare_reports
from prvr.evaluation.encode import Progress, encode_split
from prvr.evaluation.metrics import RankCounts, RetrievalMetrics
from prvr.evaluation.moments import find_moments
from prvr.evaluation.rank import (
    RATIO_EDGES,
    EvaluationConfig,
    evaluate,
    moment_groups,
    ranked_rows,
    report_from_scores,
    tag_metrics,
)
from prvr.evaluation.report import EvaluationReport, GroupMetrics, TagMetrics
from prvr.stages.scores import EncodedSplit

__all__ = [
    "RATIO_EDGES",
    "EncodedSplit",
    "EvaluationConfig",
    "EvaluationReport",
    "GroupMetrics",
    "Progress",
    "RankCounts",
    "RetrievalMetrics",
    "TagMetrics",
    "compare_reports",
    "encode_split",
    "evaluate",
    "find_moments",
    "moment_groups",
    "ranked_rows",
    "report_from_scores",
    "tag_metrics",
]
