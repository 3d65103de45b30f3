"""Pure functions on points of the hyperboloid <x, x>_L = -1/c, x0 > 0.

Conventions, everywhere: the curvature is -c with c > 0; points are ambient, time part first; the space part is the
truth and an incoming time part is recomputed from it, so a point cannot drift off the manifold. `c` is a number or a
tensor that broadcasts against the points with a last axis of length 1, and may be learned. Autocast is switched off
inside; half precision is computed in float32 or float64 and comes back as it was given, under autocast as float32,
as from torch's own operators that run in float32. `precision="auto"` computes in float64 where the device has it and
rounds once; `precision="native"` is several times faster and loses digits far out (above radius 6 in float32). The
argument wins over a surrounding `lorentz.precision` block. Float32 and float64 tensors do not mix, half precision and
float32 do; a tensor `c` may have any floating dtype.
Results too large for the dtype are inf: nothing is clamped.
"""

from ._centroid import centroid
from .attention import join_heads, lorentz_attention, split_heads
from .cones import entailment_violation, exterior_angle, half_aperture
from .distances import dist, dist0, inner, lorentz_inner, pairwise_dist, pairwise_inner
from .geodesics import geodesic
from .gyro import gyro_add, gyro_scale
from .horospheres import busemann, horospherical_projection
from .maps import expmap, expmap0, logmap, logmap0, parallel_transport, project, project_tangent
from .means import frechet_mean
from .neighbours import kmeans, topk
from .points import check_point, origin

__all__ = [
    "busemann",
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
    "horospherical_projection",
    "inner",
    "join_heads",
    "kmeans",
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
