"""Losses as loops over videos and queries: what tests compare with."""

import torch
import torch.nn.functional as F
from torch import Tensor


def triplet(scores: Tensor, owner: list[int], margin: float) -> Tensor:
    """The hardest negatives: a video's highest-scored wrong query, a query's highest-scored wrong video."""
    total = scores.new_zeros(())
    videos = scores.shape[1]
    for v in range(videos):
        own = [q for q, video in enumerate(owner) if video == v]
        others = [q for q, video in enumerate(owner) if video != v]
        positive = scores[own, v].mean()
        negative = scores[others, v].max()
        total = total + F.relu(margin + negative - positive) / videos
    for q, v in enumerate(owner):
        others = torch.cat([scores[q, :v], scores[q, v + 1 :]])
        total = total + F.relu(margin + others.max() - scores[q, v]) / len(owner)
    return total


def info_nce(dots: Tensor, owner: list[int]) -> Tensor:
    """Query to video and video to query, every query of a video in the numerator."""
    total = dots.new_zeros(())
    videos = dots.shape[1]
    for q, v in enumerate(owner):
        total = total + (dots[q].logsumexp(0) - dots[q, v]) / len(owner)
    for v in range(videos):
        own = [q for q, video in enumerate(owner) if video == v]
        total = total + (dots[:, v].logsumexp(0) - dots[own, v].logsumexp(0)) / videos
    return total


def query_structure(text: Tensor, owner: list[int], temperature: float) -> Tensor:
    """Supervised contrast of queries by video."""
    unit = F.normalize(text, dim=-1)
    total, counted = text.new_zeros(()), 0
    for a, video in enumerate(owner):
        others = [b for b in range(len(owner)) if b != a]
        siblings = [b for b in others if owner[b] == video]
        if siblings:
            logits = unit[others] @ unit[a] / temperature
            own = unit[siblings] @ unit[a] / temperature
            total = total - (own - logits.logsumexp(0)).mean()
            counted += 1
    return total / max(counted, 1)


def regression(rows: Tensor, valid: Tensor, targets: Tensor, owner: list[int], temperature: float) -> Tensor:
    """1 - cosine of each sentence with the valid rows of its video, shared out by a softmax that is constant."""
    total = rows.new_zeros(())
    for target, v in zip(targets, owner, strict=True):
        cosines = torch.stack([F.cosine_similarity(target, row, dim=0) for row in rows[v][valid[v]]])
        weights = (cosines / temperature).exp().tolist()
        for cosine, weight in zip(cosines, weights, strict=True):
            total = total + weight / sum(weights) * (1 - cosine) / len(owner)
    return total
