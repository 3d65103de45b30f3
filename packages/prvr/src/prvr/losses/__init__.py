"""The losses: pure functions of scores or embeddings, and the terms that apply them to the output of a retriever.

A term is registered in `prvr.config.losses`, with its settings.
"""

from prvr.losses.alignment import segment_contrast
from prvr.losses.cones import Entailment, entailment
from prvr.losses.evidence import dissent_loss, evidential_loss, fuse_evidence
from prvr.losses.key_clips import key_clip_nce_loss, key_clip_triplet_loss
from prvr.losses.matching import (
    contrastive_loss,
    distillation_loss,
    frame_distillation_loss,
    info_nce_loss,
    info_nce_pairs_loss,
    triplet_loss,
    triplet_pairs_loss,
)
from prvr.losses.proxies import proxy_matching_loss
from prvr.losses.queries import angle_geometry_loss, distance_geometry_loss, diversity_loss, query_structure_loss
from prvr.losses.regression import regression_loss
from prvr.losses.term import LossInputs, Negatives, Term
from prvr.losses.transport import intra_video_loss, matching_loss, transport_targets

__all__ = [
    "Entailment",
    "LossInputs",
    "Negatives",
    "Term",
    "angle_geometry_loss",
    "contrastive_loss",
    "dissent_loss",
    "distance_geometry_loss",
    "distillation_loss",
    "diversity_loss",
    "entailment",
    "evidential_loss",
    "frame_distillation_loss",
    "fuse_evidence",
    "info_nce_loss",
    "info_nce_pairs_loss",
    "intra_video_loss",
    "key_clip_nce_loss",
    "key_clip_triplet_loss",
    "matching_loss",
    "proxy_matching_loss",
    "query_structure_loss",
    "regression_loss",
    "segment_contrast",
    "transport_targets",
    "triplet_loss",
    "triplet_pairs_loss",
]
