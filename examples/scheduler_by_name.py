"""Another scheduler by name (regdiff): a small denoiser of our own, trained once, sampled by each scheduler that fits.

The condition is an axis in the plane, the sample one of its two directions: an answer in the middle is wrong. The table
shows what each scheduler needs and supports, and how far its samples are from the nearer of the two right answers; an
answer of zeros is 0.8 away.
"""

import argparse
import math

import torch
from torch import Tensor, nn

from regdiff import SCHEDULERS, ConditionalDiffusion, make_scheduler

TRAINED = 50
STEPS = (1, 3, 10, 50)


class Denoiser(nn.Module):
    """Any callable of (sample, timestep, condition) is a denoiser."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, sample: Tensor, timestep: Tensor, condition: Tensor) -> Tensor:
        angle = math.pi / 2 * timestep[:, None] / TRAINED
        return self.layers(torch.cat([sample, condition, angle.cos(), angle.sin()], dim=-1))


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Directions 0.8 long (count, 2), and a code of their axes (count, 2) that does not tell v from -v."""
    angle = 2 * math.pi * torch.rand(count)
    direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
    return 0.8 * direction, torch.stack([(2 * angle).cos(), (2 * angle).sin()], dim=-1)


def fit(diffusion: ConditionalDiffusion, model: nn.Module, steps: int = 1500) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)
    for _ in range(steps):
        loss = diffusion.loss(*draw(128))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def error(diffusion: ConditionalDiffusion, steps: int, first: int | None = None) -> float:
    """Mean distance to the nearer of the two directions; 0.8 for an answer of their mean.

    From all noise the scheduler chooses the timesteps; a truncated start lists them, evenly down from `first`.
    """
    target, condition = draw(2000)
    start = torch.randn_like(target)
    if first is None:
        sample = diffusion.sample(start, condition, steps)
    else:
        steps = min(steps, first + 1)
        timesteps = [(first + 1) * i // steps - 1 for i in range(steps, 0, -1)]
        sample = diffusion.sample(start, condition, timesteps=timesteps)
    return torch.minimum((sample - target).norm(dim=-1), (sample + target).norm(dim=-1)).mean().item()


def word(value: bool | str) -> str:
    return value if isinstance(value, str) else "yes" if value else "no"


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--prediction", default="v_prediction", choices=["epsilon", "sample", "v_prediction"])
parser.add_argument("--first", type=int, help="start at this timestep and not at the last one, 49")
arguments = parser.parse_args()

torch.manual_seed(0)
denoiser = Denoiser()
trained = ConditionalDiffusion(denoiser, make_scheduler("ddim", TRAINED, prediction_type=arguments.prediction), eta=0.0)
fit(trained, denoiser)

print(f"{'':18}{'adds noise':12}{'takes yours':12}" + "".join(f"{f'{k} steps':>10}" for k in STEPS))
for name, row in SCHEDULERS.items():
    if arguments.prediction not in row.prediction_types:
        print(f"{name:18}{word(row.stochastic):12}{word(row.own_noise):12}   predicts the {row.prediction_types[0]}")
        continue
    sampler = trained.with_scheduler(make_scheduler(name, TRAINED, prediction_type=arguments.prediction))
    errors = [error(sampler, steps, arguments.first) for steps in STEPS]
    print(f"{name:18}{word(row.stochastic):12}{word(row.own_noise):12}" + "".join(f"{e:10.3f}" for e in errors))
    assert errors[2] < errors[0]

# What does not fit is refused, and the message says why.
try:
    trained.with_scheduler(make_scheduler("flow", TRAINED))
except ValueError as refusal:
    print(f"\nrefused: {refusal}")

# A flow has another noise schedule and predicts something else: it needs a denoiser of its own.
other = Denoiser()
flow = ConditionalDiffusion(other, make_scheduler("flow", TRAINED))
fit(flow, other)
print(f"\n{'flow':42}" + "".join(f"{error(flow, steps):10.3f}" for steps in STEPS))
