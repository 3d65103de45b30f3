"""A pipeline and its stages: what re-scores everything, or the best candidates, that the first stage has found."""

from prvr.stages.anchors import AnchorSettings, AnchorStage, anchor_scores
from prvr.stages.diffusion.config import RerankerCompat, RerankerConfig
from prvr.stages.diffusion.denoiser import CandidateDenoiser
from prvr.stages.diffusion.inputs import RerankerInputs, fingerprint, reranker_inputs
from prvr.stages.diffusion.pooling import TextFrameAttention
from prvr.stages.diffusion.reranker import CandidateReranker
from prvr.stages.diffusion.stage import DiffusionSettings, DiffusionStage, load_rerankers
from prvr.stages.merge import best_columns, merge_top_k
from prvr.stages.pipeline import STAGES, Pipeline
from prvr.stages.qb_norm import QBNormSettings, QBNormStage, QueryBank, qb_norm
from prvr.stages.rescoring import RetrieverSettings, RetrieverStage, ZeroShotSettings, ZeroShotStage
from prvr.stages.scores import EncodedSplit, ScoreMatrix
from prvr.types import Direction, FirstStage, Stage

__all__ = [
    "STAGES",
    "AnchorSettings",
    "AnchorStage",
    "CandidateDenoiser",
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
    "RetrieverSettings",
    "RetrieverStage",
    "ScoreMatrix",
    "Stage",
    "TextFrameAttention",
    "ZeroShotSettings",
    "ZeroShotStage",
    "anchor_scores",
    "best_columns",
    "fingerprint",
    "load_rerankers",
    "merge_top_k",
    "qb_norm",
    "reranker_inputs",
]
