"""torch.compile(fullgraph=True) on every operation.

The run-time shape checks of the other tests cannot be traced, so this module imports lorentz afresh (`plain`).
"""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Inputs = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_operations_compile_into_one_graph(
    plain: ModuleType, operations_of: Callable[[ModuleType], dict[str, Operation]], inputs: Inputs, part: int
) -> None:
    """Several at a time: a graph for each takes nearly twice as long."""
    torch._dynamo.reset()
    operations, arguments = list(operations_of(plain).values())[part::PARTS], inputs(0.8, torch.float32)

    def every(*arguments: Tensor) -> list[Tensor]:
        return [operation(*arguments) for operation in operations]

    compiled = torch.compile(every, fullgraph=True, backend="eager")
    assert len(operations) > 5
    torch.testing.assert_close(compiled(*arguments), every(*arguments))


def test_compiles_with_other_numbers_for_c_and_other_batch_sizes(plain: ModuleType) -> None:
    torch._dynamo.reset()
    x, y = plain.expmap0(torch.randn(2, 5, 4))
    compiled = torch.compile(lambda x, y, c: plain.pairwise_dist(x, y, c, exact=True), fullgraph=True, backend="eager")
    for c, n in ((0.5, 5), (1.0, 5), (2.0, 3), (0.7, 4)):  # numbers and sizes become symbols from the second one on
        torch.testing.assert_close(compiled(x[:n], y, c), plain.pairwise_dist(x[:n], y, c, exact=True))
