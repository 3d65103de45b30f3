"""An example of every layer of `lorentz.nn`, by which the laws of layers, dtypes and compilation run on all of them.

A new layer needs an entry here: `test_nn_laws.py` compares the examples with `lorentz.nn.__all__`.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import lorentz.nn as lnn

Arguments = Callable[[Tensor], tuple[Tensor, ...]]


class Masked(nn.Module):
    """Attention with a padding mask and an additive term."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        window = -0.1 * (torch.arange(x.shape[-2])[:, None] - torch.arange(x.shape[-2])).square().to(x.dtype)
        return self.attention(x, x, x, mask=mask, attn_bias=window)


class Strip(nn.Module):
    """A layer of images, on images (or videos: `axes` 2) one point wide."""

    def __init__(self, layer: nn.Module, axes: int = 1) -> None:
        super().__init__()
        self.layer, self.axes = layer, axes

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.axes):
            x = x.unsqueeze(-2)
        x = self.layer(x)
        for _ in range(self.axes):
            x = x.squeeze(-2)
        return x


def _neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and a graph with edges of weight 0, 1 and 2; the last node has no neighbour."""
    weights = torch.arange(x.shape[-2] ** 2).reshape(x.shape[-2], -1) % 3
    weights[-1] = 0
    return x, weights.to(torch.promote_types(x.dtype, torch.float32)).expand(*x.shape[:-1], x.shape[-2])


def _alone(x: Tensor) -> tuple[Tensor]:
    return (x,)


class Example(NamedTuple):
    """How a layer is made from the module `lorentz.nn` and a curvature, and called on points (*b, 5, 5)."""

    build: Callable[[ModuleType, Any], nn.Module]
    arguments: Arguments = _alone
    points: bool = True  # whether it takes points of dimension 4 to points of dimension 4

    @property
    def of_points(self) -> bool:
        """Whether points are all that it takes."""
        return self.arguments is _alone


EXAMPLES: dict[str, Example] = {
    "ExpMap0": Example(lambda lnn, c: lnn.ExpMap0(c), lambda x: (x[..., 1:],), points=False),
    "LogMap0": Example(lambda lnn, c: lnn.LogMap0(c), points=False),
    "LorentzEmbedding": Example(
        lambda lnn, c: lnn.LorentzEmbedding(9, 4, 0, c=c),
        lambda x: (torch.randint(9, x.shape[:-1]),),
        points=False,
    ),
    "LorentzLinear": Example(lambda lnn, c: lnn.LorentzLinear(4, 4, activation=torch.tanh, c=c)),
    "LorentzLinear bounded": Example(lambda lnn, c: lnn.LorentzLinear(4, 4, magnitude="bounded", c=c)),
    "LorentzConv2d": Example(lambda lnn, c: Strip(lnn.LorentzConv2d(4, 4, 3, padding=1, c=c)), lambda x: (x[...],)),
    "LorentzConv3d": Example(lambda lnn, c: Strip(lnn.LorentzConv3d(4, 4, 3, padding=1, c=c), 2), lambda x: (x[...],)),
    "LorentzPool2d": Example(lambda lnn, c: Strip(lnn.LorentzPool2d((2, 1), 1, c=c)), lambda x: (x[...],)),
    "LorentzPool2d max": Example(
        lambda lnn, c: Strip(lnn.LorentzPool2d((2, 1), 1, mode="max", c=c)), lambda x: (x[...],)
    ),
    "LorentzFlatten": Example(lambda lnn, c: lnn.LorentzFlatten(1, c=c), lambda x: (x[...],)),
    "LorentzGraphConv": Example(lambda lnn, c: lnn.LorentzGraphConv(4, 4, c=c), _neighbours),
    "LorentzPlaneLinear": Example(lambda lnn, c: lnn.LorentzPlaneLinear(4, 4, activation=torch.tanh, c=c)),
    "LorentzPlaneLinear angle": Example(lambda lnn, c: lnn.LorentzPlaneLinear(4, 4, scale="angle", c=c)),
    "LorentzRMSNorm": Example(lambda lnn, c: lnn.LorentzRMSNorm(4, c=c)),
    "LorentzRotary": Example(lambda lnn, c: lnn.LorentzRotary(4, c=c), lambda x: (x[...],)),
    "LorentzLayerNorm": Example(lambda lnn, c: lnn.LorentzLayerNorm(4, c=c)),
    "LorentzBatchNorm": Example(lambda lnn, c: lnn.LorentzBatchNorm(4, c=c)),
    "LorentzActivation": Example(lambda lnn, c: lnn.LorentzActivation(nn.GELU(), c=c)),
    "LorentzDropout": Example(lambda lnn, c: lnn.LorentzDropout(0.3, c=c)),
    "LorentzResidual": Example(
        lambda lnn, c: lnn.LorentzResidual(0.3, learnable=True, c=c), lambda x: (x, x.roll(1, -2))
    ),
    "LorentzMultiheadAttention": Example(
        lambda lnn, c: lnn.LorentzMultiheadAttention(4, 2, out_features=4, c=c), lambda x: (x, x, x)
    ),
    "LorentzMultiheadAttention rotary": Example(
        lambda lnn, c: lnn.LorentzMultiheadAttention(4, 2, out_features=4, rotary=10.0, c=c), lambda x: (x, x, x)
    ),
    "LorentzLinearAttention": Example(
        lambda lnn, c: lnn.LorentzLinearAttention(4, 2, out_features=4, c=c), lambda x: (x, x, x)
    ),
    "LorentzMultiheadAttention masked": Example(
        lambda lnn, c: Masked(lnn.LorentzMultiheadAttention(4, 2, head_dim=3, dropout=0.1, c=c)),
        lambda x: (x, torch.rand(*x.shape[:-2], 1, 1, x.shape[-2]) > 0.3),
        points=False,
    ),
    "LorentzMLR": Example(lambda lnn, c: lnn.LorentzMLR(4, 3, c=c), points=False),
}
OTHERS = {"Curvature": "the parameter of all layers", "LorentzContrastiveLoss": "a loss: test_nn_contrastive.py"}
"""Modules of `lorentz.nn` that are no layers, and why."""
POINTS = [name for name, example in EXAMPLES.items() if example.points]


def build(name: str, c: float | lnn.Curvature) -> nn.Module:
    """The layer of this name."""
    return EXAMPLES[name].build(lnn, c)


def call(name: str, layer: nn.Module, x: Tensor) -> Tensor:
    """The layer on x; a residual joins x with the next point, attention attends to x itself."""
    return layer(*EXAMPLES[name].arguments(x))
