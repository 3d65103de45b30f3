"""Holmes as one would write it down from its equations: one query, one video and one word at a time, in float64."""

import math

import torch
from torch import Tensor


def dirichlet(target: Tensor, evidence: Tensor) -> float:
    """The expected squared error of one query."""
    alpha = [float(e) + 1 for e in evidence]
    total = sum(alpha)
    bias = sum((float(y) - a / total) ** 2 for y, a in zip(target, alpha, strict=True))
    return bias + sum(a * (total - a) / (total**2 * (total + 1)) for a in alpha)


def similarities(text: Tensor, clips: Tensor, padded: bool) -> Tensor:
    """The cosines of the queries of one video with its clips, in [0, 1]; `padded`: 0 takes part in the range."""
    cosines = torch.stack([torch.stack([_cosine(one, clip) for clip in clips]) for one in text])
    values = torch.cat([cosines.flatten(), cosines.new_zeros(int(padded))])
    return (cosines - values.min()) / (values.max() - values.min() + 1e-8)


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    return one @ other / (one.norm() * other.norm())


def transport(similarity: Tensor, epsilon: float, bucket: float = 0.0, iterations: int = 50) -> Tensor:
    """Targets of one video by Sinkhorn's algorithm on plain numbers, with a bucket of any similarity."""
    queries, clips = similarity.shape
    kernel = torch.cat([similarity, torch.full((1, clips), bucket, dtype=similarity.dtype)]).div(epsilon).exp()
    rows = torch.tensor([1 / (clips + queries)] * queries + [clips / (clips + queries)], dtype=similarity.dtype)
    right = torch.ones(clips, dtype=similarity.dtype)
    left = torch.ones(queries + 1, dtype=similarity.dtype)
    for _ in range(iterations):
        left = rows / (kernel @ right)
        right = (1 / clips) / (kernel.mT @ left)
    plan = left[:, None] * kernel * right
    return torch.stack([row / row.sum() for row in plan[:-1]])


def intra_video(
    text: Tensor, clips: Tensor, own: list[int], epsilon: float, temperature: float, released: bool
) -> float:
    """The transport loss of a batch."""
    most = max(own.count(video) for video in own)
    means = []
    for video in sorted(set(own)):
        mine = [q for q, other in enumerate(own) if other == video]
        similarity = similarities(text[mine], clips[video], released and len(mine) < most)
        goal = transport(similarity, epsilon)
        evidence = torch.exp(torch.tanh(similarity) / temperature)
        means.append(sum(dirichlet(y, e) for y, e in zip(goal, evidence, strict=True)) / len(mine))
    return sum(means) / len(means)


def dissent(clips: Tensor, frames: Tensor, temperature: float) -> float:
    """The mean distance of the probabilities of both branches, where both are certain."""
    total = 0.0
    for one, other in zip(clips, frames, strict=True):
        alphas = [torch.exp(torch.tanh(row) / temperature) + 1 for row in (one, other)]
        certain = math.prod(1 - len(alpha) / float(alpha.sum()) for alpha in alphas)
        total += certain * float((alphas[0] / alphas[0].sum() - alphas[1] / alphas[1].sum()).abs().sum())
    return total / len(clips)


def word_score(words: Tensor, mask: Tensor, head: torch.nn.Sequential, frames: Tensor, unit: bool) -> float:
    """The score of one query with one video: each word with the best of all rows of the video."""
    valid = [word / word.norm() if unit else word for word in words[mask]]
    weights = torch.stack([head(word)[0] for word in valid]).softmax(0)
    best = []
    for word in valid:
        products = [float(word @ (frame / frame.norm().clamp_min(1e-12) if unit else frame)) for frame in frames]
        best.append(max(products))
    return sum(float(g) * b for g, b in zip(weights, best, strict=True))
