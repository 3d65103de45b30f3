"""Waypoints past two disks, each passed above or below: a generator beside a regressor and a CVAE, by a fixed rule.

    python benchmarks/regdiff_waypoints.py --out benchmarks/studies/regdiff-waypoints.jsonl  # goes on where it ended
    python benchmarks/regdiff_waypoints.py --show benchmarks/studies/regdiff-waypoints.jsonl

The rule, the arms and what came out: benchmarks/studies/regdiff-waypoints.md. Every arm has the same trunk, batches,
optimiser, numbers of training steps and number of trials in the search.
"""

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regdiff import ConditionalDiffusion, make_scheduler

TRAINED, WAYPOINTS, RADIUS, LATENT = 50, 16, 0.22, 8
RATES, SEARCH_SEED, SEEDS, STEPS = (1e-3, 2e-3, 4e-3), 100, range(5), (1500, 5000)
#: arm -> the two values of its own option; with the rates, six trials for each.
ARMS: dict[str, tuple[Any, Any]] = {
    "regressor": ("l2", "l1"),
    "cvae": (0.01, 0.1),  # weight of the KL
    "flow": ("uniform", "min_snr"),
    "epsilon": ("uniform", "min_snr"),
    "sample": ("uniform", "min_snr"),
    "v_prediction": ("uniform", "min_snr"),
}
#: What v_prediction lacks: (what the trunk says, whose error counts), at a rate of 2e-3 and 1,500 steps.
CROSSED = tuple(itertools.product(("v", "sample", "skip"), ("v", "sample")))


def scenes(count: int) -> Tensor:
    """Start, goal and the centres of two disks (count, 4, 2)."""
    y = torch.rand(count, 2) * 0.4 - 0.2
    start = torch.stack([torch.full((count,), -0.95), y[:, 0]], dim=-1)
    goal = torch.stack([torch.full((count,), 0.95), y[:, 1]], dim=-1)
    centres = torch.tensor([[-0.42, 0.0], [0.42, 0.0]]) + (torch.rand(count, 2, 2) - 0.5) * torch.tensor([0.1, 0.3])
    return torch.cat([torch.stack([start, goal], dim=1), centres], dim=1)


def demonstrations(scene: Tensor) -> Tensor:
    """Waypoints (count, 16, 2), above or below each disk at random, some closer and some farther."""
    start, goal = scene[:, :1], scene[:, 1:2]
    along = torch.linspace(0, 1, WAYPOINTS)[None, :, None]
    path = start + along * (goal - start)
    x, straight = path[..., 0], path[..., 1]
    y = straight
    for disk in (scene[:, 2], scene[:, 3]):
        side = torch.where(torch.rand(len(scene), 1) < 0.5, -1.0, 1.0)
        share = (disk[:, :1] - start[..., 0]) / (goal - start)[..., 0]
        line = start[..., 1] + share * (goal - start)[..., 1]
        reach = disk[:, 1:] - line + side * (RADIUS + 0.1 + 0.08 * torch.rand(len(scene), 1))
        y = y + reach * torch.exp(-(((x - disk[:, :1]) / 0.3) ** 4))
    return torch.stack([x, y], dim=-1)


def success(scene: Tensor, path: Tensor) -> Tensor:
    """Whether a path, its waypoints joined by lines, avoids both disks and joins start and goal (count,)."""
    fine = F.interpolate(path.mT, size=16 * WAYPOINTS, mode="linear", align_corners=True).mT
    clear = (torch.cdist(fine, scene[:, 2:]) > RADIUS).all(2).all(1)
    return clear & ((path[:, [0, -1]] - scene[:, :2]).norm(dim=-1) < 0.1).all(1)


def way(scene: Tensor, path: Tensor) -> Tensor:
    """Which of four ways a path takes: above or below each disk (count,)."""
    nearest = (path[..., :1] - scene[:, None, 2:, 0]).abs().argmin(1)
    above = path[..., 1].gather(1, nearest) > scene[:, 2:, 1]
    return above[:, 0] * 2 + above[:, 1].long()


class Trunk(nn.Module):
    """A residual MLP from some numbers to waypoints: the same in every arm."""

    def __init__(self, inputs: int, outputs: int = 2 * WAYPOINTS, width: int = 256) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.leave = nn.Linear(width, outputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        h = self.enter(torch.cat([value.flatten(1) for value in inputs], dim=1))
        for layer in self.hidden:
            h = h + layer(F.silu(h))
        return self.leave(F.silu(h))


class Denoiser(nn.Module):
    """The trunk given noised waypoints and the time. `says` is how its output becomes v: itself, x_0, or with a skip.

    With "skip" x_0 = c_skip x + c_out F as in EDM for data of deviation 0.5 (Karras et al. 2022, table 1).
    """

    def __init__(self, says: str = "itself") -> None:
        super().__init__()
        self.trunk, self.says = Trunk(2 * WAYPOINTS + 8 + 2), says
        self.abar: Tensor
        abar = make_scheduler("ddim", TRAINED).alphas_cumprod  # pyright: ignore[reportAttributeAccessIssue]
        self.register_buffer("abar", abar.clone())

    def forward(self, sample: Tensor, timestep: Tensor, condition: Tensor) -> Tensor:
        angle = math.pi / 2 * timestep[:, None] / TRAINED
        out = self.trunk(sample, condition, angle.sin(), angle.cos()).view_as(sample)
        if self.says == "itself":
            return out
        signal, sigma = (values[timestep].sqrt().view(-1, 1, 1) for values in (self.abar, 1 - self.abar))
        clean = out
        if self.says == "skip":
            spread, s = 0.5, sigma / signal
            total = (s**2 + spread**2).sqrt()
            clean = spread**2 / total**2 * sample / signal + s * spread / total * out
        return (signal * sample - clean) / sigma


class Vae(nn.Module):
    """A conditional VAE: the trunk decodes (z, scene); an encoder of the same form reads (path, scene)."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.encoder = Trunk(2 * WAYPOINTS + 8, 2 * LATENT)
        self.decoder = Trunk(LATENT + 8)

    def loss(self, path: Tensor, scene: Tensor) -> Tensor:
        mean, logvar = self.encoder(path, scene).chunk(2, dim=1)
        z = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        kl = 0.5 * (mean**2 + logvar.exp() - 1 - logvar).sum(1).mean()
        return (self.decoder(z, scene) - path.flatten(1)).square().sum(1).mean() + self.weight * kl

    def answer(self, scene: Tensor) -> Tensor:
        return self.decoder(torch.randn(len(scene), LATENT), scene).unflatten(1, (WAYPOINTS, 2))


def arm_of(name: str, option: Any) -> tuple[nn.Module, Callable[..., Tensor], Callable[[Tensor], Tensor]]:
    """The module, its loss of (path, scene), and its answer to scenes."""
    if name == "regressor":
        trunk, error = Trunk(8), F.mse_loss if option == "l2" else F.l1_loss
        return (
            trunk,
            lambda path, scene: error(trunk(scene), path.flatten(1)),
            lambda scene: trunk(scene).unflatten(1, (WAYPOINTS, 2)),
        )
    if name == "cvae":
        vae = Vae(option)
        return vae, vae.loss, vae.answer
    if name == "flow":
        diffusion = ConditionalDiffusion(Denoiser(), make_scheduler("flow", TRAINED), weighting=option)
    elif name == "crossed":
        says, counted = option
        denoiser = Denoiser("itself" if says == "v" else str(says))
        scheduler = make_scheduler("ddim", TRAINED, prediction_type="v_prediction")
        options: dict[str, Any] = {}
        if counted == "sample":
            # x_0 = signal x - sigma v: all timesteps count alike in x_0 where min(SNR, cap) is the cap, here of 0.01.
            options = {"weighting": "min_snr", "snr_gamma": 0.01, "loss_fn": lambda a, b: 100.0 * (a - b) ** 2}
        diffusion = ConditionalDiffusion(denoiser, scheduler, eta=0.0, **options)
    else:
        scheduler = make_scheduler("ddim", TRAINED, prediction_type=name)
        diffusion = ConditionalDiffusion(Denoiser(), scheduler, eta=0.0, weighting=option)

    def answer(scene: Tensor) -> Tensor:
        return diffusion.sample(torch.randn(len(scene), WAYPOINTS, 2), scene, 10)

    return diffusion, diffusion.loss, answer


def trial(name: str, option: Any, rate: float, steps: int, seed: int) -> dict[str, float]:
    """Train an arm, and what 2,000 new scenes say of it."""
    torch.manual_seed(seed)
    module, loss_of, answer = arm_of(name, option)
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)
    for _ in range(steps):
        scene = scenes(256)
        loss = loss_of(demonstrations(scene), scene)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    module.eval()
    torch.manual_seed(10_000 + seed)
    with torch.no_grad():
        scene = scenes(2000)
        good = success(scene, answer(scene)).float().mean().item()
        few = scenes(200).repeat_interleave(16, 0)
        paths = answer(few)
        found = F.one_hot(way(few, paths), 4).bool() & success(few, paths)[:, None]
        ways = found.view(200, 16, 4).any(1).sum(1).float().mean().item()
    return {"success": round(good, 4), "ways": round(ways, 3)}


def keys(done: dict[tuple[Any, ...], dict[str, float]]) -> Iterator[tuple[Any, ...]]:
    """(arm, option, rate, steps, seed) of all trials in turn; the best of each search go on with five seeds."""
    for option, seed in itertools.product(CROSSED, range(3)):
        yield ("crossed", option, 2e-3, STEPS[0], seed)
    for steps, (name, options) in itertools.product(reversed(STEPS), ARMS.items()):
        if steps == STEPS[1] and name not in ("regressor", "cvae", "flow"):
            continue  # the rule does not ask
        search = [(name, option, rate, steps, SEARCH_SEED) for option in options for rate in RATES]
        yield from search
        best = max(search, key=lambda key: done[key]["success"])
        for seed in SEEDS:
            yield (*best[:4], seed)


def read(path: Path) -> dict[tuple[Any, ...], dict[str, float]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return {tuple(tuple(k) if isinstance(k, list) else k for k in row.pop("key")): row for row in rows}


def show(done: dict[tuple[Any, ...], dict[str, float]]) -> None:
    """Mean and 95 % interval (t of four degrees of freedom) over seeds; differences are paired by seed."""
    groups: dict[tuple[Any, ...], list[dict[str, float]]] = {}
    for key in sorted(done, key=str):
        if key[-1] != SEARCH_SEED:
            groups.setdefault(key[:4], []).append(done[key])
    for key, rows in groups.items():
        values = [row["success"] for row in rows]
        half = 2.776 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
        ways = statistics.mean(row["ways"] for row in rows)
        print(f"{key!s:60} success {statistics.mean(values):.3f} ± {half:.3f}, ways {ways:.2f}, n {len(rows)}")
    for steps in STEPS:
        of = {key[0]: [row["success"] for row in rows] for key, rows in groups.items() if key[3] == steps}
        for name in ("regressor", "cvae"):
            if name in of and "flow" in of and len(of[name]) == len(of["flow"]) > 1:
                apart = [a - b for a, b in zip(of["flow"], of[name], strict=True)]
                half = 2.776 * statistics.stdev(apart) / len(apart) ** 0.5
                print(f"{steps} steps, flow - {name}: {statistics.mean(apart):+.3f} ± {half:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("regdiff-waypoints.jsonl"))
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        show(read(options.show))
        return
    torch.set_num_threads(1)
    done = read(options.out)
    for key in keys(done):
        if key not in done:
            done[key] = trial(*key)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **done[key]}) + "\n")


if __name__ == "__main__":
    main()
