"""Stages of a pipeline: what re-scores everything, or the best candidates, that the first stage has found."""

from prvr.stages.diffusion.config import Direction, RerankerCompat, RerankerConfig
from prvr.stages.diffusion.denoiser import CandidateDenoiser
from prvr.stages.diffusion.pooling import TextFrameAttention
from prvr.stages.diffusion.reranker import CandidateReranker
from prvr.stages.qb_norm import QueryBank, qb_norm

__all__ = [
    "CandidateDenoiser",
    "CandidateReranker",
    "Direction",
    "QueryBank",
    "RerankerCompat",
    "RerankerConfig",
    "TextFrameAttention",
    "qb_norm",
]
