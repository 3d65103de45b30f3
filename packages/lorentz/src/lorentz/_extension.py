"""The compiled operations of `_extension.cpp`: which calls they take, and how these are packed.

A plain library called through ctypes knows addresses and sizes alone, so one build serves every torch.
"""

import ctypes
import math
import os
import platform
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ._precision import Scalar

DIST, LOGMAP, EXPMAP, CENTROID = range(4)
# By the dtypes of the numbers and of the arithmetic.
_KINDS = {(torch.float32, torch.float32): 0, (torch.float32, torch.float64): 1, (torch.float64, torch.float64): 2}
_VECTORS = ("AVX2", "AVX512")  # what it is compiled for
_ONE_THREAD = 2**18  # coordinates up to which starting others costs more than it gains
_MOST_AXES = 64  # of the array in `_extension.cpp`


@cache
def library() -> Callable[..., None] | None:
    """The compiled code, and None without it.

    LORENTZ_EXTENSION is 0 for none, or names another file than that of the wheel; it is read once.
    """
    named = os.environ.get("LORENTZ_EXTENSION")
    if named == "0" or (platform.machine() == "x86_64" and torch.backends.cpu.get_cpu_capability() not in _VECTORS):
        return None
    try:
        # Not `_extension.so`: Python would import that in place of this module.
        return ctypes.CDLL(named or str(Path(__file__).with_name("_compiled.so"))).lorentz_run
    except OSError:  # sources and pure wheels have none
        if named:
            raise
        return None


@cache
def _plain_keys() -> torch._C.DispatchKeySet:
    with torch.inference_mode(False):
        return torch._C._dispatch_keys(torch.empty(0))


def _is_plain(x: Tensor) -> bool:
    """Whether x is numbers in memory and no more: not within vmap, fake, negated when read, or known to be 0."""
    return (torch._C._dispatch_keys(x) | _plain_keys()) == _plain_keys()


def _is_dense(x: Tensor, axes: int) -> bool:
    """Whether the numbers of the last axes follow each other."""
    steps = [math.prod(x.shape[x.ndim - axis :]) for axis in range(axes)]
    return all(x.shape[-1 - axis] == 1 or x.stride(-1 - axis) == step for axis, step in enumerate(steps))


@lru_cache
def _tensor(c: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(c, dtype=dtype)


def run(
    operation: int, wide: torch.dtype, c: Scalar, vectors: tuple[Tensor, ...], *gradient: Tensor, of_c: bool = False
) -> tuple[Tensor, ...] | None:
    """The value of an operation; with its gradient those of the vectors and, if `of_c`, of c in every row.

    None without compiled code, for another device or dtype, and within vmap, a tracer or a mode that sees operators.
    """
    if (function := library()) is None:
        return None
    x, y = vectors
    kind, tensors = _KINDS.get((x.dtype, wide)), (*vectors, *gradient)
    if kind is None or any(tensor.dtype != x.dtype for tensor in tensors):
        return None
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return None
    if not all(map(_is_plain, (*tensors, c) if isinstance(c, Tensor) else tensors)):
        return None
    axes = 2 if operation == CENTROID else 1
    k, n, m = x.shape[-1], *((x.shape[-2], y.shape[-2]) if axes == 2 else (0, 0))
    c = c.to(wide) if isinstance(c, Tensor) else _tensor(c, wide)
    c = c.reshape(*(1,) * (axes - c.ndim), *c.shape)
    lead, leads = x.shape[:-axes], [tensor.shape[:-axes] for tensor in (*tensors, c)]
    # The usual call: rows one after the other, and one curvature.
    flat = c.ndim == axes and all(lead == own for own in leads[:-1]) and all(z.is_contiguous() for z in tensors)
    if not flat and len(lead := torch.broadcast_shapes(*leads)) > _MOST_AXES:
        return None
    kept: list[Tensor] = []  # what is alive during the call
    numbers: list[int] = []

    def add(tensor: Tensor, is_sum: bool = False) -> Tensor:
        if flat:
            strides = (math.prod(tensor.shape[-axes:]) if tensor.shape[:-axes] == lead else 0,)
        else:
            tensor = tensor if _is_dense(tensor, axes) else tensor.contiguous()
            strides = tensor.expand(*lead, *tensor.shape[-axes:]).stride()[:-axes] or (0,)
        kept.append(tensor)
        numbers.extend((tensor.data_ptr(), is_sum, *strides))
        return tensor

    def gradient_of(tensor: Tensor) -> Tensor:
        """Where rows share a vector, or centroids a point, they are added up in the dtype of the arithmetic."""
        is_sum = tensor.shape[:-axes] != lead or (tensor is x and m > 1)
        make = torch.zeros if is_sum else torch.empty
        return add(make(tensor.shape, dtype=wide if is_sum else x.dtype), is_sum)

    for tensor in (x, y, c, *gradient):
        add(tensor)
    shape = (math.prod(lead),) if flat else lead or (1,)
    if gradient:
        results = [gradient_of(x), gradient_of(y)]
        if of_c:
            results.append(add(torch.empty(*lead, *(1,) * axes, dtype=wide)))
        else:
            numbers.extend((0,) * (2 + len(shape)))
    else:
        results = [add(torch.empty(*lead, *((m, k) if axes == 2 else (1 if operation == DIST else k,)), dtype=x.dtype))]
    rows, threads = math.prod(lead), 1
    if rows * k * max(n, 1) > _ONE_THREAD and (not gradient or x.shape[:-axes] == y.shape[:-axes] == lead):
        threads = min(torch.get_num_threads(), rows)
    packed = (operation, bool(gradient), kind, threads, k, n, m, len(shape), *shape, *numbers)
    function((ctypes.c_int64 * len(packed))(*packed))
    return tuple(results)
