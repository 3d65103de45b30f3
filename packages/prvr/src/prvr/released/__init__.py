"""Parts that reproduce the authors' released code, its numerical guards included.

Nothing here is needed for a correct model: `prvr.config.Compat` chooses these parts for the paper presets, so that
published checkpoints and the golden numbers agree. lorentz and regdiff do not know this folder.
"""

from prvr.released.loading import CheckpointError, load_released, released_config
from prvr.released.names import names, tensors

__all__ = ["CheckpointError", "load_released", "names", "released_config", "tensors"]
