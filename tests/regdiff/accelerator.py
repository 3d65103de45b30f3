"""A pretended accelerator: tensors say that they are on another device, compute on the CPU, and count what is read."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy:0")  # one of which torch knows the name, and no library is loaded

#: Operations that wait for a device: their result, or its shape, depends on values.
WAITING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique", "unique", "bincount")


class Remote(torch.Tensor):
    """A tensor of the pretended device; `local` holds its values."""

    @staticmethod
    def __new__(cls, local):
        made = torch.Tensor._make_wrapper_subclass(
            cls, local.shape, local.stride(), dtype=local.dtype, device=DEVICE, requires_grad=local.requires_grad
        )
        made.local = local.detach()
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("tensors of the accelerator are used within `Accelerator()` alone")


class Accelerator(TorchDispatchMode):
    """Within it, tensors may be made on `DEVICE`, and `reads` counts the operations that would wait for it."""

    def __init__(self):
        super().__init__()
        self.reads = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        remote = any(isinstance(tensor, Remote) for tensor in tensors)
        target = kwargs.get("device")
        if remote and name in WAITING:
            self.reads[name] += 1
        if remote and target is not None and target.type == "cpu":
            self.reads["to the CPU"] += 1
        here = remote if target is None else target.type == DEVICE.type
        if tensors and not remote and here:
            self.reads["to the accelerator"] += 1  # from memory that is not pinned, that waits too
        packs = name == "_pack_padded_sequence"  # whose lengths stay on the CPU
        if (
            remote
            and target is None
            and not packs
            and any(type(tensor) is torch.Tensor and tensor.ndim for tensor in tensors)
        ):
            raise AssertionError(f"{name}: mixes tensors of both devices")
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(lambda leaf: leaf.local if isinstance(leaf, Remote) else leaf, (args, kwargs))
        result = func(*args, **kwargs)
        if not here:
            return result
        if packs:
            return Remote(result[0]), result[1]
        return tree_map(lambda leaf: Remote(leaf) if isinstance(leaf, torch.Tensor) else leaf, result)


def moved(module):
    """The module with its parameters and buffers on the pretended device."""
    for owner in module.modules():
        for name, value in list(owner._parameters.items()):
            if value is not None:
                owner._parameters[name] = torch.nn.Parameter(Remote(value.detach()), value.requires_grad)
        for name, value in list(owner._buffers.items()):
            if value is not None:
                owner._buffers[name] = Remote(value)
    return module
