"""How far geoopt's optimisers get on our manifold and on geoopt's own, in three starts each.

    python benchmarks/lorentz_fit.py

First eight points fitted to eight others in 400 steps: the final sum of squared distances, the largest over the starts,
measured in float64 by lorentz; 0 is perfect. Then a hierarchy, the full tree of three branches and five levels in the
plane, by the ranking loss of Nickel and Kiela (2017) with RiemannianAdam in float32: after how many of 300 steps the
points were no longer finite, and how near the top of each node's list of nearest nodes its parent and children stand
(mean average precision, measured in float64; 1 is perfect).
"""

import warnings

import geoopt
import torch

import lorentz
from _harness import parse_options, show
from lorentz.manifold import Lorentz

STEPS, RATE, STARTS = 400, 0.1, 3


def fitted(manifold: geoopt.manifolds.base.Manifold, name: str, dtype: torch.dtype, c: float, seed: int) -> float:
    """The loss after the last step, nan where the run broke."""
    generator = torch.Generator().manual_seed(seed)
    target, start = Lorentz(c).random_normal(2, 8, 4, dtype=dtype, generator=generator)
    target = target.clone()
    points = geoopt.ManifoldParameter(start.clone(), manifold=manifold)
    optimiser = getattr(geoopt.optim, name)([points], lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        manifold.dist(points, target).square().sum().backward()
        optimiser.step()
    return lorentz.dist(points.detach().double(), target.double(), c).square().sum().item()


def tree(branches: int = 3, levels: int = 5) -> torch.Tensor:
    """Which nodes are parent and child, (n, n)."""
    count = sum(branches**level for level in range(levels + 1))
    near = torch.zeros(count, count, dtype=torch.bool)
    child = torch.arange(1, count)
    near[child, (child - 1) // branches] = True
    return near | near.T


def embedded(manifold: geoopt.manifolds.base.Manifold, rate: float, seed: int) -> tuple[int | None, float]:
    """The step after which the points of the tree were not finite, and the mean average precision of those before."""
    near = tree()
    generator = torch.Generator().manual_seed(seed)
    start = Lorentz().random_normal(len(near), 3, std=0.1, generator=generator).clone()
    points = geoopt.ManifoldParameter(start, manifold=manifold)
    optimiser = geoopt.optim.RiemannianAdam([points], lr=rate)
    itself = torch.eye(len(near), dtype=torch.bool)
    broken, last = None, points.detach().clone()
    for step in range(300):
        optimiser.zero_grad()
        logits = -2.0 * manifold.dist(points[:, None], points[None])
        others = torch.where(near | itself, -torch.inf, logits).logsumexp(-1, keepdim=True)
        (torch.logaddexp(others, logits) - logits)[near].mean().backward()
        optimiser.step()
        if not torch.isfinite(points).all():
            broken = step
            break
        last = points.detach().clone()
    distances = lorentz.pairwise_dist(last.double(), last.double(), exact=True).fill_diagonal_(torch.inf)
    hits = near.gather(-1, distances.argsort(-1)).double()
    precision = hits.cumsum(-1) / torch.arange(1, len(hits) + 1)
    return broken, ((precision * hits).sum(-1) / hits.sum(-1)).mean().item()


def main() -> None:
    parse_options(__doc__)
    warnings.filterwarnings("ignore", message=".*torch.jit.script.*")
    rows = []
    for name in ("RiemannianAdam", "RiemannianSGD"):
        for dtype in (torch.float64, torch.float32):
            for c in (1.0, 0.25):
                theirs = geoopt.Lorentz(k=torch.tensor(1.0 / c, dtype=dtype))
                both = (Lorentz(c), theirs)
                results = [max(fitted(each, name, dtype, c, seed) for seed in range(STARTS)) for each in both]
                rows.append([name, str(dtype)[6:], f"{c:g}", *(f"{result:.1e}" for result in results)])
    show("final sum of squared distances", ["optimiser", "dtype", "c", "lorentz", "geoopt"], rows)
    rows = []
    for rate in (0.03, 0.1, 0.3):
        for seed in range(STARTS):
            cells = []
            for manifold in (Lorentz(), geoopt.Lorentz()):
                broken, precision = embedded(manifold, rate, seed)
                cells.append(f"{precision:.2f}" if broken is None else f"NaN at step {broken}, {precision:.2f} before")
            rows.append([f"{rate:g}", str(seed), *cells])
    show("a tree of 364 nodes in the plane, float32", ["learning rate", "start", "lorentz", "geoopt"], rows)


if __name__ == "__main__":
    main()
