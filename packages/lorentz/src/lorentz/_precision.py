"""In which dtype a formula is evaluated, and in which it is returned."""

import contextlib
import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Precision = Literal["auto", "native", "float64"]
Scalar = float | int | Float[Tensor, "..."]

# Devices known to have float64; everywhere else "auto" stays native (Apple's MPS has none).
_FLOAT64_DEVICES = ("cpu", "cuda")


def no_autocast(device_type: str) -> contextlib.AbstractContextManager:
    """Switch autocast off for `device_type`: hyperbolic formulas lose all meaning in half precision."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def working_dtypes(precision: Precision, tensors: tuple[Tensor, ...]) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in and the dtype to return; half precision is returned as float32."""
    result = torch.float32
    for tensor in tensors:
        result = torch.promote_types(result, tensor.dtype)
    if precision == "native":
        return result, result
    if precision == "float64":
        return torch.float64, result
    if precision == "auto":
        return (torch.float64 if tensors[0].device.type in _FLOAT64_DEVICES else result), result
    raise ValueError(f"precision: got {precision!r}, expected 'auto', 'native' or 'float64'")


def check_curvature(c: Scalar) -> None:
    """Refuse c <= 0 where that can be seen without reading a tensor back from its device."""
    if not isinstance(c, Tensor) and not (c > 0 and math.isfinite(c)):
        raise ValueError(f"c: got {c}, expected a finite number > 0 (the curvature is -c; geoopt's k is 1/c)")


def evaluate(kernel: Callable[..., Tensor], precision: Precision, c: Scalar, *tensors: Tensor) -> Tensor:
    """Run `kernel(*tensors, c)` in the dtype `precision` asks for, autocast off, and cast the result back."""
    check_curvature(c)
    wide, result = working_dtypes(precision, tensors)
    with no_autocast(tensors[0].device.type):
        curvature = c.to(wide) if isinstance(c, Tensor) else c
        return kernel(*(tensor.to(wide) for tensor in tensors), curvature).to(result)
