"""Evaluation: encode a split, rank every video for every query, report recalls with their uncertainty, compare."""

from prvr.evaluation.compare import compare_reports as compare_reports
from prvr.evaluation.encode import encode_split as encode_split
from prvr.evaluation.metrics import RankCounts as RankCounts
from prvr.evaluation.metrics import RetrievalMetrics as RetrievalMetrics
from prvr.evaluation.moments import find_moments as find_moments
from prvr.evaluation.rank import RATIO_EDGES as RATIO_EDGES
from prvr.evaluation.rank import EvaluationConfig as EvaluationConfig
from prvr.evaluation.rank import Progress as Progress
from prvr.evaluation.rank import evaluate as evaluate
from prvr.evaluation.rank import moment_groups as moment_groups
from prvr.evaluation.rank import ranked_rows as ranked_rows
from prvr.evaluation.rank import report_from_scores as report_from_scores
from prvr.evaluation.rank import tag_metrics as tag_metrics
from prvr.evaluation.report import EvaluationReport as EvaluationReport
from prvr.evaluation.report import GroupMetrics as GroupMetrics
from prvr.evaluation.report import TagMetrics as TagMetrics
from prvr.stages.scores import EncodedSplit as EncodedSplit

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
