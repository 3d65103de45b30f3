"""How far geoopt's optimisers get on our manifold and on geoopt's own: eight points fitted to eight others, 400 steps.

Prints the final sum of squared distances, the largest over three starts, measured in float64 by lorentz; 0 is perfect.
Usage: python benchmarks/lorentz_fit.py
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


if __name__ == "__main__":
    main()
