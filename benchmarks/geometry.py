"""Where hyperbolic layers help: small tasks, each with a Euclidean twin, learning rates searched alike.

    python benchmarks/geometry.py [--tasks tree narrow ...] [--steps 400] [--out FILE]

The rule and what came out are in `benchmarks/studies/geometry.md`. A task is drawn by its seed. For each geometry the
rate is the best of RATES over the seeds TUNED; the scores are those of the seeds SCORED at that rate, and the interval
is that of the mean of their paired differences (95 %, Student's t).
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import geoopt
import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

import lorentz
from lorentz.manifold import Lorentz
from lorentz.nn import ExpMap0, LorentzGraphConv, LorentzMLR

RATES, TUNED, SCORED = (0.001, 0.003, 0.01, 0.03, 0.1), (100, 101), (0, 1, 2, 3, 4)
NODES = 200


def tree(seed: int) -> Tensor:
    """The parent of each node of a tree that is drawn node by node below one of the last 40; of the root, itself."""
    draw = np.random.default_rng(seed)
    return torch.tensor([0] + [int(draw.integers(max(0, n // 3 - 10), max(1, n // 3 + 1))) for n in range(1, NODES)])


def ancestors(parents: Tensor) -> Tensor:
    """`[i, j]`: j is above i."""
    above = torch.zeros(NODES, NODES, dtype=torch.bool)
    for node, parent in enumerate(parents.tolist()):
        if node:
            above[node] = above[parent]
            above[node, parent] = True
    return above


def fit(parameters: list[Tensor], rate: float, loss: Callable[[], Tensor], steps: int) -> None:
    optimiser = geoopt.optim.RiemannianAdam(parameters, lr=rate)  # Adam, where a parameter has no manifold
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
        schedule.step()


def area(positive: Tensor, negative: Tensor) -> float:
    """Area under the curve: how often a positive has a higher score than a negative."""
    greater = positive[:, None] > negative
    return (greater.double() + 0.5 * (positive[:, None] == negative)).mean().item()


def vectors(curved: bool, dim: int) -> Tensor:
    """One vector for each node, near the origin."""
    start = 0.1 * torch.randn(NODES, dim, dtype=torch.float64)
    if curved:
        return geoopt.ManifoldParameter(lorentz.expmap0(start), manifold=Lorentz())  # pyright: ignore[reportCallIssue]
    return nn.Parameter(start)


def distances(curved: bool, x: Tensor) -> Tensor:
    return lorentz.pairwise_dist(x, x) if curved else torch.cdist(x, x)


def embed_tree(curved: bool, rate: float, seed: int, steps: int) -> float:
    """A tree in the plane, by the ranking loss of Nickel and Kiela (2017): MAP of parents and children."""
    parents = tree(seed)
    near = torch.zeros(NODES, NODES, dtype=torch.bool)
    near[torch.arange(1, NODES), parents[1:]] = True
    near |= near.mT.clone()
    x, own = vectors(curved, 2), torch.eye(NODES, dtype=torch.bool)

    def loss() -> Tensor:
        logits = -2 * distances(curved, x)
        others = logits.masked_fill(near | own, -torch.inf).logsumexp(-1, keepdim=True)
        return (torch.logaddexp(others, logits) - logits)[near].mean()

    fit([x], rate, loss, steps)
    order = distances(curved, x.detach()).masked_fill(own, torch.inf).argsort(-1)
    hits = near.gather(-1, order).double()
    precision = hits.cumsum(-1) / torch.arange(1, NODES + 1)
    return ((precision * hits).sum(-1) / hits.sum(-1)).mean().item()


def entail(curved: bool, rate: float, seed: int, steps: int) -> float:
    """Cones (Ganea et al. 2018) in 5 dimensions: who is above whom, 30 % of pairs held out; area under the curve."""
    above = ancestors(tree(seed))
    pairs = above.nonzero()
    pairs = pairs[torch.randperm(len(pairs))]
    held, seen = pairs[: 3 * len(pairs) // 10], pairs[3 * len(pairs) // 10 :]
    x, none = vectors(curved, 5), (~(above | above.mT | torch.eye(NODES, dtype=torch.bool))).nonzero()

    def violation(pairs: Tensor) -> Tensor:
        below, top = x[pairs[:, 0]], x[pairs[:, 1]]
        if curved:
            return lorentz.entailment_violation(top, below)
        length = top.norm(dim=-1).clamp_min(0.1)
        angle = torch.acos((F.cosine_similarity(below - top, top, dim=-1)).clamp(-1 + 1e-7, 1 - 1e-7))
        return (angle - torch.asin(0.1 / length)).clamp_min(0)

    def loss() -> Tensor:
        wrong = none[torch.randint(len(none), (4 * len(seen),))]
        return violation(seen).mean() + (0.1 - violation(wrong)).clamp_min(0).mean()

    fit([x], rate, loss, steps)
    with torch.no_grad():
        return area(-violation(held), -violation(none))


def classify(deep: bool) -> Callable[[bool, float, int, int], float]:
    """64 classes, whose centres are the leaves of a tree of depth 6, or are apart alike, through a layer of width 2."""

    def task(curved: bool, rate: float, seed: int, steps: int) -> float:
        centres = torch.zeros(1, 32) if deep else torch.randn(64, 32)
        for level in range(6 if deep else 0):
            centres = centres.repeat_interleave(2, 0) + 0.75**level * torch.randn(2 ** (level + 1), 32)
        labels = torch.arange(64).repeat(60)
        x = centres[labels] + 0.3 * torch.randn(len(labels), 32)
        body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
        head = nn.Sequential(ExpMap0(), LorentzMLR(2, 64)) if curved else nn.Linear(2, 64)
        model = nn.Sequential(body, head)
        train, test = slice(0, 64 * 40), slice(64 * 40, None)
        fit([*model.parameters()], rate, lambda: F.cross_entropy(model(x[train]), labels[train]), steps)
        with torch.no_grad():
            return (model(x[test]).argmax(-1) == labels[test]).double().mean().item()

    return task


def link(curved: bool, rate: float, seed: int, steps: int) -> float:
    """Edges of a tree from a graph convolution to 4 dimensions; one in ten held out, area under the curve."""
    parents = tree(seed)
    edges = torch.stack([torch.arange(1, NODES), parents[1:]])[:, torch.randperm(NODES - 1)]
    held, seen = edges[:, :20], edges[:, 20:]
    graph = torch.eye(NODES, dtype=torch.float64)
    graph[seen[0], seen[1]] = graph[seen[1], seen[0]] = 1.0
    features = nn.Parameter(0.1 * torch.randn(NODES, 16, dtype=torch.float64))
    layer = (LorentzGraphConv(16, 4) if curved else nn.Linear(16, 4)).double()
    radius = nn.Parameter(torch.ones(2, dtype=torch.float64))
    allowed = torch.ones(NODES, NODES, dtype=torch.bool).triu(1)
    for a, b in (edges, edges.flip(0)):
        allowed[a, b] = False
    none = allowed.nonzero().mT

    def logits(pairs: Tensor) -> Tensor:
        if curved:
            x = layer(lorentz.expmap0(features), graph)
            d = lorentz.dist(x[pairs[0]], x[pairs[1]])
        else:
            x = graph @ layer(features) / graph.sum(-1, keepdim=True)
            d = (x[pairs[0]] - x[pairs[1]]).norm(dim=-1)
        return radius[0] - radius[1].exp() * d

    def loss() -> Tensor:
        wrong = none[:, torch.randint(none.shape[1], (seen.shape[1],))]
        return F.softplus(-logits(seen)).mean() + F.softplus(logits(wrong)).mean()

    fit([features, radius, *layer.parameters()], rate, loss, steps)
    with torch.no_grad():
        return area(logits(held), logits(none))


TASKS = {"tree": embed_tree, "cones": entail, "narrow": classify(True), "flat": classify(False), "link": link}


def score(name: str, curved: bool, rate: float, seed: int, steps: int) -> float:
    torch.manual_seed(seed)
    value = TASKS[name](curved, rate, seed, steps)
    return value if value == value else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | hyperbolic (rate) | Euclidean (rate) | difference (95 %) |\n|---|---|---|---|")
    for name in arguments.tasks:
        cells, rows = [], {}
        for curved in (True, False):
            tuned = {rate: [score(name, curved, rate, seed, arguments.steps) for seed in TUNED] for rate in RATES}
            best = max(RATES, key=lambda rate: sum(tuned[rate]))
            rows[curved] = [score(name, curved, best, seed, arguments.steps) for seed in SCORED]
            cells.append(f"{np.mean(rows[curved]):.3f} ({best:g})")
            if arguments.out is not None:
                line = {"task": name, "curved": curved, "tuned": tuned, "rate": best, "scores": rows[curved]}
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        gain = np.subtract(rows[True], rows[False])
        margin = stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / len(gain) ** 0.5
        print(f"| {name} | {' | '.join(cells)} | {gain.mean():+.3f} ± {margin:.3f} |", flush=True)


if __name__ == "__main__":
    main()
