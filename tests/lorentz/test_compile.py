"""torch.compile(fullgraph=True) on every operation.

The run-time shape checks of the other tests cannot be traced, so this module imports lorentz afresh (`plain`).
"""

import importlib
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Inputs = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]


def test_compiles_into_one_graph(
    plain: ModuleType, operations_of: Callable[[ModuleType], dict[str, Operation]], inputs: Inputs, name: str
) -> None:
    torch._dynamo.reset()
    operation, arguments = operations_of(plain)[name], inputs(0.8, torch.float32)
    compiled = torch.compile(operation, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arguments), operation(*arguments))


def test_compiles_with_gradient_and_a_plain_number_for_c(plain: ModuleType) -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 5, requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return plain.dist(plain.expmap0(x, 0.3), plain.expmap0(x.flip(0), 0.3), 0.3).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad(loss(x), x)
    (got,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(got, expected)


def test_attention_module_compiles_under_autocast(plain: ModuleType) -> None:
    torch._dynamo.reset()
    nn = importlib.import_module("lorentz.nn")
    module = nn.LorentzMultiheadAttention(8, 2, c=nn.Curvature(0.5))
    x = plain.expmap0(torch.randn(2, 5, 8), 0.5)
    mask = torch.rand(2, 1, 1, 5) > 0.3
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x, x, x, mask=mask), module(x, x, x, mask=mask))


def test_compiles_with_other_numbers_for_c_and_other_batch_sizes(plain: ModuleType) -> None:
    torch._dynamo.reset()
    x, y = plain.expmap0(torch.randn(2, 5, 4))
    compiled = torch.compile(lambda x, y, c: plain.pairwise_dist(x, y, c, exact=True), fullgraph=True, backend="eager")
    for c, n in ((0.5, 5), (1.0, 5), (2.0, 3), (0.7, 4)):  # numbers and sizes become symbols from the second one on
        torch.testing.assert_close(compiled(x[:n], y, c), plain.pairwise_dist(x[:n], y, c, exact=True))
