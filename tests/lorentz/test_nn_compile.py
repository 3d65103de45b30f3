"""Every layer through torch.compile(fullgraph=True), torch.export and vmap."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from layers import EXAMPLES
from nightly import NIGHTLY
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from unchecked import unchecked_lorentz


@pytest.fixture(scope="module")
def plain() -> Iterator[ModuleType]:
    """lorentz.nn as users import it: the run-time shape checks of the test run cannot be traced."""
    with unchecked_lorentz():
        yield importlib.import_module("lorentz.nn")


def build(lnn: ModuleType, name: str, count: int = 3) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer in eval mode and its arguments, `count` of each."""
    example, x = EXAMPLES[name], importlib.import_module("lorentz").expmap0(torch.randn(count, 5, 4), 0.7)
    return example.build(lnn, lnn.Curvature(0.7)).eval(), example.arguments(x)


def widened(x: Tensor) -> Tensor:
    """In float64: some gradients are small differences, of which two ways of computing them round differently."""
    return x.double() if x.is_floating_point() else x


@pytest.mark.parametrize("name", EXAMPLES)
def test_compiles_into_one_graph_with_its_backward(plain: ModuleType, name: str) -> None:
    torch._dynamo.reset()
    layer, arguments = build(plain, name)
    layer, arguments = layer.double(), tree_map_only(torch.Tensor, widened, arguments)
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="eager")):
        layer.zero_grad()
        output = run(*arguments)
        if output.requires_grad:
            output.square().sum().backward()
        results.append([output, *(p.grad for p in layer.parameters() if p.grad is not None)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", list(EXAMPLES)[:: 1 if NIGHTLY else 2])
def test_exports_with_a_free_batch_size(plain: ModuleType, name: str) -> None:
    layer, arguments = build(plain, name)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = tuple({0: batch} for _ in arguments)
    exported = torch.export.export(layer, arguments, dynamic_shapes=shapes).module()
    more = build(plain, name, 8)[1]
    torch.testing.assert_close(exported(*more), layer(*more), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's attention on a CPU has no batching rule
@pytest.mark.parametrize("name", EXAMPLES)
def test_vmap_is_the_batch(plain: ModuleType, name: str) -> None:
    layer, arguments = build(plain, name)
    if "masked" in name:  # the batch axis of the mask is mapped over, too
        expected = torch.stack([layer(x, mask) for x, mask in zip(*arguments, strict=True)])
    else:
        expected = layer(*arguments)
    torch.testing.assert_close(torch.vmap(layer)(*arguments), expected, rtol=1e-5, atol=1e-6)
