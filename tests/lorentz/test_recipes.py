"""Layers learn small tasks.

`HYPOTHESIS_PROFILE=nightly` trains with more seeds and at two rates (benchmarks/studies/lorentz.md). The Euclidean
twins solve the same tasks.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from nightly import NIGHTLY
from torch import Tensor, nn

import lorentz
import lorentz.nn as lnn

Batch = tuple[Tensor, Tensor]
TOKENS, WORDS, WIDTH = 16, 16, 32


def rings(scale: float = 1.0, centre: tuple[float, float] = (0.0, 0.0)) -> Batch:
    """Inside or outside of a circle: no linear map tells."""
    x = torch.randn(64, 2)
    return scale * x + torch.tensor(centre), (x.square().sum(-1) > 1.4).long()


class Enter(nn.Module):
    """Points at distance 1, as the documentation advises."""

    def forward(self, x: Tensor) -> Tensor:
        return lorentz.expmap0(x / x.shape[-1] ** 0.5)


class Residual(nn.Sequential):
    """Layers whose input is joined with their output."""

    def __init__(self, layers: Iterator[nn.Module]) -> None:
        super().__init__(*layers)
        self.join = lnn.LorentzResidual(learnable=True)

    def forward(self, x: Tensor) -> Tensor:
        for layer in list(self)[:-1]:
            x = self.join(x, layer(x))
        return x


def gelu() -> nn.Module:
    return lnn.LorentzActivation(nn.GELU())


def mlp(*first: nn.Module, magnitude: Any = "free") -> nn.Module:
    wide, narrow = (lnn.LorentzLinear(*sizes, magnitude=magnitude) for sizes in ((2, 32), (32, 16)))
    return nn.Sequential(Enter(), *first, wide, gelu(), narrow, lnn.LorentzMLR(16, 2))


def deep() -> nn.Module:
    layers = Residual(nn.Sequential(lnn.LorentzLinear(16, 16), gelu()) for _ in range(8))
    return nn.Sequential(Enter(), lnn.LorentzLinear(2, 16), layers, lnn.LorentzMLR(16, 2))


class Recipe(NamedTuple):
    """A task, a model of it, and how many steps of Adam it gets."""

    batch: Callable[[], Batch]
    model: Callable[[], nn.Module]
    steps: int = 400


RECIPES = {
    "linear": Recipe(rings, mlp),
    "bounded linear": Recipe(rings, lambda: mlp(magnitude="bounded")),
    "residual": Recipe(rings, deep),
    "batch norm": Recipe(lambda: rings(0.2, (1.0, -2.0)), lambda: mlp(lnn.LorentzBatchNorm(2)), 600),
}


@pytest.mark.parametrize("rate", (3e-3, 1e-2) if NIGHTLY else (3e-3,))
@pytest.mark.parametrize("seed", range(3 if NIGHTLY else 1))
@pytest.mark.parametrize("name", RECIPES)
def test_learns(name: str, seed: int, rate: float) -> None:
    """95 % of new data are told."""
    recipe = RECIPES[name]
    torch.manual_seed(seed)
    model = recipe.model()
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(1, recipe.steps + 1):
        x, target = recipe.batch()
        optimiser.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimiser.step()
        if step % 25 == 0:
            model.eval()
            with torch.no_grad():
                score = sum(
                    (model(x).argmax(1) == y).float().mean().item() for x, y in (recipe.batch() for _ in "1234")
                )
            model.train()
            if score > 4 * 0.97:
                return
    assert score >= 4 * 0.95
