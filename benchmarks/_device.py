"""What bounds a step on the device that is present: rates of arithmetic and of memory, bytes moved."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from _harness import seconds

_FREE = ("view", "reshape", "transpose", "permute", "expand", "slice", "select", "unbind", "split", "detach", "alias")
_FREE += ("t.default", "as_strided", "unsqueeze", "squeeze", "empty", "new_empty", "_unsafe_view", "lift_fresh")
_FREE += ("_local_scalar_dense",)


def rates(device: torch.device, dtype: torch.dtype = torch.float32, repeats: int = 5) -> tuple[float, float]:
    """Best FLOP/s of a square matrix product and best byte/s of a copy (bytes read and written), measured here."""
    side, size = (8192, 2**28) if device.type == "cuda" else (1024, 2**25)
    a = torch.randn(side, side, device=device, dtype=dtype)
    x = torch.ones(size, device=device)
    y = torch.empty_like(x)
    a @ a, y.copy_(x)
    product = min(seconds(lambda: a @ a, device)[1] for _ in range(repeats))
    copy = min(seconds(lambda: y.copy_(x), device)[1] for _ in range(repeats))
    return 2 * side**3 / product, 2 * x.element_size() * size / copy


@dataclass
class Work:
    """What an operator did in all its calls: FLOP of matrix products and attention, bytes read and written."""

    calls: int = 0
    flop: int = 0
    bytes: int = 0


def _into_new(func: Any) -> Any:
    """The operator that makes a new tensor of what this one writes into its first: `addmm` for `addmm_`."""
    name = func.overloadpacket.__name__
    if name == "_addmm_activation":
        return torch.ops.aten.addmm
    return (
        getattr(torch.ops.aten, name.removesuffix("_"), func.overloadpacket)
        if name.endswith("_")
        else func.overloadpacket
    )


class Traffic(TorchDispatchMode):
    """The work of operators that compute, by `name_and_shapes` of their inputs; views and allocations are free."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[tuple[str, str], Work] = defaultdict(Work)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not str(func).removeprefix("aten.").startswith(_FREE):
            # What is only written is not read: what holds a result, and of a scatter all but the few numbers it writes.
            read = args[1:] if func in (torch.ops.aten.copy_.default, torch.ops.aten.scatter_.src) else args
            written = args[3] if func is torch.ops.aten.scatter_.src else result
            results = {argument.name for argument in func._schema.arguments if argument.is_out}
            read = (read, {name: value for name, value in (kwargs or {}).items() if name not in results})
            inputs, outputs = ([t for t in tree_iter(values) if isinstance(t, Tensor)] for values in (read, written))
            work = self.done[name_and_shapes(func._schema.name, [list(t.shape) for t in inputs])]
            work.calls += 1
            if count := flop_registry.get(_into_new(func)):
                work.flop += count(*args, **(kwargs or {}), out_val=result)
            # An expanded tensor is read once: count what it stores, not what it shows.
            if func in (torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default) and args[0].ndim > 1:
                work.bytes += 2 * result.nbytes  # a GPU first copies what is no bias of a single product
            work.bytes += sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in [*inputs, *outputs])
        return result

    def total(self) -> Work:
        """The work of all operators."""
        return Work(*(sum(column) for column in zip(*map(astuple, self.done.values()), strict=True)))


def name_and_shapes(name: str, shapes: list[Any]) -> tuple[str, str]:
    """An operator's name and the shapes of its tensors, single numbers left out and lists flattened.

    `Traffic` and torch's profiler agree on these.
    """

    def flat(nested: list[Any]) -> Iterator[list[int]]:
        for shape in nested:
            if shape and isinstance(shape[0], list):
                yield from flat(shape)
            elif shape:
                yield shape

    return name, str(list(flat(shapes)))


def longest(traffic: Traffic, profiled: Any, gpu: bool, rates: tuple[float, float]) -> list[dict[str, Any]]:
    """The five operators of a profile that took longest, beside the rates of arithmetic and of memory.

    Args:
        traffic: the ledger of an equal run.
        profiled: torch's profile, with shapes.
        gpu: whether the time of the device counts, not that of the CPU.
        rates: as `rates` gives them.
    """
    events = [  # of what computes; views and calls that only call others are not in the ledger
        event
        for event in profiled.key_averages(group_by_input_shape=True)
        if name_and_shapes(event.key, event.input_shapes) in traffic.done
    ]
    spent = [(e.self_device_time_total if gpu else e.self_cpu_time_total) * 1e-6 for e in events]
    rows = []
    for event, share in sorted(zip(events, spent, strict=True), key=lambda pair: -pair[1])[:5]:
        done = traffic.done[name_and_shapes(event.key, event.input_shapes)]
        rows.append(
            {
                "operator": event.key,
                "shapes": event.input_shapes,
                "calls": event.count,
                "share_of_step": share / sum(spent),
                "of_flop_rate": done.flop / max(share, 1e-9) / rates[0],
                "of_byte_rate": done.bytes / max(share, 1e-9) / rates[1],
            }
        )
    return rows
