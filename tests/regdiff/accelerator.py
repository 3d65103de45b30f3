"""A pretended GPU: tensors say that they are on `cuda:0`, compute on the CPU, and what the host waits for is counted.

    with Accelerator() as gpu:
        model = model.to(DEVICE)
        loss(model(batch.to(DEVICE))).backward()
    assert not gpu.reads

Tensors of both devices in one operation are refused, and so are draws on one from a generator of the other. Numbers are
those of the CPU's kernels; autocast, compiled code, streams and memory are not pretended.
"""

from collections import Counter
from contextlib import ExitStack
from unittest.mock import patch
from weakref import WeakValueDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda:0")
_BELOW = torch.device("meta")  # what torch's own code sees: autograd refuses a device without a library

#: Operators that wait for a device: their result, or its shape, depends on values.
WAITING = (
    "_local_scalar_dense",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
)
WAITING += ("unique_consecutive", "bincount", "repeat_interleave")
INDEXING = ("index", "index_put", "index_put_", "_unsafe_index")


class Remote(torch.Tensor):
    """A tensor of the pretended device; `local` holds its values."""

    @staticmethod
    def __new__(cls, local):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            local.shape,
            local.stride(),
            dtype=local.dtype,
            device=_BELOW,
            requires_grad=local.requires_grad,
        )
        made.local = local.detach()
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    device, is_cuda, is_cpu, is_meta = DEVICE, True, False, False

    def data_ptr(self):
        return self.local.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("tensors of the accelerator are used within `Accelerator()` alone")

    def to(self, *args, **kwargs):
        # Torch's own compares with the device that it sees, and would copy what is there already.
        if any(isinstance(each, torch.device) and each == DEVICE for each in (*args, kwargs.get("device"))):
            dtype = next((each for each in args if isinstance(each, torch.dtype)), kwargs.get("dtype"))
            return self if dtype in (None, self.dtype) else super().to(dtype)
        return super().to(*args, **kwargs)

    def tolist(self):
        Accelerator.current.reads["tolist"] += 1
        return self.local.tolist()


class Generator(torch.Generator):
    """A generator that remembers its device."""

    known = WeakValueDictionary()  # operators get another object, of the same address

    def __new__(cls, device="cpu"):
        tensor = super().__new__(cls, "cpu")
        tensor.place = DEVICE if torch.device(device).type == "cuda" else torch.device("cpu")
        cls.known[tensor._cdata] = tensor
        return tensor

    device = property(lambda self: self.place)


class Event:
    """An event of a stream on which all is done at once."""

    def record(self):
        pass

    def synchronize(self):
        pass


def _pinned(tensor):
    pinned = tensor.detach()
    pinned.pinned = True
    return pinned


def _captured(function, arguments):
    """A graph: the function on the tensors that it was made with, which what it is called with is written over."""
    Accelerator.current.graphs += 1
    result = function(*arguments)

    def replay(*others):
        for tensor, other in zip(tree_leaves(arguments), tree_leaves(others), strict=True):
            tensor.copy_(other)
        return result.copy_(function(*arguments)).detach()

    return replay


class Accelerator(TorchDispatchMode):
    """Within it, `cuda` is there. `reads` counts, by operator, what makes the host wait for it; `graphs` its graphs."""

    def __init__(self):
        super().__init__()
        self.reads = Counter()
        self.graphs = 0

    def __enter__(self):
        Accelerator.current = self
        self.patches = ExitStack()
        for owner, name, value in (
            (torch, "Generator", Generator),
            (torch.Tensor, "pin_memory", _pinned),
            # What is made in inference mode has no version, which torch asks tensors of this kind for.
            (torch, "inference_mode", lambda mode=True: torch.set_grad_enabled(not mode)),
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "Event", Event),
            (torch.cuda, "get_rng_state", lambda *_: torch.zeros(16, dtype=torch.uint8)),
            (torch.cuda, "set_rng_state", lambda *_: None),
            (torch.backends.cuda, "is_built", lambda: True),
            (torch.backends.cudnn, "is_acceptable", lambda tensor: False),
            (torch.cuda, "current_stream", lambda: None),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch.cuda, "make_graphed_callables", _captured),
        ):
            self.patches.enter_context(patch.object(owner, name, value))
        return super().__enter__()

    def __exit__(self, *error):
        self.patches.close()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        remote = any(isinstance(tensor, Remote) for tensor in tensors)
        target = kwargs.get("device")
        here = remote if target is None else target.type != "cpu"
        if name == "copy_":
            here = isinstance(args[0], Remote)
        copies = name in ("_to_copy", "copy_")
        if remote:
            self._count_reads(name, args, kwargs, here)
            packs = name == "_pack_padded_sequence"  # whose lengths stay on the CPU
            indices = [id(index) for index in args[1]] if name in INDEXING else []
            mixed = [tensor for tensor in tensors if type(tensor) is torch.Tensor and tensor.ndim]
            transfers = [tensor for tensor in mixed if copies and here and not hasattr(tensor, "pinned")]
            if transfers or any(id(tensor) in indices for tensor in mixed):
                self.reads["to the accelerator"] += 1  # indices may lie on the CPU, and are sent
            if not copies and not packs and any(id(tensor) not in indices for tensor in mixed):
                raise AssertionError(f"{name}: mixes tensors of both devices")
        elif tensors and here and not any(hasattr(tensor, "pinned") for tensor in tensors):
            self.reads["to the accelerator"] += 1  # from memory that is not page-locked, that waits too
        for generator in (leaf for leaf in leaves if isinstance(leaf, torch._C.Generator)):
            if (Generator.known[generator._cdata].device == DEVICE) != here:
                raise AssertionError(f"{name}: draws on one device from a generator of the other")
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        if torch.Tag.inplace_view in func.tags and remote:  # the size of a tensor that torch sees
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
        args, kwargs = tree_map(lambda leaf: leaf.local if isinstance(leaf, Remote) else leaf, (args, kwargs))
        if func is torch.ops.aten.mm.dtype:  # which no CPU has
            func, args = torch.ops.aten.mm.default, tuple(each.to(args[2]) for each in args[:2])
        result = func(*args, **kwargs)
        if not here:
            return result
        if name == "_pack_padded_sequence":
            return Remote(result[0]), result[1]
        return self._wrapped(result, tensors)

    def _count_reads(self, name, args, kwargs, here):
        by_mask = name in INDEXING and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if (name in WAITING and kwargs.get("output_size") is None) or by_mask:
            self.reads[name] += 1
        if not here and not kwargs.get("non_blocking"):
            self.reads["to the CPU"] += 1

    @staticmethod
    def _wrapped(result, tensors):
        """Results on the device; what an operator wrote into stays the same object."""
        known = {id(tensor.local): tensor for tensor in tensors if isinstance(tensor, Remote)}

        def wrapped(leaf):
            return known[id(leaf)] if id(leaf) in known else Remote(leaf) if isinstance(leaf, torch.Tensor) else leaf

        return tree_map(wrapped, result)
