"""Lorentz (hyperboloid) geometry for PyTorch, accurate to rounding in float32.

`lorentz.functional` holds the functions and `lorentz.nn` the modules. The geoopt manifold, the wrapped normal and the
other models of hyperbolic space are in `lorentz.manifold`, `lorentz.distributions` and `lorentz.models`, pictures in
`lorentz.plot`. These are imported when they are first used: geoopt takes longer to import than everything else.
"""

from importlib import import_module
from types import ModuleType

from . import functional, nn
from ._precision import precision
from ._validation import checked
from .functional import *  # noqa: F403

__all__ = ["checked", "functional", "nn", "precision"]
__all__ += functional.__all__
__all__.remove("initial_temperature")  # what attention starts from: of lorentz.functional alone


def __getattr__(name: str) -> ModuleType:
    if name in ("distributions", "manifold", "models", "plot"):
        return import_module(f"lorentz.{name}")
    raise AttributeError(f"module 'lorentz' has no attribute {name!r}")
