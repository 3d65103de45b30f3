"""The mammals of WordNet 3.0: who is above whom, in hyperbolic space and in spaces of the same dimension without it.

Of 6,542 pairs (a synset, one above it) a tenth is hidden, none of them a direct one. Each synset is to find those above
it nearest. The loss is that of Nickel and Kiela (2017): softmax over minus the distances, one above against all that
are not known to be above. Every space has the same loss, the same optimiser and a learned scale of its distances. Draws
mammals.png, the hyperbolic plane; `benchmarks/wordnet_mammals.py` has the study.

Quick: --steps 150 --out out
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geoopt
import torch
import torch.nn.functional as F
from torch import Tensor

import lorentz
from lorentz.manifold import Lorentz

FILE = Path(__file__).with_suffix(".txt")
SPLIT_SEED = 76


def sphere_dist(x: Tensor, y: Tensor) -> Tensor:
    return 2.0 * torch.asin((0.5 * flat_dist(x, y)).clamp(max=1 - 1e-6))


def flat_dist(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


#: factor -> its manifold, how normal vectors become points, distances of all x to all y
FACTORS: dict[str, tuple[Any, Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "hyperbolic": (Lorentz(c=1.0), lorentz.expmap0, lorentz.pairwise_dist),
    "Euclidean": (geoopt.Euclidean(1), lambda v: v, flat_dist),
    "spherical": (geoopt.Sphere(), lambda v: F.normalize(F.pad(v, (1, 0), value=1.0), dim=-1), sphere_dist),
}


def mammals() -> tuple[list[str], list[list[int]], Tensor]:
    """Words, rows of the direct hypernyms, and above[u, v]: v is above u (n, n)."""
    lines = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    bases = [[int(row) for row in rows.split(",") if row] for _, rows in lines]
    direct = torch.zeros(len(bases), len(bases), dtype=torch.bool)
    for row, above in enumerate(bases):
        direct[row, above] = True
    above = direct
    while not torch.equal(above, further := above | (direct.float() @ above.float() > 0)):
        above = further
    return [word for word, _ in lines], bases, above


def hidden_pairs(bases: list[list[int]], above: Tensor, share: float = 0.1) -> Tensor:
    """A share of the pairs that are not direct, by SPLIT_SEED (n, n)."""
    far = above.clone()
    for row, direct in enumerate(bases):
        far[row, direct] = False
    pairs = far.nonzero()
    chosen = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(SPLIT_SEED))[: int(share * len(pairs))]
    return torch.zeros_like(above).index_put_(tuple(pairs[chosen].T), torch.tensor(True))


class Space(torch.nn.Module):
    """Points of some space of `dim` dimensions, and their distances; a product joins two factors of half of them."""

    def __init__(self, name: str, count: int, dim: int) -> None:
        super().__init__()
        shares = {"hyperbolic": dim - dim // 2, "spherical": dim // 2} if name == "product" else {name: dim}
        self.kinds = [FACTORS[factor] for factor in shares]
        self.log_scales = torch.nn.Parameter(torch.zeros(len(shares)))
        self.points = torch.nn.ParameterList(
            geoopt.ManifoldParameter(start(0.1 * torch.randn(count, share)), manifold=manifold)
            for (manifold, start, _), share in zip(self.kinds, shares.values(), strict=True)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Scaled distances of some points to all of them."""
        parts = [
            scale * dist(points[rows], points)
            for (_, _, dist), points, scale in zip(self.kinds, self.points, self.log_scales.exp(), strict=True)
        ]
        return parts[0] if len(parts) == 1 else (sum(part.square() for part in parts) + 1e-12).sqrt()


def fit(name: str, dim: int, known: Tensor, rate: float, seed: int, steps: int, batch: int = 128) -> Space:
    """A space trained on the known pairs by RiemannianAdam, its rate falling to a hundredth."""
    torch.manual_seed(seed)
    space = Space(name, len(known), dim)
    optimiser = geoopt.optim.RiemannianAdam(space.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    below, others = known.any(1).nonzero().squeeze(1), ~(known | torch.eye(len(known), dtype=torch.bool))
    for _ in range(steps):
        rows = below[torch.randperm(len(below))[:batch]]
        logits = -space(rows)
        against = logits.masked_fill(~others[rows], -torch.inf).logsumexp(1)
        query, above = known[rows].nonzero(as_tuple=True)
        of_pair = logits[query, above]
        loss = (torch.logaddexp(against[query], of_pair) - of_pair).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return space


@torch.no_grad()
def mean_average_precision(space: Space, wanted: Tensor, ignored: Tensor) -> float:
    """Each synset with wanted ones lists all others but the ignored, the nearest first: 1 if the wanted lead all lists."""
    rows = wanted.any(1).nonzero().squeeze(1)
    distances = space(rows).masked_fill(ignored[rows], torch.inf)
    distances[torch.arange(len(rows)), rows] = torch.inf
    hits = wanted[rows].gather(1, distances.argsort(1)).double()
    precision = hits.cumsum(1) / torch.arange(1, hits.shape[1] + 1)
    return ((precision * hits).sum(1) / hits.sum(1)).mean().item()
