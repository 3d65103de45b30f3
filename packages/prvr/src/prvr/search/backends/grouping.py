"""From clips to windows."""

import numpy as np
from jaxtyping import Int64

__all__ = ["each_once"]


def each_once(keys: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " m"]:
    """Keys in the order in which they first appear.

    Example:
        >>> each_once(np.array([7, 3, 7, 1])).tolist()
        [7, 3, 1]
    """
    return keys[np.sort(np.unique(keys, return_index=True)[1])]
