"""Prototypes of a set of points (regdiff): a diffusion of 2 to 6 tokens, without any video.

Points come from a mixture of Gaussians in the plane; given the points and a number k, the model generates k centres. It
does not know which point belongs to which centre, nor an order of the centres: the k! right answers are the modes of
a distribution, and their mean is wrong. The score is the mean distance of a point to its nearest prototype,
over the same for the true centres. Prints it for several samplers and numbers of steps, and draws prototypes.png.

Quick: --train-steps 150 --rows 64 --sets 64 --out out
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.cluster.vq import kmeans2
from torch import Tensor, nn

from regdiff import ConditionalDiffusion, TransformerDenoiser, make_scheduler

MOST, POINTS, WIDTH, TRAINED = 6, 64, 64, 100  # tokens, points of a set, width of the model, timesteps
WAVES = 2.0 ** torch.arange(5) * math.pi / 2
LABELS = {"ddpm": "DDPM", "ddim": "DDIM", "dpmsolver++": "DPM-Solver++"}
STYLES = (
    *(("#D55E00", "s", "--"), ("#0072B2", "o", "-"), ("#009E73", "^", "-.")),
    *(("#CC79A7", "v", ":"), ("#E69F00", "D", "--"), ("#56B4E9", "P", "-")),
)


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Points (count, 64, 2), centres (count, 6, 2), and which of the centres there are (count, 6)."""
    number = torch.randint(2, MOST + 1, (count, 1), generator=generator)
    centres = 1.7 * torch.rand(count, MOST, 2, generator=generator) - 0.85
    spread = 0.04 + 0.08 * torch.rand(count, MOST, 1, generator=generator)
    source = (torch.rand(count, POINTS, generator=generator) * number).long().unsqueeze(-1)
    noise = torch.randn(count, POINTS, 2, generator=generator)
    points = centres.gather(1, source.expand(-1, -1, 2)) + spread.gather(1, source) * noise
    return points, centres, torch.arange(MOST) < number


def waves(x: Tensor) -> Tensor:
    """Coordinates, and their sines and cosines: (..., 2) to (..., 22)."""
    angles = (x.unsqueeze(-1) * WAVES).flatten(-2)
    return torch.cat([x, angles.sin(), angles.cos()], dim=-1)


class PrototypeModel(nn.Module):
    """An encoder of the points, run once per set, and a denoiser of prototypes that attend to them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(22, WIDTH)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.denoiser = TransformerDenoiser(WIDTH, TRAINED, layers=3, register_dim=22)

    def read(self, points: Tensor) -> Tensor:
        return self.encoder(self.enter(waves(points)))

    def forward(self, sample: Tensor, timestep: Tensor, condition: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.denoiser(waves(sample), timestep, condition, mask)[..., :2]


def distances(points: Tensor, prototypes: Tensor, valid: Tensor) -> Tensor:
    """Mean distance of a set's points to the nearest prototype, (count,)."""
    return torch.cdist(points, prototypes).masked_fill(~valid[:, None], torch.inf).amin(-1).mean(-1)


def train(diffusion: ConditionalDiffusion, model: PrototypeModel, steps: int, rows: int) -> None:
    """Each set serves four rows, with four timesteps: reading the points is most of the work."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.05)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        points, centres, valid = draw(rows // 4, generator)
        condition, centres, valid = (x.repeat(4, 1, 1)[:rows] for x in (model.read(points), centres, valid[..., None]))
        loss = diffusion.loss(centres, condition, generator=generator, mask=valid[..., 0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(steps // 10, 1) == 0:
            print(f"step {step:4}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def sample(diffusion: ConditionalDiffusion, condition: Tensor, valid: Tensor, steps: int) -> Tensor:
    """Prototypes (count, 6, 2); the same noise for every sampler and every number of steps."""
    generator = torch.Generator().manual_seed(2)
    initial = torch.randn(*valid.shape, 2, generator=generator)
    return diffusion.sample(initial, condition, steps, generator=generator, mask=valid)


def score(values: Tensor, oracle: Tensor) -> tuple[float, float]:
    """Ratio of the means, and its standard error over sets."""
    ratio = values.mean() / oracle.mean()
    error = (values - ratio * oracle).std() / oracle.mean() / len(oracle) ** 0.5
    return ratio.item(), error.item()


def show(ax: Axes, title: str, points: Tensor, prototypes: Tensor) -> None:
    ax.scatter(*points.T, s=7, color="#8C8C8C", linewidths=0)
    ax.scatter(*prototypes.T, s=75, color="#D55E00", marker="X", edgecolors="white", linewidths=0.8, zorder=3)
    ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=[], yticks=[], aspect="equal")
    ax.set_title(title, fontsize=10)


def curves(ax: Axes, table: dict[str, list[float]], baselines: dict[str, float], steps: list[int]) -> None:
    for (name, values), (color, marker, line) in zip(table.items(), STYLES, strict=False):
        ax.plot(steps, values, line, color=color, marker=marker, markersize=5, label=LABELS.get(name, name))
    for name, value in baselines.items():
        ax.axhline(value, color="#555555", linewidth=0.8)
        where, side = (steps[-1], "right") if value > 2 else (steps[0], "left")  # away from the curves
        ax.annotate(name, (where, value), (0, 3), textcoords="offset points", ha=side, fontsize=9, color="#333333")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="sampling steps",
        ylabel="distance to the nearest prototype\n(true centres = 1)",
    )
    ax.set_xticks(steps, [str(step) for step in steps])
    ticks = (1.0, 1.5, 2.0, 3.0, 5.0)
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.legend(frameon=False, loc="upper right")
    ax.spines[["top", "right"]].set_visible(False)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--train-steps", type=int, default=400, help="4000 for the figure of the documentation")
parser.add_argument("--rows", type=int, default=64, help="128 for that figure")
parser.add_argument("--sets", type=int, default=200, help="sets that the score is taken on; 512 for that figure")
parser.add_argument("--steps", type=int, nargs="+", default=[1, 2, 3, 5, 10, 20, 50], help="numbers of sampling steps")
parser.add_argument("--samplers", nargs="+", default=list(LABELS), help="names of make_scheduler")
parser.add_argument("--prediction", default="v_prediction", choices=["epsilon", "sample", "v_prediction"])
parser.add_argument("--out", type=Path, default=Path())
arguments = parser.parse_args()
arguments.out.mkdir(parents=True, exist_ok=True)

torch.manual_seed(0)
model = PrototypeModel()
schedulers = {
    n: make_scheduler(n, TRAINED, prediction_type=arguments.prediction) for n in (*arguments.samplers, "ddim")
}
diffusion = ConditionalDiffusion(model, schedulers["ddim"], eta=0.0)
train(diffusion, model, arguments.train_steps, arguments.rows)

model.eval()
points, centres, valid = draw(arguments.sets, torch.Generator().manual_seed(1))
with torch.no_grad():
    condition = model.read(points)
oracle = distances(points, centres, valid)
found = torch.zeros_like(centres)
for row, (cloud, number) in enumerate(zip(points.double().numpy(), valid.sum(1).tolist(), strict=True)):
    found[row, :number] = torch.from_numpy(kmeans2(cloud, number, minit="++", rng=0)[0])
baselines = {
    "k points at random": score(distances(points, points[:, :MOST], valid), oracle)[0],
    "k-means": score(distances(points, found, valid), oracle)[0],
}
print("\n".join(f"{name:20}{value:6.2f}" for name, value in baselines.items()))

print(f"{'steps':16}" + "".join(f"{steps:>14}" for steps in arguments.steps))
table = {}
for name in arguments.samplers:
    sampler = diffusion.with_scheduler(schedulers[name])
    scores = [score(distances(points, sample(sampler, condition, valid, k), valid), oracle) for k in arguments.steps]
    table[name] = [ratio for ratio, _ in scores]
    print(f"{name:16}" + "".join(f"{ratio:7.2f} ±{error:5.2f}" for ratio, error in scores), flush=True)

assert min(table[arguments.samplers[0]]) < table[arguments.samplers[0]][0]  # several steps beat one

figure = Figure(figsize=(11, 4.4), layout="constrained")
panels: Any = figure.subfigures(1, 2, width_ratios=(1, 1.25))
left, right = panels
curves(left.subplots(), table, baselines, arguments.steps)
axes = right.subplots(2, 3)
rows = [int((valid.sum(1) == k).nonzero()[0]) for k in (5, 3, 4, 6)]
for ax, steps in zip(axes[0], (1, 3, 20), strict=True):
    result = sample(diffusion, condition, valid, steps)
    show(ax, f"DDIM, {steps} step{'s' * (steps > 1)}", points[rows[0]], result[rows[0], valid[rows[0]]])
for ax, row in zip(axes[1], rows[1:], strict=True):
    show(ax, f"{int(valid[row].sum())} prototypes, 20 steps", points[row], result[row, valid[row]])
figure.savefig(arguments.out / "prototypes.png", dpi=100, bbox_inches="tight", pad_inches=0.1)
print(f"wrote {arguments.out / 'prototypes.png'}")
