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


def dempster(one: Tensor, other: Tensor) -> Tensor:
    """Evidence after Dempster's rule, through the table of all pairs of beliefs of each query."""
    fused = torch.zeros_like(one)
    queries, videos = one.shape
    for q in range(queries):
        beliefs, unknown = [], []
        for evidence in (one[q], other[q]):
            total = float((evidence + 1).sum())
            beliefs.append(evidence / total)
            unknown.append(videos / total)
        table = torch.outer(beliefs[0], beliefs[1])
        conflict = float(table.sum() - table.diagonal().sum())
        both = table.diagonal() + beliefs[0] * unknown[1] + beliefs[1] * unknown[0]
        ignorance = unknown[0] * unknown[1] / (1 - conflict)
        fused[q] = both / (1 - conflict) * videos / ignorance  # e = b S and S = K / u
    return fused


def group(scores: Tensor, temperature: float, own: list[int], division: float) -> list[int]:
    """0 precise, 1 polysemous, 2 under-determined, for each query of a branch."""
    alphas = (torch.exp(torch.tanh(scores) / temperature) + 1).tolist()
    doubts, entropies, right = [], [], []
    for q, alpha in enumerate(alphas):
        total = sum(alpha)
        doubts.append(len(alpha) / total)
        entropies.append(sum(a / total * (_digamma(total + 1) - _digamma(a + 1)) for a in alpha))
        if max(range(len(alpha)), key=alpha.__getitem__) == own[q]:
            right.append(q)
    highest = min(max((doubts[q] for q in right), default=1 - division), 1 - division)
    lowest = max(min((float(scores[q, own[q]]) for q in right), default=division), division)
    median = sorted(entropies)[(len(entropies) - 1) // 2]
    found = []
    for q in range(len(alphas)):
        if doubts[q] > highest:
            found.append(2)
        elif float(scores[q, own[q]]) >= lowest and entropies[q] <= median:
            found.append(0)
        else:
            found.append(1)
    return found


def _digamma(x: float) -> float:
    return float(torch.digamma(torch.tensor(x, dtype=torch.float64)))


def targets(clips: Tensor, frames: Tensor, groups: list[list[int]], own: list[int], smoothing: float) -> Tensor:
    """Targets after relabelling."""
    found = torch.zeros_like(clips)
    for q, video in enumerate(own):
        found[q, video] = 1
        if (groups[0][q], groups[1][q]) in {(0, 1), (1, 0), (1, 1)}:
            likely = (clips[q].softmax(0) + frames[q].softmax(0)) / 2
            found[q] = (1 - smoothing) * found[q] + smoothing * likely
    return found


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
