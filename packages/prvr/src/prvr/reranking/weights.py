"""How much each word and frame counts: a part of `prvr.models.TokenRetriever`."""

from prvr.models.weights import TokenWeights

__all__ = ["TokenWeights"]
