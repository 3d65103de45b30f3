"""The earlier name of `prvr.published`."""

from prvr.published import CheckpointError, load_released, names, released_config, tensors

__all__ = ["CheckpointError", "load_released", "names", "released_config", "tensors"]
