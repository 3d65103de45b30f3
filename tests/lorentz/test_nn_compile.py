"""Every layer through torch.compile(fullgraph=True), torch.export and vmap."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from unchecked import unchecked_lorentz

NAMES = (
    "enter",
    "leave",
    "embedding",
    "linear",
    "number",
    "bounded",
    "norm",
    "activation",
    "dropout",
    "residual",
    "attention",
    "masked",
    "mlr",
)


@pytest.fixture(scope="module")
def plain() -> Iterator[ModuleType]:
    """lorentz.nn as users import it: the run-time shape checks of the test run cannot be traced."""
    with unchecked_lorentz():
        yield importlib.import_module("lorentz.nn")


class Masked(nn.Module):
    """Attention with a padding mask and an additive term."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        window = -0.1 * (torch.arange(x.shape[-2])[:, None] - torch.arange(x.shape[-2])).square().to(x.dtype)
        return self.attention(x, x, x, mask=mask, attn_bias=window)


def build(lnn: ModuleType, name: str, count: int = 3) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer in eval mode and its arguments, `count` of each."""
    c = lnn.Curvature(0.7)
    made = {
        "enter": lambda: lnn.ExpMap0(c),
        "leave": lambda: lnn.LogMap0(c),
        "embedding": lambda: lnn.LorentzEmbedding(9, 4, 0, c=c),
        "linear": lambda: lnn.LorentzLinear(4, 6, activation=torch.relu, c=c),
        "number": lambda: lnn.LorentzLinear(4, 6, c=0.7),
        "bounded": lambda: lnn.LorentzLinear(4, 6, magnitude="bounded", c=c),
        "norm": lambda: lnn.LorentzLayerNorm(4, c=c),
        "activation": lambda: lnn.LorentzActivation(nn.GELU(), c=c),
        "dropout": lambda: lnn.LorentzDropout(0.3, c=c),
        "residual": lambda: lnn.LorentzResidual(learnable=True, c=c),
        "attention": lambda: lnn.LorentzMultiheadAttention(4, 2, out_features=4, dropout=0.1, c=c),
        "masked": lambda: Masked(lnn.LorentzMultiheadAttention(4, 2, head_dim=3, c=c)),
        "mlr": lambda: lnn.LorentzMLR(4, 3, c=c),
    }[name]()
    x = importlib.import_module("lorentz").expmap0(torch.randn(count, 5, 4), 0.7)
    others = {
        "enter": (x[..., 1:],),
        "embedding": (torch.randint(9, (count, 5)),),
        "residual": (x, x.roll(1, 0)),
        "attention": (x, x, x),
        "masked": (x, torch.rand(count, 1, 1, 5) > 0.3),
    }
    return made.eval(), others.get(name, (x,))


@pytest.mark.parametrize("name", NAMES)
def test_compiles_into_one_graph_with_its_backward(plain: ModuleType, name: str) -> None:
    torch._dynamo.reset()
    layer, arguments = build(plain, name)
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="eager")):
        layer.zero_grad()
        output = run(*arguments)
        if output.requires_grad:
            output.square().sum().backward()
        results.append([output, *(p.grad for p in layer.parameters() if p.grad is not None)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_exports_with_a_free_batch_size(plain: ModuleType, name: str) -> None:
    layer, arguments = build(plain, name)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = tuple({0: batch} for _ in arguments)
    exported = torch.export.export(layer, arguments, dynamic_shapes=shapes).module()
    more = build(plain, name, 8)[1]
    torch.testing.assert_close(exported(*more), layer(*more), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's attention on a CPU has no batching rule
@pytest.mark.parametrize("name", NAMES)
def test_vmap_is_the_batch(plain: ModuleType, name: str) -> None:
    layer, arguments = build(plain, name)
    if name == "masked":  # the batch axis of the mask is mapped over, too
        expected = torch.stack([layer(x, mask) for x, mask in zip(*arguments, strict=True)])
    else:
        expected = layer(*arguments)
    torch.testing.assert_close(torch.vmap(layer)(*arguments), expected, rtol=1e-5, atol=1e-6)
