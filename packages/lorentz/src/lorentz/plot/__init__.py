"""Pictures of hyperbolic points: the Poincare disk, distances from the origin, and HoroPCA down to the disk.

Needs matplotlib, the extra `lorentz-nn[plot]`; `HoroPCA` works without. Not imported by `import lorentz`.
"""

from ._disk import poincare_disk
from ._distances import origin_distances
from ._horopca import HoroPCA

__all__ = ["HoroPCA", "origin_distances", "poincare_disk"]
