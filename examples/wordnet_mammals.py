"""The mammals of WordNet 3.0: who is above whom, in hyperbolic space and in spaces of the same dimension without it.

Of 6,542 pairs (a synset, one above it) a tenth is hidden, none of them a direct one. Each synset is to find those above
it nearest. The loss is that of Nickel and Kiela (2017): softmax over minus the distances, one above against all that
are not known to be above. Every space has the same loss, the same optimiser and a learned scale of its distances. Draws
mammals.png, the hyperbolic plane; `benchmarks/mammals.py` has the study.

Quick: --steps 150 --out out
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geoopt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import lorentz
from lorentz.manifold import Lorentz
from lorentz.plot import poincare_disk

FILE = Path(__file__).with_suffix(".txt")
SPLIT_SEED = 76
RATES = {"hyperbolic": 0.03, "Euclidean": 0.3, "spherical": 0.03, "product": 0.1}  # the best of four in 5 dimensions
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#6A51A3")


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
            geoopt.ManifoldParameter(start(0.1 * torch.randn(count, share)), manifold=manifold)  # pyright: ignore[reportCallIssue]
            for (manifold, start, _), share in zip(self.kinds, shares.values(), strict=True)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Scaled distances of some points to all of them."""
        parts = [
            scale * dist(points[rows], points)
            for (_, _, dist), points, scale in zip(self.kinds, self.points, self.log_scales.exp(), strict=True)
        ]
        return parts[0] if len(parts) == 1 else (torch.stack(parts).square().sum(0) + 1e-12).sqrt()


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
    """Each synset lists all others but the ignored, the nearest first: 1 if those it wants lead every list."""
    rows = wanted.any(1).nonzero().squeeze(1)
    distances = space(rows).masked_fill(ignored[rows], torch.inf)
    distances[torch.arange(len(rows)), rows] = torch.inf
    hits = wanted[rows].gather(1, distances.argsort(1)).double()
    precision = hits.cumsum(1) / torch.arange(1, hits.shape[1] + 1)
    return ((precision * hits).sum(1) / hits.sum(1)).mean().item()


def draw(space: Space, words: list[str], bases: list[list[int]], above: Tensor, file: Path) -> None:
    """The hyperbolic plane on the disk, "mammal" in its middle; a color for each of the largest branches."""
    points = space.points[0].detach().double()
    points = lorentz.gyro_add(lorentz.project(-points[0, 1:]), points)
    sizes = above.sum(0) + 1
    branches = sorted(
        (row for row, direct in enumerate(bases) if words.index("placental") in direct),
        key=lambda row: -int(sizes[row]),
    )
    colors = ["#B0B0B0"] * len(words)
    for color, branch in zip(COLORS, branches, strict=False):
        for row in [branch, *above[:, branch].nonzero().flatten().tolist()]:
            colors[row] = color
    figure = Figure(figsize=(9, 7.7), layout="constrained")
    edges = [(base, row) for row, direct in enumerate(bases) for base in direct]
    poincare_disk(
        points,
        edges=edges,
        labels=[word.replace("_", " ") if size >= 30 else None for word, size in zip(words, sizes, strict=True)],
        point_style={"c": colors, "s": [2.0 + 3.0 * float(size) ** 0.5 for size in sizes]},
        edge_style={"colors": [colors[row] for _, row in edges], "alpha": 0.3, "linewidths": 0.5},
        ax=figure.subplots(),
    )
    figure.savefig(file, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=5)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    words, bases, above = mammals()
    hidden = hidden_pairs(bases, above)
    known = above & ~hidden
    print(f"{len(words)} mammals, {int(known.sum())} pairs, {int(hidden.sum())} hidden, {arguments.dim} dimensions")
    print(f"{'MAP':12}{'trained':>9}{'hidden':>9}")
    for name, rate in RATES.items():
        space = fit(name, arguments.dim, known, rate, 0, arguments.steps)
        trained = mean_average_precision(space, known, hidden)
        print(f"{name:12}{trained:9.3f}{mean_average_precision(space, hidden, known):9.3f}")
    draw(fit("hyperbolic", 2, known, 0.1, 0, arguments.steps), words, bases, above, arguments.out / "mammals.png")
    print(f"wrote {arguments.out / 'mammals.png'}")


if __name__ == "__main__":
    main()
