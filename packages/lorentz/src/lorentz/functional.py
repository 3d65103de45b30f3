"""Pure functions on points of the hyperboloid <x, x>_L = -1/c, x0 > 0.

Conventions of all functions:

- **Points** are ambient, `(*b, d + 1)`, time first. The space part is the truth: an incoming time part is recomputed
  from it, so a point cannot drift off the manifold. Leading axes broadcast.
- **`c`** is positive, and the curvature is -c: a number, or a tensor that broadcasts against the points with a last
  axis of length 1 (two such axes in pairwise functions). It may be learned.
- **`precision`** is the dtype to compute in: `"float64"`; `"native"`, the dtype of the arguments, which is several
  times faster and loses digits far out (above radius 6 in float32); or `"auto"`. None, the default, is that of the
  surrounding `lorentz.precision` block, or `"auto"`. `"auto"` is float64 where the device has it, rounded once; native
  in `project`, `expmap0`, `logmap0` and attention, which lose nothing; and for matrix products (`pairwise_inner`,
  `pairwise_dist` without `exact`) float64 on a CPU alone, because many GPUs multiply float64 at a 64th of their speed.
- **Dtypes.** The result has the dtype of the arguments; half precision is computed in float32 or float64. Autocast is
  switched off inside, and results are float32 under it. Half precision and float32 mix, float32 and float64 do not; a
  tensor `c` may have any floating dtype. Results too large for the dtype are inf: nothing is clamped.
- **Errors.** `ValueError`: `c` is not positive (a tensor is read on a CPU only), or a shape does not fit. `TypeError`:
  an argument is not a floating-point tensor, or float32 meets float64. Docstrings name further errors only. Whether
  points lie on the hyperboloid is checked inside `lorentz.checked()`.
"""

from ._centroid import centroid
from .attention import initial_temperature, join_heads, lorentz_attention, split_heads
from .cones import entailment_violation, exterior_angle, half_aperture
from .distances import cdist, dist, dist0, inner, lorentz_inner, pairwise_dist, pairwise_inner
from .geodesics import geodesic
from .gyro import gyro_add, gyro_scale
from .horospheres import busemann
from .maps import expmap, expmap0, logmap, logmap0, origin, parallel_transport, project, project_tangent
from .means import frechet_mean
from .neighbours import topk
from .points import check_point

__all__ = [
    "busemann",
    "cdist",
    "centroid",
    "check_point",
    "dist",
    "dist0",
    "entailment_violation",
    "expmap",
    "expmap0",
    "exterior_angle",
    "frechet_mean",
    "geodesic",
    "gyro_add",
    "gyro_scale",
    "half_aperture",
    "initial_temperature",
    "inner",
    "join_heads",
    "logmap",
    "logmap0",
    "lorentz_attention",
    "lorentz_inner",
    "origin",
    "pairwise_dist",
    "pairwise_inner",
    "parallel_transport",
    "project",
    "project_tangent",
    "split_heads",
    "topk",
]
