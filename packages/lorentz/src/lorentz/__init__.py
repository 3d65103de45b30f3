"""Lorentz (hyperboloid) geometry for PyTorch, accurate to rounding in float32.

`lorentz.functional` holds the functions and `lorentz.nn` the modules. The geoopt manifold, the wrapped normal and the
other models of hyperbolic space are in `lorentz.manifold`, `lorentz.distributions` and `lorentz.models`, which are not
imported here (geoopt takes longer to import than everything else together).
"""

from . import functional, nn
from ._precision import precision
from ._validation import checked
from .functional import *  # noqa: F403

__all__ = ["checked", "functional", "nn", "precision"]
__all__ += functional.__all__
__all__.remove("initial_temperature")  # what attention starts from: of lorentz.functional alone
