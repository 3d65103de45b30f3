"""DiffusionRet: a generated distribution over candidates, and what belongs to it, over any retriever."""

from prvr.reranking.attention import TextFrameAttention
from prvr.reranking.candidates import hard_candidates
from prvr.reranking.config import Direction, RerankerCompat, RerankerConfig
from prvr.reranking.denoiser import CandidateDenoiser
from prvr.reranking.qb_norm import QueryBank, qb_norm
from prvr.reranking.reranker import CandidateReranker
from prvr.reranking.weights import TokenWeights

__all__ = [
    "CandidateDenoiser",
    "CandidateReranker",
    "Direction",
    "QueryBank",
    "RerankerCompat",
    "RerankerConfig",
    "TextFrameAttention",
    "TokenWeights",
    "hard_candidates",
    "qb_norm",
]
