"""Ranking a split with a retriever and a re-ranker together, and the candidates that a re-ranker is trained on."""

from prvr.generation.candidates import CandidatePool, candidate_pool
from prvr.generation.evaluation import evaluate_reranked, training_banks
from prvr.generation.features import RerankerInputs, fingerprint, reranker_inputs
from prvr.generation.rows import SplitScores

__all__ = [
    "CandidatePool",
    "RerankerInputs",
    "SplitScores",
    "candidate_pool",
    "evaluate_reranked",
    "fingerprint",
    "reranker_inputs",
    "training_banks",
]
