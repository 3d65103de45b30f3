"""Losses as loops over videos and queries, the released optimiser tensor by tensor: what benchmarks compare with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prvr.config import Config, LossConfig
from prvr.training.optimizer import warmup_linear


def triplet(scores: Tensor, owner: list[int], margin: float, hard_pool: int) -> Tensor:
    """Hard negatives: a video's highest-scored wrong query, a query's drawn from its `hard_pool` best wrong videos."""
    total = scores.new_zeros(())
    videos = scores.shape[1]
    for v in range(videos):
        own = [q for q, video in enumerate(owner) if video == v]
        others = [q for q, video in enumerate(owner) if video != v]
        positive = scores[own, v].mean()
        negative = scores[others, v].sort(descending=True).values[0]
        total = total + F.relu(margin + negative - positive) / videos
    for q, v in enumerate(owner):
        others = torch.cat([scores[q, :v], scores[q, v + 1 :]])
        pool = others.detach().sort(descending=True).indices[:hard_pool]
        drawn = int(torch.randint(len(pool), ()))
        total = total + F.relu(margin + others[pool[drawn]] - scores[q, v]) / len(owner)
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


def diversity(text: Tensor, owner: list[int], margin: float, scale: float, power: float) -> Tensor:
    """Over pairs of queries of one video."""
    unit = F.normalize(text, dim=-1)
    total = text.new_zeros(())
    for a, video in enumerate(owner):
        for b, other in enumerate(owner):
            if a != b and video == other:
                cosine = unit[a] @ unit[b]
                term = F.softplus(scale * (cosine + margin), threshold=80.0)
                total = total + (1 + cosine) ** power * term / len(owner)
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


def all_terms(outputs: dict[str, Tensor], owner: list[int], c: LossConfig) -> Tensor:
    """The weighted sum of DreamPRVR's terms, with hard negatives."""
    rank, spread = c["triplet"], c["diversity"]
    total = c.weight("prior_kl") * outputs["prior_kl"] + c.weight("diffusion") * outputs["diffusion"]
    for branch in ("clips", "frames"):
        total = total + rank.weight * triplet(outputs[branch], owner, rank.margin, rank.hard_pool)
        total = total + c.weight(f"info_nce_{branch}") * info_nce(outputs[f"{branch}_dot"], owner)
    text = outputs["text"]
    total = total + spread.weight * diversity(text, owner, spread.margin, spread.scale, spread.power)
    structure = c["query_structure"]
    return total + structure.weight * query_structure(text, owner, structure.temperature)


class PlainBertAdam:
    """The released optimiser (see `prvr.training.BertAdam`), a handful of operations per tensor."""

    def __init__(self, model: nn.Module, config: Config, steps: int) -> None:
        self.parameters = list(model.parameters())
        self.optim, self.steps, self.taken = config.optim, steps, 0
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        rate = self.optim.lr * warmup_linear(self.taken / self.steps, self.optim.warmup)
        for p, first, second in zip(self.parameters, self.first, self.second, strict=True):
            if p.grad is None:
                continue
            nn.utils.clip_grad_norm_(p, self.optim.max_grad_norm)
            first.mul_(0.9).add_(p.grad, alpha=0.1)
            second.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            update = first / (second.sqrt() + 1e-6)
            if p.ndim > 1:
                update += self.optim.weight_decay * p
            p.add_(-(rate * update))
        self.taken += 1
