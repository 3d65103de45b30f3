"""The losses: pure functions of scores or embeddings, and the terms that apply them to the output of a retriever.

A term is registered in `prvr.config.losses`, beside its weight and settings.
"""

from prvr.losses.evidence import dissent_loss, evidential_loss, fuse_evidence
from prvr.losses.queries import (
    angle_geometry_loss,
    distance_geometry_loss,
    diversity_loss,
    query_structure_loss,
)
from prvr.losses.scores import (
    Negatives,
    brier_loss,
    caption_similarity,
    contrastive_loss,
    distillation_loss,
    info_nce_loss,
    info_nce_pairs_loss,
    info_nce_ratio_loss,
    soft_targets,
    triplet_loss,
    triplet_pairs_loss,
)
from prvr.losses.terms import Diffusion, LossInputs, PriorKL, Temperature, Term
from prvr.losses.transport import intra_video_loss, transport_targets

__all__ = [
    "Diffusion",
    "LossInputs",
    "Negatives",
    "PriorKL",
    "Temperature",
    "Term",
    "angle_geometry_loss",
    "brier_loss",
    "caption_similarity",
    "contrastive_loss",
    "dissent_loss",
    "distance_geometry_loss",
    "distillation_loss",
    "diversity_loss",
    "evidential_loss",
    "fuse_evidence",
    "info_nce_loss",
    "info_nce_pairs_loss",
    "info_nce_ratio_loss",
    "intra_video_loss",
    "query_structure_loss",
    "soft_targets",
    "transport_targets",
    "triplet_loss",
    "triplet_pairs_loss",
]
