"""What a learned curvature does in contrastive training, bounded or not: `python benchmarks/lorentz_curvature.py`.

Two linear encoders embed two noisy views of the nodes of a tree; the loss is CLIP's on negative Lorentz distances with
a learned temperature, as in MERU (Desai et al. 2023). Everything but the curvature is the same, seeds included.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lorentz
from _harness import Spread, environment, parse_options, show, write_figures
from lorentz.nn import Curvature

DEPTH, BRANCHES, FEATURES, DIM, BATCH = 4, 4, 64, 8, 128


class Direct(nn.Module):
    """c itself is the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Parameter(torch.ones(()))

    def forward(self) -> Tensor:
        return self.c


class Logarithm(nn.Module):
    """The logarithm of c is the parameter, without bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.log_c = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        return self.log_c.exp()


CURVATURES: dict[str, Callable[[], nn.Module]] = {
    "c, fixed at 1": lambda: Curvature(1.0, learnable=False),
    "c as the parameter": Direct,
    "log c as the parameter": Logarithm,
    "Curvature(1.0), bounds (0.1, 10)": lambda: Curvature(1.0),
    "Curvature(1.0), bounds (0.5, 2)": lambda: Curvature(1.0, bounds=(0.5, 2.0)),
}


def tree() -> Tensor:
    """One row for each node: the sum of a random vector for each of its ancestors and itself."""
    level = torch.zeros(1, FEATURES)
    rows = []
    for _ in range(DEPTH):
        level = level.repeat_interleave(BRANCHES, 0) + torch.randn(len(level) * BRANCHES, FEATURES)
        rows.append(level)
    return torch.cat(rows)


def train(make: Callable[[], nn.Module], steps: int, seed: int) -> dict[str, float]:
    """The curvature along training, and at the end recall, radius and temperature."""
    torch.manual_seed(seed)
    nodes, curvature = tree(), make()
    encoders = nn.ModuleList(nn.Linear(FEATURES, DIM) for _ in range(2))
    scales = nn.ParameterList(torch.tensor(-0.5 * math.log(FEATURES)) for _ in range(2))
    log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    optimiser = torch.optim.Adam([*encoders.parameters(), *scales, log_scale, *curvature.parameters()], lr=3e-3)

    def logits(rows: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        views = (nodes[rows] + 0.7 * torch.randn(len(rows), FEATURES) for _ in range(2))
        points = [
            lorentz.expmap0(scale.exp() * encoder(view), c)
            for view, encoder, scale in zip(views, encoders, scales, strict=True)
        ]
        return -lorentz.pairwise_dist(*points, c) * log_scale.exp().clamp(max=100.0), points[0]

    found: dict[str, float] = {}
    for step in range(1, steps + 1):
        scores, _ = logits(torch.randint(len(nodes), (BATCH,)), curvature())
        target = torch.arange(BATCH)
        loss = 0.5 * (F.cross_entropy(scores, target) + F.cross_entropy(scores.mT, target))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in (steps // 10, steps):
            found[f"c at step {step}"] = curvature().item()
    with torch.no_grad():
        c = curvature()
        scores, points = logits(torch.arange(len(nodes)), c)
        found["recall at 1"] = (scores.argmax(-1) == torch.arange(len(nodes))).float().mean().item()
        # How curved the space is where the points are: 0 is flat, 4 is a tree.
        found["sqrt(c) radius"] = (c.sqrt() * lorentz.dist0(points, c)).mean().item()
        found["temperature"] = 1.0 / log_scale.exp().clamp(max=100.0).item()
    return found


def main() -> None:
    options = parse_options(__doc__, rounds=3, steps=2000)
    print(environment())
    figures = {
        name: [train(make, options.steps, options.seed + i) for i in range(options.rounds)]
        for name, make in CURVATURES.items()
    }
    head = list(next(iter(figures.values()))[0])
    rows = [[name, *(Spread.of([one[what] for one in found]) for what in head)] for name, found in figures.items()]
    show("contrastive training with a learned curvature", ["the curvature", *head], rows)
    write_figures(options, figures)


if __name__ == "__main__":
    main()
