"""Small tasks on which layers and the attention of the README are trained beside their Euclidean twins.

`python tests/lorentz/recipes.py` prints the table of benchmarks/studies/lorentz.md.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lorentz
import lorentz.nn as lnn

SEEDS = (0, 1, 2)
RATES = (3e-3, 1e-2)
SOLVED = 0.95
PAGES = Path(__file__).parents[2]

Batch = tuple[Tensor, ...]


class Recipe(NamedTuple):
    """A task, and two models of it.

    Args:
        task: one line for the table.
        batch: draws a batch; its last tensor is the target.
        ours, twin: make a model, which takes the other tensors of a batch.
        loss: of the model's output and the target.
        score: share of right answers.
        steps: at most so many steps of Adam.
    """

    task: str
    batch: Callable[[], Batch]
    ours: Callable[[], nn.Module]
    twin: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor] = lambda logits, target: F.cross_entropy(logits.mT, target)
    score: Callable[[Tensor, Tensor], Tensor] = lambda logits, target: (logits.argmax(-1) == target).float().mean()
    steps: int = 400


def train(
    recipe: Recipe, build: Callable[[], nn.Module], seed: int, rate: float, enough: float = 0.97
) -> tuple[float, int]:
    """The score on new data, and the step at which it passed `enough`, or the last."""
    torch.manual_seed(seed)
    model = build()
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    score = 0.0
    for step in range(1, recipe.steps + 1):
        *inputs, target = recipe.batch()
        optimiser.zero_grad()
        recipe.loss(model(*inputs), target).backward()
        optimiser.step()
        if step % 25 == 0:
            model.eval()
            with torch.no_grad():
                batches = [recipe.batch() for _ in range(4)]
                score = sum(recipe.score(model(*inputs), target).item() for *inputs, target in batches) / len(batches)
            model.train()
            if score > enough:
                break
    return score, step


def documented() -> type[nn.Module]:
    """The class `HyperbolicAttention` of the README of lorentz."""
    namespace: dict[str, Any] = {}
    text = (PAGES / "packages/lorentz/README.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, namespace)
        if "HyperbolicAttention" in namespace:
            return namespace["HyperbolicAttention"]
    raise AssertionError("the README has no class HyperbolicAttention")


class TorchAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Block(nn.Module):
    """A pre-norm transformer block around an attention."""

    def __init__(self, dim: int, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.norms = attention, nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


TOKENS, WORDS, WIDTH = 16, 16, 32


class Reverser(nn.Module):
    """Token and position, two blocks, a word for each token."""

    def __init__(self, attention: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, attention(WIDTH, 4)) for _ in range(2)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(words) + self.places.weight))


def reversed_words() -> Batch:
    words = torch.randint(WORDS, (32, TOKENS))
    return words, words.flip(1)


class Enter(nn.Module):
    """Points at distance 1, as the documentation advises."""

    def forward(self, x: Tensor) -> Tensor:
        return lorentz.expmap0(x / x.shape[-1] ** 0.5)


def rings() -> Batch:
    """Inside or outside of a circle: no linear map tells."""
    x = torch.randn(64, 2)
    return x, (x.square().sum(-1) > 1.4).long()


CENTRES = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


def blobs(noise: float = 0.3) -> Batch:
    """One of five centres, with noise."""
    target = torch.randint(5, (64,))
    return CENTRES[target] + noise * torch.randn(64, 8), target


def far_rings() -> Batch:
    """Inside or outside of a small circle away from the origin."""
    x, target = rings()
    return 0.2 * x + torch.tensor([1.0, -2.0]), target


def bars() -> Batch:
    """Images of a bar in one of four directions, somewhere, under noise."""
    target, place = torch.randint(4, (64,)), torch.randint(2, 6, (64, 2))
    along = torch.arange(-1, 2)
    steps = torch.tensor([[0, 1], [1, 0], [1, 1], [1, -1]])[target]
    rows, columns = (place.unsqueeze(-1) + steps.unsqueeze(-1) * along).unbind(1)
    image = 0.2 * torch.randn(64, 8, 8)
    image[torch.arange(64).unsqueeze(-1), rows, columns] += 2.0
    return image.unsqueeze(-1), target


def communities() -> Batch:
    """Four graphs of 16 nodes: what a node shows is noise, its two neighbours show its class."""
    order = torch.rand(4, 16).argsort(-1)
    target = (order // 4).long()
    same = (target.unsqueeze(-1) == target.unsqueeze(-2)).float() - torch.eye(16)
    shown = torch.eye(4)[target] + 0.5 * torch.randn(4, 16, 4)
    return shown, same, target


class GraphNet(nn.Module):
    """Two graph convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = lnn.LorentzGraphConv(4, 16), lnn.LorentzGraphConv(16, 16)
        self.between, self.classify = lnn.LorentzActivation(nn.GELU()), lnn.LorentzMLR(16, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.between(self.first(Enter()(x), adjacency))
        return self.classify(self.second(x, adjacency))


class PlainGraphNet(nn.Module):
    """The same with linear layers and means (Kipf and Welling 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.classify = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        mean = adjacency / adjacency.sum(-1, keepdim=True)
        return self.classify(mean @ self.second(F.gelu(mean @ self.first(x))))


class Pooled(nn.Module):
    """The centroid of an image of points."""

    def forward(self, x: Tensor) -> Tensor:
        points = x.flatten(-3, -2)
        return lorentz.centroid(points, points.new_ones(1, points.shape[-2])).squeeze(-2)


class ChannelsFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(-1, -3)


class Residual(nn.Module):
    """Eight layers; `join` puts the input of each beside its output."""

    def __init__(self, layers: Iterator[nn.Module], join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.join = nn.ModuleList(layers), join

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.join(x, layer(x))
        return x


def _lorentz_mlp(magnitude: Any = "free") -> nn.Sequential:
    return nn.Sequential(
        Enter(),
        lnn.LorentzLinear(2, 32, magnitude=magnitude),
        lnn.LorentzActivation(nn.GELU()),
        lnn.LorentzLinear(32, 16, magnitude=magnitude),
        lnn.LorentzMLR(16, 2),
    )


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 16), nn.Linear(16, 2))


def _deep(learnable: bool) -> nn.Module:
    def layer() -> nn.Module:
        return nn.Sequential(lnn.LorentzLinear(16, 16), lnn.LorentzActivation(nn.GELU()))

    layers = Residual((layer() for _ in range(8)), lnn.LorentzResidual(learnable=learnable))
    return nn.Sequential(Enter(), lnn.LorentzLinear(2, 16), layers, lnn.LorentzMLR(16, 2))


def _deep_twin() -> nn.Module:
    layers = Residual((nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(8)), torch.add)
    return nn.Sequential(nn.Linear(2, 16), layers, nn.Linear(16, 2))


def _rows(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


RECIPES = {
    "attention of README": Recipe(
        "reverse 16 tokens",
        reversed_words,
        lambda: Reverser(documented()),
        lambda: Reverser(TorchAttention),
        steps=800,
    ),
    "`LorentzLinear`, `LorentzActivation`": Recipe("inside or outside of a circle", rings, _lorentz_mlp, _mlp, _rows),
    '`LorentzLinear(magnitude="bounded")`': Recipe(
        "inside or outside of a circle", rings, lambda: _lorentz_mlp("bounded"), _mlp, _rows
    ),
    "`LorentzResidual`": Recipe("the same through 8 layers", rings, lambda: _deep(False), _deep_twin, _rows),
    "`LorentzResidual(learnable=True)`": Recipe(
        "the same through 8 layers", rings, lambda: _deep(True), _deep_twin, _rows
    ),
    "`LorentzBatchNorm`": Recipe(
        "inside or outside of a small circle away from the origin",
        far_rings,
        lambda: nn.Sequential(Enter(), lnn.LorentzBatchNorm(2), *_lorentz_mlp()[1:]),
        lambda: nn.Sequential(nn.BatchNorm1d(2), *_mlp()),
        _rows,
        steps=600,
    ),
    "`LorentzConv2d`": Recipe(
        "the direction of a bar in an image",
        bars,
        lambda: nn.Sequential(
            Enter(),
            lnn.LorentzConv2d(1, 16, 3),
            lnn.LorentzActivation(nn.GELU()),
            lnn.LorentzConv2d(16, 16, 3),
            lnn.LorentzActivation(nn.GELU()),
            Pooled(),
            lnn.LorentzMLR(16, 4),
        ),
        lambda: nn.Sequential(
            ChannelsFirst(),
            nn.Conv2d(1, 16, 3),
            nn.GELU(),
            nn.Conv2d(16, 16, 3),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 4),
        ),
        _rows,
    ),
    "`LorentzGraphConv`": Recipe(
        "the classes of nodes whose neighbours show them", communities, GraphNet, PlainGraphNet
    ),
    "`LorentzMLR`": Recipe(
        "five noisy directions",
        blobs,
        lambda: nn.Sequential(Enter(), lnn.LorentzMLR(8, 5)),
        lambda: nn.Linear(8, 5),
        _rows,
    ),
}


def table(recipes: dict[str, Recipe]) -> Iterator[str]:
    """The lines of the table: the lowest score over seeds and the median number of steps, at each rate."""
    for name, recipe in recipes.items():
        cells = []
        for build in (recipe.twin, recipe.ours):
            for rate in RATES:
                runs = [train(recipe, build, seed, rate, 0.99) for seed in SEEDS]
                cells.append(f"{min(score for score, _ in runs):.2f} ({sorted(step for _, step in runs)[1]})")
        yield f"| {name} | {recipe.task} | {' | '.join(cells)} |"


if __name__ == "__main__":
    named = sys.argv[1:]
    for line in table({name: recipe for name, recipe in RECIPES.items() if not named or any(n in name for n in named)}):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
