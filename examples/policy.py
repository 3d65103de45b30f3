"""A policy (regdiff): sequences of actions from an observation, in the style of diffusion policy (Chi et al. 2023).

A point has to go from the left to the right past a disk. Half of the demonstrations pass it above and half below,
so the mean of the right answers runs into the disk. The observation is start, goal and disk; the answer is
16 waypoints, generated together by a small network. The control is the same network trained on the same
demonstrations to predict the waypoints by squared error. Prints how often each reaches the goal without touching the
disk, for several samplers and numbers of steps, and draws policy.png.

Quick: --train-steps 60 --scenes 64 --out out
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor, nn

from regdiff import ConditionalDiffusion, make_scheduler

TRAINED, WAYPOINTS, RADIUS = 50, 16, 0.3


def scenes(count: int) -> Tensor:
    """Start, goal and centre of the disk (count, 3, 2)."""
    start = torch.stack([torch.full((count,), -0.9), 0.6 * torch.rand(count) - 0.3], dim=-1)
    goal = torch.stack([torch.full((count,), 0.9), 0.6 * torch.rand(count) - 0.3], dim=-1)
    aside = 0.1 * torch.randn(count).clamp(-2, 2)  # so that all waypoints are in [-1, 1], as samples are
    disk = 0.5 * (start + goal) + torch.stack([0.4 * torch.rand(count) - 0.2, aside], dim=-1)
    return torch.stack([start, goal, disk], dim=1)


def demonstrations(scene: Tensor) -> Tensor:
    """Waypoints (count, 16, 2) that pass the disk above or below, at random, some closer and some farther."""
    start, goal, disk = scene.unsqueeze(2).unbind(1)
    along = torch.linspace(0, 1, WAYPOINTS)[None, :, None]
    straight = start + along * (goal - start)
    side = torch.where(torch.rand(len(scene), 1) < 0.5, -1.0, 1.0)
    reach = side * (RADIUS + 0.1 + 0.08 * torch.rand(len(scene), 1)) + (disk - straight)[:, WAYPOINTS // 2, 1:]
    bump = torch.exp(-(((straight - disk)[..., 0] / 0.45) ** 2)) * along[..., 0] * (1 - along[..., 0]) * 4
    return torch.stack([straight[..., 0], straight[..., 1] + reach * bump], dim=-1)


def success(scene: Tensor, path: Tensor) -> Tensor:
    """Whether a path, its waypoints joined by lines, avoids the disk and ends at the goal (count,)."""
    fine = F.interpolate(path.mT, size=16 * WAYPOINTS, mode="linear", align_corners=True).mT
    clear = (fine - scene[:, 2:]).norm(dim=-1).amin(1) > RADIUS
    return clear & ((path[:, -1] - scene[:, 1]).norm(dim=-1) < 0.1) & ((path[:, 0] - scene[:, 0]).norm(dim=-1) < 0.1)


class Network(nn.Module):
    """All waypoints at once from noised ones, the timestep and the scene."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.enter = nn.Linear(2 * WAYPOINTS + 6 + 2, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.leave = nn.Linear(width, 2 * WAYPOINTS)

    def forward(self, sample: Tensor, timestep: Tensor, condition: Tensor) -> Tensor:
        angle = math.pi / 2 * timestep[:, None] / TRAINED
        h = self.enter(torch.cat([sample.flatten(1), condition.flatten(1), angle.sin(), angle.cos()], dim=-1))
        for layer in self.hidden:
            h = h + layer(F.silu(h))
        return self.leave(F.silu(h)).unflatten(1, (WAYPOINTS, 2))


def fit(loss_of: object, parameters: list[Tensor], steps: int) -> None:
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.1)
    for _ in range(steps):
        scene = scenes(256)
        loss = loss_of(demonstrations(scene), scene)  # pyright: ignore[reportCallIssue]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()


def draw(ax: Axes, scene: Tensor, paths: Tensor, title: str) -> None:
    ax.add_patch(Circle(tuple(scene[2].tolist()), RADIUS, color="#D9D9D9"))
    right = success(scene.expand(len(paths), -1, -1), paths)
    for path, good in zip(paths, right.tolist(), strict=True):
        ax.plot(*path.T, "-", color="#0072B2" if good else "#D55E00", linewidth=1.0, alpha=0.7)
    ax.plot(*scene[0], "o", color="#333333", markersize=5)
    ax.plot(*scene[1], "*", color="#333333", markersize=9)
    ax.set(xlim=(-1.05, 1.05), ylim=(-0.8, 0.8), xticks=[], yticks=[], aspect="equal")
    ax.set_title(title, fontsize=10)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--train-steps", type=int, default=1500)
parser.add_argument("--scenes", type=int, default=500, help="scenes that the score is taken on")
parser.add_argument("--out", type=Path, default=Path())
arguments = parser.parse_args()
arguments.out.mkdir(parents=True, exist_ok=True)

torch.manual_seed(0)
policy = ConditionalDiffusion(Network(), make_scheduler("ddim", TRAINED, prediction_type="sample"), eta=0.0)
fit(policy.loss, list(policy.parameters()), arguments.train_steps)
regression = Network()


def answer(scene: Tensor) -> Tensor:
    """The control: the same network, asked once, without noise."""
    return regression(torch.zeros(len(scene), WAYPOINTS, 2), torch.zeros(len(scene), dtype=torch.int64), scene)


fit(lambda path, scene: F.mse_loss(answer(scene), path), list(regression.parameters()), arguments.train_steps)


@torch.no_grad()
def planned(scene: Tensor, name: str, steps: int) -> Tensor:
    sampler = policy.with_scheduler(make_scheduler(name, TRAINED, prediction_type="sample"))
    return sampler.sample(torch.randn(len(scene), WAYPOINTS, 2), scene, steps)


scene = scenes(arguments.scenes)
with torch.no_grad():
    rates = {"regression (control)": success(scene, answer(scene)).float().mean().item()}
rates["demonstrations"] = success(scene, demonstrations(scene)).float().mean().item()
for name in ("ddim", "dpmsolver++", "unipc"):
    for steps in (2, 5, 10):
        rates[f"{name}, {steps} steps"] = success(scene, planned(scene, name, steps)).float().mean().item()
print("\n".join(f"{name:24}{rate:8.1%} reach the goal" for name, rate in rates.items()))
best = max(rate for name, rate in rates.items() if "steps" in name)
assert arguments.train_steps < 1500 or best > rates["regression (control)"] + 0.3

figure = Figure(figsize=(10, 2.9), layout="constrained")
axes = figure.subplots(1, 3)
one, many = scene[0], scene[:1].expand(30, -1, -1)
with torch.no_grad():
    draw(axes[0], one, demonstrations(many), "demonstrations")
    draw(axes[1], one, answer(many), f"regression, {rates['regression (control)']:.0%} succeed")
    draw(axes[2], one, planned(many, "dpmsolver++", 10), f"diffusion, 10 steps, {rates['dpmsolver++, 10 steps']:.0%}")
figure.savefig(arguments.out / "policy.png", dpi=80, bbox_inches="tight", pad_inches=0.05)
print(f"wrote {arguments.out / 'policy.png'}")
