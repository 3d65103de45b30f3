"""A conditional density in the plane (regdiff): two moons or eight Gaussians, as the condition says.

A small network learns both shapes at once, and every scheduler samples it; the condition is the name of the shape. The
score is the energy distance of 2,000 samples to the shape (Szekely and Rizzo 2013): 0 for the same distribution.
Controls: other samples of the shape itself, a Gaussian of the same mean and covariance, and the samples of the other
condition. One denoiser serves every scheduler; a flow needs its own. Draws density.png.

Quick: --train-steps 300 --samples 300 --out out
"""

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler

TRAINED, WIDTH = 50, 128
SHAPES = ("two moons", "eight Gaussians")


class Denoiser(nn.Module):
    """Any callable of (sample, timestep, condition) is a denoiser; here the condition is 0 or 1, the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = nn.Embedding(len(SHAPES), 16)
        self.register_buffer("waves", 2.0 ** torch.arange(5) * math.pi / 2)
        self.layers = nn.Sequential(
            *(nn.Linear(2 + 20 + 16 + 2, WIDTH), nn.SiLU()),
            *(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 2)),
        )

    def forward(self, sample: Tensor, timestep: Tensor, condition: Tensor) -> Tensor:
        waves = (sample.unsqueeze(-1) * self.waves).flatten(-2)
        angle = math.pi / 2 * timestep[:, None] / TRAINED
        return self.layers(
            torch.cat([sample, waves.sin(), waves.cos(), self.shape(condition), angle.sin(), angle.cos()], dim=-1)
        )


def draw(condition: Tensor) -> Tensor:
    """Points of the shapes (b, 2), inside [-1, 1]."""
    count = len(condition)
    angle, upper = math.pi * torch.rand(count), torch.rand(count) < 0.5
    moon = torch.stack([angle.cos() - 0.5, angle.sin() - 0.25], dim=-1)
    moon = torch.where(upper[:, None], moon, -moon) * 0.55 + 0.03 * torch.randn(count, 2)
    turn = math.pi / 4 * torch.randint(8, (count,))
    spot = 0.75 * torch.stack([turn.cos(), turn.sin()], dim=-1) + 0.05 * torch.randn(count, 2)
    return torch.where(condition[:, None] == 0, moon, spot).clamp(-1, 1)


def fit(diffusion: ConditionalDiffusion, steps: int) -> None:
    optimizer = torch.optim.AdamW(diffusion.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    for _ in range(steps):
        condition = torch.randint(len(SHAPES), (512,))
        loss = diffusion.loss(draw(condition), condition)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def energy_distance(x: Tensor, y: Tensor) -> float:
    """2 E|x - y| - E|x - x'| - E|y - y'|, without bias."""
    within = [torch.cdist(z, z).sum() / (len(z) * (len(z) - 1)) for z in (x, y)]
    return (2 * torch.cdist(x, y).mean() - within[0] - within[1]).item()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--train-steps", type=int, default=2000)
parser.add_argument("--samples", type=int, default=2000)
parser.add_argument("--steps", type=int, default=20, help="sampling steps")
parser.add_argument("--prediction", default="v_prediction", choices=["epsilon", "sample", "v_prediction"])
parser.add_argument("--out", type=Path, default=Path())
arguments = parser.parse_args()
arguments.out.mkdir(parents=True, exist_ok=True)

torch.manual_seed(0)
diffusion = ConditionalDiffusion(
    Denoiser(), make_scheduler("ddim", TRAINED, prediction_type=arguments.prediction), eta=0.0
)
flow = ConditionalDiffusion(Denoiser(), make_scheduler("flow", TRAINED))
for each in (diffusion, flow):
    fit(each, arguments.train_steps)

conditions = [torch.full((arguments.samples,), i) for i in range(len(SHAPES))]
truth, again = ([draw(condition) for condition in conditions] for _ in range(2))
gaussians = [
    torch.distributions.MultivariateNormal(x.mean(0), x.T.cov()).sample(torch.Size([arguments.samples])) for x in truth
]


@torch.no_grad()
def generated(name: str) -> list[Tensor]:
    sampler = flow
    if name != "flow":
        sampler = diffusion.with_scheduler(make_scheduler(name, TRAINED, prediction_type=arguments.prediction))
    steps = arguments.steps // SCHEDULERS[name].calls  # as many calls for each
    return [sampler.sample(torch.randn(arguments.samples, 2), condition, steps) for condition in conditions]


results = {name: generated(name) for name in SCHEDULERS}
print(
    f"energy distance to {arguments.samples} points, {arguments.steps} calls of the denoiser, {arguments.prediction}\n"
)
print(f"{'':24}" + "".join(f"{shape:>18}" for shape in SHAPES))
controls = {"the shape itself": again, "a Gaussian fitted": gaussians, "the other condition": results["ddim"][::-1]}
table = {
    name: [energy_distance(x, y) for x, y in zip(found, truth, strict=True)]
    for name, found in (controls | results).items()
}
for name, row in table.items():
    print(f"{name:24}" + "".join(f"{value:18.4f}" for value in row))
# LCM jumps to an estimate of the end at each step, which a denoiser that was not distilled for it blurs.
ours = torch.tensor([table[name] for name in SCHEDULERS if name != "lcm"]).amax(0)
print("\nworst of all but lcm   " + "".join(f"{value:18.4f}" for value in ours.tolist()))
assert (ours < torch.tensor(table["a Gaussian fitted"])).all()

figure = Figure(figsize=(10, 4.2), layout="constrained")
columns = {"data": truth, "ddim": results["ddim"], "dpmsolver++": results["dpmsolver++"], "flow": results["flow"]}
for ax, (name, found), i in zip(
    figure.subplots(2, 4).T.flat, ((n, f) for n, f in columns.items() for _ in SHAPES), [0, 1] * 4, strict=True
):
    ax.scatter(*found[i].T, s=2, linewidths=0, color="#8C8C8C" if name == "data" else ("#0072B2", "#D55E00")[i])
    ax.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=[], yticks=[], aspect="equal")
    title = "data" if name == "data" else f"{name}, {arguments.steps} steps"
    apart = "" if name == "data" else f"energy distance {table[name][i]:.4f}"
    ax.set_title("\n".join([title, apart] if i == 0 else [apart]), fontsize=9)
figure.savefig(arguments.out / "density.png", dpi=80, bbox_inches="tight", pad_inches=0.05)
print(f"wrote {arguments.out / 'density.png'}")
