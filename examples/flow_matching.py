"""Riemannian flow matching (Chen and Lipman 2024) on the hyperbolic plane: lorentz's geodesics, a network of regdiff.

The data are the leaves of a small tree, a wrapped normal around each. A point of the base distribution and one of the
data are joined by the geodesic x_t; the network learns the velocity log_{x_t}(x_1)/(1 - t) along it, given t and the
branch of the tree. Integrating the learned field from the base by exponential maps gives new points. They are judged by
their energy distance to held-out data (a metric of distributions, as hyperbolic distance is of strict negative type,
Lyons 2014), beside that of fresh data, which is what chance leaves, and that of the base; and the model by the
log-likelihood of held-out data, beside the true one. Draws flow.png.

Quick: --train-steps 1200 --out out
"""

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import lorentz
from lorentz.distributions import WrappedNormal
from lorentz.manifold import Lorentz
from lorentz.plot import poincare_disk
from regdiff.geodesic import GeodesicFlow
from regdiff.registers import RegisterDenoiser

BRANCHES, LEAVES, WIDTH, TIMES, SPREAD = 4, 3, 64, 1000, 0.3
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
WAVES = 2.0 ** torch.arange(4)


def directions(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def tree() -> tuple[Tensor, Tensor]:
    """Branches (4, 3) at distance 1.2 of the origin, and leaves (4, 3, 3) at 1.4 of their branch, fanned out."""
    turns = torch.arange(BRANCHES) * (2.0 * math.pi / BRANCHES)
    branches = lorentz.expmap0(1.2 * directions(turns))
    fan = turns[:, None] + torch.linspace(-1.2, 1.2, LEAVES)
    return branches, lorentz.gyro_add(branches[:, None], lorentz.expmap0(1.4 * directions(fan)))


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Points (count, 3) and their branches (count,)."""
    branch, leaf = torch.randint(BRANCHES, (count,)), torch.randint(LEAVES, (count,))
    return WrappedNormal(tree()[1][branch, leaf], SPREAD).sample(), branch


def true_log_prob(points: Tensor, branch: Tensor) -> Tensor:
    """Of points (n, 3) given their branch: the leaves are equally likely."""
    parts = WrappedNormal(tree()[1][branch], SPREAD).log_prob(points[:, None])
    return parts.logsumexp(-1) - math.log(LEAVES)


BASE = WrappedNormal(lorentz.origin(3), 1.0)


class Field(nn.Module):
    """A vector field: the network speaks of the tangent space at the origin, parallel transport carries that to x."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Embedding(BRANCHES, WIDTH)
        self.enter = nn.Linear(2 + 4 * len(WAVES), WIDTH)
        self.network = RegisterDenoiser(WIDTH, TIMES, layers=3)
        self.leave = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, time: Tensor, branch: Tensor) -> Tensor:
        """Tangent vectors at x (n, 3), ambient; time is in [0, 1]."""
        v = lorentz.logmap0(x)
        angles = (v.unsqueeze(-1) * WAVES).flatten(-2)
        features = torch.cat([v, angles.sin(), angles.cos()], dim=-1)
        step = (time * TIMES).long().clamp(max=TIMES - 1)
        v = self.leave(self.network(self.enter(features), step, self.branch(branch)))
        return lorentz.parallel_transport(lorentz.origin(3), x, nn.functional.pad(v, (1, 0)))


def train(flow: GeodesicFlow, steps: int) -> None:
    optimizer = torch.optim.AdamW(flow.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    for step in range(steps):
        points, branch = draw(256)
        loss = flow.loss(points, branch, BASE.sample((256,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(steps // 5, 1) == 0:
            print(f"step {step:4}: loss {loss.item():.3f}", flush=True)


def energy_distance(x: Tensor, y: Tensor) -> float:
    """Square root of 2 E d(x, y) - E d(x, x') - E d(y, y') of the two sets: their distance as distributions."""
    across, within = lorentz.pairwise_dist(x, y).mean(), lorentz.pairwise_dist(x, x).mean()
    return (2.0 * across - within - lorentz.pairwise_dist(y, y).mean()).clamp_min(0.0).sqrt().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train-steps", type=int, default=6000)
    parser.add_argument("--sample-steps", type=int, default=50)
    parser.add_argument("--points", type=int, default=1500, help="how many points are compared and drawn")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    torch.manual_seed(0)

    flow = GeodesicFlow(Field(), Lorentz())
    train(flow, options.train_steps)
    held_out, fresh = draw(options.points), draw(options.points)
    asked = draw(options.points)[1]
    with torch.no_grad():
        samples = flow.sample(BASE.sample((options.points,)), asked, options.sample_steps)
        ours = flow.log_likelihood(*held_out, BASE.log_prob, options.sample_steps).mean().item()

    print(f"energy distance of {options.points} points to as many of held-out data:")
    sets = {"fresh data": fresh[0], "samples": samples, "base": BASE.sample((options.points,))}
    distances = {name: energy_distance(points, held_out[0]) for name, points in sets.items()}
    for name, value in distances.items():
        print(f"  {name:10} {value:.3f}")
    assert distances["samples"] < 0.5 * distances["base"]
    truth = true_log_prob(*held_out).mean().item()
    print(
        f"log-likelihood of held-out data: {ours:.3f}, of the true density {truth:.3f}: {abs(ours / truth - 1):.1%} off"
    )

    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    branches, leaves = tree()
    nodes = torch.cat([lorentz.origin(1, 3), branches, leaves.flatten(0, 1)])
    edges = [(0, 1 + row) for row in range(BRANCHES)]
    edges += [(1 + row // LEAVES, 1 + BRANCHES + row) for row in range(BRANCHES * LEAVES)]
    for ax, title, points, branch in zip(
        figure.subplots(1, 2), ("data", "samples"), (held_out[0], samples), (held_out[1], asked), strict=True
    ):
        poincare_disk(nodes, edges=edges, point_style={"s": 0.0}, ax=ax)
        style = {"c": [COLORS[row] for row in branch.tolist()], "s": 5.0, "alpha": 0.6}
        poincare_disk(points, point_style=style, ax=ax).set_title(title)
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "flow.png", dpi=100)
    print(f"wrote {options.out / 'flow.png'}")


if __name__ == "__main__":
    main()
