"""A pipeline and its stages, which re-score the ranking of a first stage."""

from prvr.stages.joint_space import TrainingFreeSettings, TrainingFreeStage, ZeroShotSettings, ZeroShotStage
from prvr.stages.matrix import EncodedSplit, ScoreMatrix, best_columns, merge_top_k
from prvr.stages.pipelines import Pipeline
from prvr.stages.second_retriever import RetrieverSettings, RetrieverStage
from prvr.stages.stage import STAGES, Rescore, Stage, add_scores
from prvr.types import Direction, FirstStage

__all__ = [
    "STAGES",
    "Direction",
    "EncodedSplit",
    "FirstStage",
    "Pipeline",
    "Rescore",
    "RetrieverSettings",
    "RetrieverStage",
    "ScoreMatrix",
    "Stage",
    "TrainingFreeSettings",
    "TrainingFreeStage",
    "ZeroShotSettings",
    "ZeroShotStage",
    "add_scores",
    "best_columns",
    "merge_top_k",
]
