"""DiffusionRet (ICCV 2023): words compared with frames, and a generator that re-ranks the best candidates.

| module | part |
|---|---|
| `token_retriever`, `clip_retriever` | the first stage, over features or with a CLIP that is trained along |
| `network`, `process`, `candidate_reranker` | the generator, which re-ranks |
| `stage` | the generator as a stage of a pipeline |
| `training`, `candidates` | its training over a frozen retriever |
| `released`, `checkpoints` | what the authors' code does otherwise, and their checkpoints |

Presets: `diffusionret-*`.
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.published.diffusionret.candidate_reranker import CandidateReranker, reranker_inputs
    from prvr.published.diffusionret.clip_retriever import ClipRetriever
    from prvr.published.diffusionret.model_config import TokenCompat, TokenModelConfig
    from prvr.published.diffusionret.network import RerankerInputs
    from prvr.published.diffusionret.reranker_config import RerankerCompat, RerankerConfig
    from prvr.published.diffusionret.run_config import RerankerRunConfig, read_reranker_config, reranker_run_config
    from prvr.published.diffusionret.stage import DiffusionSettings, DiffusionStage, fingerprint, load_rerankers
    from prvr.published.diffusionret.token_retriever import TokenRetriever
    from prvr.published.diffusionret.training import RerankerResult, save_rerankers, train_reranker

__all__ = [
    "CandidateReranker",
    "ClipRetriever",
    "DiffusionSettings",
    "DiffusionStage",
    "RerankerCompat",
    "RerankerConfig",
    "RerankerInputs",
    "RerankerResult",
    "RerankerRunConfig",
    "TokenCompat",
    "TokenModelConfig",
    "TokenRetriever",
    "fingerprint",
    "load_rerankers",
    "read_reranker_config",
    "reranker_inputs",
    "reranker_run_config",
    "save_rerankers",
    "train_reranker",
]

__getattr__ = deferred(
    __name__,
    {
        "prvr.published.diffusionret.candidate_reranker": "CandidateReranker reranker_inputs",
        "prvr.published.diffusionret.clip_retriever": "ClipRetriever",
        "prvr.published.diffusionret.model_config": "TokenCompat TokenModelConfig",
        "prvr.published.diffusionret.network": "RerankerInputs",
        "prvr.published.diffusionret.reranker_config": "RerankerCompat RerankerConfig",
        "prvr.published.diffusionret.run_config": "RerankerRunConfig read_reranker_config reranker_run_config",
        "prvr.published.diffusionret.stage": "DiffusionSettings DiffusionStage fingerprint load_rerankers",
        "prvr.published.diffusionret.token_retriever": "TokenRetriever",
        "prvr.published.diffusionret.training": "RerankerResult save_rerankers train_reranker",
    },
)
