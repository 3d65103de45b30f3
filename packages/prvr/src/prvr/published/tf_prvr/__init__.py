"""Segments of all lengths that a video falls into by itself, and their moments: retrieval without training.

TF-PRVR (Kim and Eom, NeurIPS 2026) reads the frames of a video in the joint space of frames and sentences: changes of
direction are cut by wavelets into segments at several levels, a graph over all segments propagates their features, and
moments are what lies between two neighbouring cuts. All of it is computed once, without a query. The score of a
sentence with unit vector q is max_i ⟨q, m_i⟩ over the moments m_i, and the span of the best moment is where it is.
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.published.tf_prvr.graph import *
    from prvr.published.tf_prvr.wavelets import *

__all__ = [
    "AdaptiveMoments",
    "AdaptiveSegments",
    "adaptive_moments",
    "adaptive_segments",
    "direction_changes",
    "level_cuts",
    "level_details",
    "moments_between_edges",
    "moments_of",
    "neighbour_weights",
    "own_weights",
    "propagate",
    "propagate_in_parts",
    "segment_features",
    "unit_frames",
]

__getattr__ = deferred(__name__, "graph wavelets")
