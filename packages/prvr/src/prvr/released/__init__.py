"""Parts that reproduce the authors' released code, its numerical guards included.

Nothing here is needed for a correct model: `prvr.config.Compat` chooses these parts for the paper presets, so that
published checkpoints and the golden numbers agree. lorentz, regdiff and the rest of prvr do not know this package.
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.released.loading import CheckpointError, load_released, released_config
    from prvr.released.tensor_names import names, tensors

__all__ = ["EXTENSIONS", "CheckpointError", "load_released", "names", "released_config", "tensors"]

EXTENSIONS = {"converters": "prvr.released.cli"} | dict.fromkeys(
    (
        "compat.alignment",
        "compat.entailment",
        "compat.lorentz",
        "compat.merging",
        "compat.norms",
        "compat.padding",
        "compat.register_constants",
        "compat.register_noise",
        "compat.register_times",
        "compat.transport",
        "compat.window",
        "optim.decay",
    ),
    "prvr.released.parts",
)
EXTENSIONS |= dict.fromkeys(("compat.decoder", "compat.output", "compat.pooling"), "prvr.released.reranker_parts")
"""What this package adds, see `prvr.extensions`."""

__getattr__ = deferred(
    __name__,
    {
        "prvr.released.loading": "CheckpointError load_released released_config",
        "prvr.released.tensor_names": "names tensors",
    },
)
