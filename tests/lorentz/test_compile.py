"""Every function and layer through torch.compile(fullgraph=True); every layer through torch.export and vmap.

The run-time shape checks of the other tests cannot be traced, so this module imports lorentz afresh (`plain`).
"""

import copy
import importlib
from types import ModuleType

import pytest
import torch
from functions import operations
from layers import EXAMPLES
from nightly import NIGHTLY
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

PARTS = 6


@pytest.fixture(autouse=True)
def _reset() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("part", range(PARTS))
def test_operations_compile_into_one_graph(plain: ModuleType, inputs, part: int) -> None:
    """Several at a time: a graph for each takes nearly twice as long."""
    chosen, arguments = list(operations(plain).values())[part::PARTS], inputs(0.8, torch.float32)

    def every(*arguments: Tensor) -> list[Tensor]:
        return [operation(*arguments) for operation in chosen]

    compiled = torch.compile(every, fullgraph=True, backend="eager")
    assert len(chosen) > 5
    torch.testing.assert_close(compiled(*arguments), every(*arguments))


def test_compiles_with_other_numbers_for_c_and_other_batch_sizes(plain: ModuleType) -> None:
    x, y = plain.expmap0(torch.randn(2, 5, 4))
    compiled = torch.compile(lambda x, y, c: plain.pairwise_dist(x, y, c, exact=True), fullgraph=True, backend="eager")
    for c, n in ((0.5, 5), (1.0, 5), (2.0, 3), (0.7, 4)):  # numbers and sizes become symbols from the second one on
        torch.testing.assert_close(compiled(x[:n], y, c), plain.pairwise_dist(x[:n], y, c, exact=True))


def build(name: str, count: int = 3) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer in eval mode and its arguments, `count` of each; called where `plain` is."""
    lnn, points = importlib.import_module("lorentz.nn"), importlib.import_module("lorentz").expmap0
    example = EXAMPLES[name]
    return example.build(lnn, lnn.Curvature(0.7)).eval(), example.arguments(points(torch.randn(count, 5, 4), 0.7))


def widened(x: Tensor) -> Tensor:
    """In float64: some gradients are small differences, of which two ways of computing them round differently."""
    return x.double() if x.is_floating_point() else x


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_layer_compiles_into_one_graph_with_its_backward(name: str) -> None:
    layer, arguments = build(name)
    if name == "LorentzBatchNorm":  # torch's AOT loses what is written into a buffer of one number of float64
        layer.train()
    else:
        layer, arguments = layer.double(), tree_map_only(torch.Tensor, widened, arguments)
    eager, traced = layer, copy.deepcopy(layer)
    results = []
    for module, run in ((eager, eager), (traced, torch.compile(traced, fullgraph=True, backend="aot_eager"))):
        for _ in range(2 if module.training else 1):
            output = run(*arguments)
        if output.requires_grad:
            output.square().sum().backward()
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        results.append([output, *gradients, *module.buffers()])
    close = {} if layer.training else {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(results[1], results[0], **close)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", list(EXAMPLES)[:: 1 if NIGHTLY else 2])
def test_a_layer_exports_with_a_free_batch_size(name: str) -> None:
    layer, arguments = build(name)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = tuple({0: batch} for _ in arguments)
    exported = torch.export.export(layer, arguments, dynamic_shapes=shapes).module()
    more = build(name, 8)[1]
    torch.testing.assert_close(exported(*more), layer(*more), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's attention on a CPU has no batching rule
@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", EXAMPLES)
def test_vmap_of_a_layer_is_the_batch(name: str) -> None:
    layer, arguments = build(name)
    if "masked" in name:  # the batch axis of the mask is mapped over, too
        expected = torch.stack([layer(x, mask) for x, mask in zip(*arguments, strict=True)])
    else:
        expected = layer(*arguments)
    torch.testing.assert_close(torch.vmap(layer)(*arguments), expected, rtol=1e-5, atol=1e-6)


def test_compiled_functions_follow_the_block_of_a_precision(plain: ModuleType) -> None:
    precision = importlib.import_module("lorentz").precision  # of the same import
    x = 1000.0 * torch.randn(20, 4)  # close points far out, where the two precisions differ
    x, y = plain.project(x), plain.project(x * (1.0 + 1e-4 * torch.randn(20, 4)))
    native, wide = plain.pairwise_dist(x, y, precision="native"), plain.pairwise_dist(x, y, precision="float64")

    def same(got: Tensor, expected: Tensor) -> bool:
        return torch.allclose(got, expected, rtol=1e-4, atol=0)  # compiled code may round otherwise

    assert not same(native, wide)

    def blocks(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        outer = plain.pairwise_dist(x, y)
        with precision("native"):
            first = plain.pairwise_dist(x, y)
            with precision("float64"):
                second = plain.pairwise_dist(x, y)
            return outer, first, second, plain.pairwise_dist(x, y)

    compiled = torch.compile(blocks, fullgraph=True, backend="eager")
    for got, expected in zip(compiled(x, y), (wide, native, wide, native), strict=True):
        assert same(got, expected)
    with precision("native"):
        assert same(compiled(x, y)[0], native)
    assert same(compiled(x, y)[0], wide)
