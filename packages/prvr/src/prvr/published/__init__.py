"""One room for each paper: what one published system alone has, its code's differences from the paper included.

| package | system |
|---|---|
| `ms_sl` | MS-SL |
| `dl_dkd` | DL-DKD |
| `gmmformer` | GMMFormer and GMMFormer v2 |
| `ral` | RAL |
| `msc` | MSC-PRVR |
| `hlformer` | HLFormer |
| `dreamprvr` | DreamPRVR |
| `holmes` | Holmes |
| `diffusionret` | DiffusionRet |
| `qb_norm` | QB-Norm |
| `tf_prvr` | TF-PRVR |

A paper's package registers its parts when it is imported; what two papers share is core. `loading` reads the authors'
checkpoints of all. lorentz, regdiff and the rest of prvr do not name this package.
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.published.loading import *
    from prvr.published.tensor_names import *

__all__ = ["EXTENSIONS", "NAMES", "CheckpointError", "load_released", "names", "released_config", "tensors"]

EXTENSIONS = {
    "converters": "prvr.published.cli",
    "moments": "prvr.published.tf_prvr:moments_of",
    "names": "prvr.published:NAMES",
    "presets": "prvr.published.diffusionret.run_config:resolved_preset",
    "stage": "prvr.published.stages",
    "systems": "prvr.published.diffusionret.run_config:retriever_of_run",
    "teacher": "prvr.published.dl_dkd.teacher:teacher_scores",
    "train": "prvr.published.diffusionret.cli:train",
}
EXTENSIONS |= dict.fromkeys(
    (
        "clip_construction",
        "compat.entailment",
        "compat.lorentz",
        "compat.merging",
        "compat.padding",
        "compat.register_constants",
        "compat.register_noise",
        "compat.register_times",
        "compat.transport",
        "compat.window",
        "frame_pooling",
        "frame_query",
        "fusion",
        "loss",
        "optim.decay",
        "retriever",
        "space",
    ),
    "prvr.published.parts",
)
"""What this package adds, see `prvr.extensions`."""

NAMES = {
    "prvr.published.diffusionret": "CandidateReranker TokenRetriever",
    "prvr.published.diffusionret.checkpoints": "load_released_reranker",
    "prvr.published.dl_dkd.teacher": "Teacher",
    "prvr.published.loading": "load_released",
}
"""The names that it adds to `prvr`, by the modules that define them."""

__getattr__ = deferred(__name__, "tensor_names loading")
