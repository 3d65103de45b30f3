"""Stage 2 of DiffusionRet over any retriever: a re-ranker is trained on frozen embeddings, and both rank together."""

from prvr.generation.candidates import CandidatePool, candidate_pool
from prvr.generation.config import CandidatesConfig, CourseConfig, GenerationConfig, generation_config
from prvr.generation.evaluation import evaluate_reranked, training_banks
from prvr.generation.features import RerankerInputs, fingerprint, reranker_inputs
from prvr.generation.folder import load_rerankers
from prvr.generation.loop import train_reranker
from prvr.generation.result import GenerationResult
from prvr.generation.rows import SplitScores

__all__ = [
    "CandidatePool",
    "CandidatesConfig",
    "CourseConfig",
    "GenerationConfig",
    "GenerationResult",
    "RerankerInputs",
    "SplitScores",
    "candidate_pool",
    "evaluate_reranked",
    "fingerprint",
    "generation_config",
    "load_rerankers",
    "reranker_inputs",
    "train_reranker",
    "training_banks",
]
