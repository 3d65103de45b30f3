"""DiffusionRet (ICCV 2023): words compared with frames, and a generator that re-ranks the best candidates.

| module | part |
|---|---|
| `token_retriever`, `clip_retriever` | the first stage, over features or with a CLIP that is trained along |
| `network`, `candidate_reranker` | the generator, which re-ranks |
| `stage` | the generator as a stage of a pipeline |
| `training`, `candidates` | its training over a frozen retriever |
| `released`, `checkpoints` | what the authors' code does otherwise, and their checkpoints |

Presets: `diffusionret-*`.
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.published.diffusionret.candidate_reranker import *
    from prvr.published.diffusionret.clip_retriever import *
    from prvr.published.diffusionret.model_config import *
    from prvr.published.diffusionret.network import *
    from prvr.published.diffusionret.run_config import *
    from prvr.published.diffusionret.stage import *
    from prvr.published.diffusionret.token_retriever import *
    from prvr.published.diffusionret.training import *

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
    "model_config run_config network candidate_reranker stage token_retriever clip_retriever training",
)
