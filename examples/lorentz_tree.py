"""A real tree in the hyperbolic plane: the exceptions of Python's standard library, a class below its first base.

Each class should find its base and its subclasses nearest. The loss is the ranking loss of Nickel and Kiela (2017):
softmax over minus the distances, neighbours in the tree against unrelated classes. The hyperbolic plane is fitted by
geoopt's RiemannianAdam, the Euclidean one by Adam, both from the same fan-shaped layout. Draws tree.png.

Quick: --out out
"""

import argparse
import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

import geoopt
import torch
from matplotlib.figure import Figure
from torch import Tensor

import lorentz
from lorentz.manifold import Lorentz
from lorentz.plot import poincare_disk

MODULES = (
    *(
        "asyncio",
        "concurrent.futures.thread",
        "configparser",
        "decimal",
        "email.errors",
        "http.client",
        "json",
        "mailbox",
    ),
    *("multiprocessing.resource_tracker", "optparse", "pickle", "shutil", "smtplib", "socket", "sqlite3", "ssl"),
    *("subprocess", "tarfile", "unittest.mock", "urllib.error", "xml.sax", "xmlrpc.client", "zipfile"),
)
BRANCH_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#6A51A3")


def exceptions() -> tuple[list[type], list[int]]:
    """Exception and the public classes below it, each with the row of its base (0 for Exception itself)."""
    for module in MODULES:
        importlib.import_module(module)
    known = {"builtins", *(module.split(".")[0] for module in MODULES)}

    def belongs(cls: type) -> bool:
        home, found = sys.modules.get(cls.__module__), cls.__module__.split(".")[0].lstrip("_") in known
        return found and not cls.__name__.startswith("_") and getattr(home, cls.__name__, None) is cls

    classes, bases = [Exception], [0]
    for row, base in enumerate(classes):  # grows while it is read
        for cls in sorted(base.__subclasses__(), key=lambda cls: (cls.__module__, cls.__qualname__)):
            if belongs(cls) and cls.__bases__[0] is base and cls not in classes:
                classes.append(cls)
                bases.append(row)
    return classes, bases


def layout(bases: list[int], sizes: list[int], step: float) -> Tensor:
    """A fan: each class in the middle of a sector as wide as its subtree is large, `step` further out than its base."""
    fan = [(0.0, 2 * math.pi, 0.0)] * len(bases)  # first free angle, angle per class, radius
    places = torch.zeros(len(bases), 2, dtype=torch.float64)
    for row, base in enumerate(bases):
        if row == 0:
            fan[0] = (0.0, 2 * math.pi / max(sizes[0] - 1, 1), 0.0)
            continue
        angle, share, radius = fan[base]
        width = share * sizes[row]
        fan[base] = (angle + width, share, radius)
        fan[row] = (angle, width / max(sizes[row] - 1, 1), radius + step)
        middle = torch.tensor(angle + width / 2, dtype=torch.float64)
        places[row] = (radius + step) * torch.stack([middle.cos(), middle.sin()])
    return places


def ranking_loss(distances: Tensor, near: Tensor, related: Tensor, sharpness: float = 2.0) -> Tensor:
    """-log of exp(-s d) of a neighbour, over itself and all classes that are neither above nor below."""
    logits = -sharpness * distances
    hidden = related | torch.eye(len(near), dtype=torch.bool)
    others = torch.where(hidden, -torch.inf, logits).logsumexp(-1, keepdim=True)
    return (torch.logaddexp(others, logits) - logits)[near].mean()


def fit(
    parameter: Tensor,
    optimiser: torch.optim.Optimizer,
    distances: Callable[[Tensor], Tensor],
    loss_of: Callable[[Tensor], Tensor],
) -> Tensor:
    """Minimise the ranking loss, the learning rate falling to 0; returns the final distances."""
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, arguments.steps)
    for step in range(arguments.steps):
        value = loss_of(distances(parameter))
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"  step {step:3}: loss {value.item():.3f}")
    return distances(parameter).detach()


def mean_average_precision(distances: Tensor, related: Tensor) -> float:
    """How near the top of each class's list of nearest classes the related ones stand: 1 is perfect."""
    order = distances.clone().fill_diagonal_(torch.inf).argsort(-1)
    hits = related.gather(-1, order).double()
    precision = hits.cumsum(-1) / torch.arange(1, len(hits) + 1)
    return ((precision * hits).sum(-1) / hits.sum(-1)).mean().item()


def distortion(distances: Tensor, steps: Tensor) -> float:
    """Mean of |d/(s t) - 1| over all pairs, t the steps in the tree, at the best scale s."""
    above = torch.triu(torch.ones_like(steps, dtype=torch.bool), 1)
    ratio = distances[above] / steps[above]
    scales = ratio.quantile(torch.linspace(0.05, 0.95, 91, dtype=ratio.dtype))
    return (ratio / scales[:, None] - 1).abs().mean(-1).min().item()


def label(cls: type) -> str:
    """The name; with its module where half of the library calls its class like that."""
    return f"{cls.__module__.lstrip('_').split('.')[0]}.{cls.__name__}" if cls.__name__ == "Error" else cls.__name__


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--out", type=Path, default=Path(), help="folder of the picture")
parser.add_argument("--steps", type=int, default=300)
arguments = parser.parse_args()
arguments.out.mkdir(parents=True, exist_ok=True)

classes, bases = exceptions()
count = len(classes)
below = torch.eye(count, dtype=torch.bool)  # below[i, j]: i is j or below j
for row, base in enumerate(bases):
    below[row] |= below[base]
depth = below.sum(-1) - 1
common = (below[:, None] & below[None]).sum(-1) - 1  # depth of the last common base
steps = (depth[:, None] + depth[None] - 2 * common).double()
near, related = steps == 1, (below | below.T) & (steps > 0)
sizes = below.sum(0).tolist()
print(f"{count} classes, up to {int(depth.max())} below Exception")


def loss(distances: Tensor) -> Tensor:
    return ranking_loss(distances, near, related)


start, manifold = layout(bases, sizes, step=2.5), Lorentz(c=1.0)
print("hyperbolic plane, RiemannianAdam")
points = geoopt.ManifoldParameter(lorentz.expmap0(start), manifold=manifold)
optimiser = geoopt.optim.RiemannianAdam([points], lr=0.1)
hyperbolic = fit(points, optimiser, lambda x: lorentz.pairwise_dist(x, x), loss)
print("Euclidean plane, Adam")
flat = start.clone().requires_grad_()
euclidean = fit(flat, torch.optim.Adam([flat], lr=0.1), lambda x: torch.cdist(x, x), loss)

print(f"{'':28}{'hyperbolic':>12}{'Euclidean':>12}")
scores = [
    [mean_average_precision(d, near), mean_average_precision(d, related), distortion(d, steps)]
    for d in (hyperbolic, euclidean)
]
for name, ours, theirs in zip(
    ("MAP, base and subclasses", "MAP, all above and below", "distortion"), *scores, strict=True
):
    print(f"{name:28}{ours:12.3f}{theirs:12.3f}")
assert scores[0][1] > scores[1][1] + 0.2

# An isometry carries Exception to the middle of the picture.
points = points.detach()
root, middle = points[0], manifold.origin(3, dtype=torch.float64)
points = lorentz.expmap0(lorentz.parallel_transport(root, middle, lorentz.logmap(root, points))[:, 1:])

branches = sorted((row for row in range(count) if depth[row] == 1), key=lambda row: -sizes[row])
colors = ["#B0B0B0"] * count
for color, branch in zip(BRANCH_COLORS, branches, strict=False):
    colors = [color if below[row, branch] else colors[row] for row in range(count)]
colors[0] = "#303030"
figure = Figure(figsize=(9, 7.7), layout="constrained")
poincare_disk(
    points,
    edges=[(base, row) for row, base in enumerate(bases) if row],
    labels=[label(cls) if size >= 4 else None for cls, size in zip(classes, sizes, strict=True)],
    point_style={"c": colors, "s": [6.0 + 8.0 * size**0.5 for size in sizes]},
    edge_style={"colors": colors[1:]},
    ax=figure.subplots(),
)
figure.savefig(arguments.out / "tree.png", dpi=100)
print(f"wrote {arguments.out / 'tree.png'}")
