"""A pipeline and its stages, which re-score the ranking of a first stage."""

from prvr.stages.diffusion.candidate_reranker import CandidateReranker, reranker_inputs
from prvr.stages.diffusion.config import RerankerCompat, RerankerConfig
from prvr.stages.diffusion.network import RerankerInputs
from prvr.stages.diffusion.reranking import DiffusionSettings, DiffusionStage, fingerprint, load_rerankers
from prvr.stages.joint_space import TrainingFreeSettings, TrainingFreeStage, ZeroShotSettings, ZeroShotStage
from prvr.stages.matrix import EncodedSplit, ScoreMatrix, best_columns, merge_top_k
from prvr.stages.pipelines import Pipeline
from prvr.stages.qb_norm import QBNormSettings, QBNormStage, QueryBank, qb_norm
from prvr.stages.second_retriever import RetrieverSettings, RetrieverStage
from prvr.stages.stage import STAGES, Rescore, Stage, add_scores
from prvr.types import Direction, FirstStage

__all__ = [
    "STAGES",
    "CandidateReranker",
    "DiffusionSettings",
    "DiffusionStage",
    "Direction",
    "EncodedSplit",
    "FirstStage",
    "Pipeline",
    "QBNormSettings",
    "QBNormStage",
    "QueryBank",
    "RerankerCompat",
    "RerankerConfig",
    "RerankerInputs",
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
    "fingerprint",
    "load_rerankers",
    "merge_top_k",
    "qb_norm",
    "reranker_inputs",
]
