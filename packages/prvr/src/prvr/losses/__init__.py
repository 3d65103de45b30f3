"""The losses: pure functions of scores or embeddings, and the terms that apply them to the output of a retriever.

A term is registered in `prvr.config.losses`, with its settings.
"""

from prvr.losses.matching import (
    contrastive_loss,
    distillation_loss,
    info_nce_loss,
    info_nce_pairs_loss,
    triplet_loss,
    triplet_pairs_loss,
)
from prvr.losses.queries import diversity_loss, query_structure_loss
from prvr.losses.regression import regression_loss
from prvr.losses.term import LossInputs, Negatives, Term

__all__ = [
    "LossInputs",
    "Negatives",
    "Term",
    "contrastive_loss",
    "distillation_loss",
    "diversity_loss",
    "info_nce_loss",
    "info_nce_pairs_loss",
    "query_structure_loss",
    "regression_loss",
    "triplet_loss",
    "triplet_pairs_loss",
]
