"""What bounds a step on the device that is present: rates of arithmetic and of memory, bytes moved, bytes kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from _harness import seconds

_FREE = ("view", "reshape", "transpose", "permute", "expand", "slice", "select", "unbind", "split", "detach", "alias")
_FREE += ("t.default", "as_strided", "unsqueeze", "squeeze", "empty", "_unsafe_view", "lift_fresh")


def rates(device: torch.device, dtype: torch.dtype = torch.float32, repeats: int = 5) -> tuple[float, float]:
    """Best FLOP/s of a square matrix product and best byte/s of a copy (bytes read and written), measured here."""
    side, size = (8192, 2**28) if device.type == "cuda" else (2048, 2**25)
    a = torch.randn(side, side, device=device, dtype=dtype)
    x = torch.randn(size, device=device)
    y = torch.empty_like(x)
    a @ a, y.copy_(x)
    product = min(seconds(lambda: a @ a, device)[1] for _ in range(repeats))
    copy = min(seconds(lambda: y.copy_(x), device)[1] for _ in range(repeats))
    return 2 * side**3 / product, 2 * x.element_size() * size / copy


class Traffic(TorchDispatchMode):
    """Counts operators that compute, and the bytes of what each reads and writes (views and allocations are free)."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if not name.startswith(_FREE):
            self.operators += 1
            tensors = [t for t in tree_iter((args, kwargs, result)) if isinstance(t, Tensor)]
            # An expanded tensor is read once: count what it stores, not what it shows.
            self.bytes += sum(min(t.element_size() * t.numel(), t.untyped_storage().nbytes()) for t in tensors)
        return result


@contextmanager
def kept_for_backward() -> Iterator[list[int]]:
    """Bytes of the tensors that a forward pass keeps for its backward, each storage once."""
    found: list[int] = []
    seen: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in seen:
            seen[storage.data_ptr()] = t
            found.append(storage.nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield found
