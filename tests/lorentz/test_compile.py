"""torch.compile(fullgraph=True) on every operation.

The run-time shape checks of the other tests cannot be traced, so this module imports lorentz afresh (`plain`).
"""

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


def test_compiles_with_other_numbers_for_c_and_other_batch_sizes(plain: ModuleType) -> None:
    torch._dynamo.reset()
    x, y = plain.expmap0(torch.randn(2, 5, 4))
    compiled = torch.compile(lambda x, y, c: plain.pairwise_dist(x, y, c, exact=True), fullgraph=True, backend="eager")
    for c, n in ((0.5, 5), (1.0, 5), (2.0, 3), (0.7, 4)):  # numbers and sizes become symbols from the second one on
        torch.testing.assert_close(compiled(x[:n], y, c), plain.pairwise_dist(x[:n], y, c, exact=True))
