"""Lorentz (hyperboloid) geometry for PyTorch, accurate to rounding in float32.

`lorentz.functional` holds the functions and `lorentz.nn` the modules. The geoopt manifold, the wrapped normal and the
other models of hyperbolic space are in `lorentz.manifold`, `lorentz.distributions` and `lorentz.models`, which are not
imported here (geoopt takes longer to import than everything else together).
"""

from . import functional, nn
from ._precision import precision
from .functional import (
    busemann,
    centroid,
    check_point,
    dist,
    dist0,
    entailment_violation,
    expmap,
    expmap0,
    exterior_angle,
    frechet_mean,
    geodesic,
    gyro_add,
    gyro_scale,
    half_aperture,
    horospherical_projection,
    inner,
    join_heads,
    logmap,
    logmap0,
    lorentz_attention,
    lorentz_inner,
    origin,
    pairwise_dist,
    pairwise_inner,
    parallel_transport,
    project,
    project_tangent,
    split_heads,
)

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
    "functional",
    "geodesic",
    "gyro_add",
    "gyro_scale",
    "half_aperture",
    "horospherical_projection",
    "inner",
    "join_heads",
    "logmap",
    "logmap0",
    "lorentz_attention",
    "lorentz_inner",
    "nn",
    "origin",
    "pairwise_dist",
    "pairwise_inner",
    "parallel_transport",
    "precision",
    "project",
    "project_tangent",
    "split_heads",
]
