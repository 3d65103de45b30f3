"""In which dtype a formula is evaluated, and in which it is returned."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from ._validation import check_curvature, check_scalar_like

__all__ = ["Precision", "Scalar", "asked", "check_curvature", "evaluate", "no_autocast", "precision"]

Precision = Literal["auto", "native", "float64"]
_PRECISIONS = get_args(Precision)
Scalar = float | int | Float[Tensor, "..."]

# Devices known to have float64; everywhere else "auto" stays native (Apple's MPS has none).
_FLOAT64_DEVICES = ("cpu", "cuda")
_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")

# What the innermost `precision` block asks for. torch.compile cannot read a ContextVar; it can read, and guard on, a
# thread's own attribute.
_asked: ContextVar[Precision | None] = ContextVar("lorentz.precision", default=None)
_asked_by_thread = threading.local()


def _get_asked() -> Precision | None:
    if torch.compiler.is_compiling():
        return getattr(_asked_by_thread, "value", None)
    return _asked.get()


def _set_asked(value: Precision | None) -> None:
    if not torch.compiler.is_compiling():
        _asked.set(value)
    _asked_by_thread.value = value


def _check_precision(value: object) -> None:
    if value not in _PRECISIONS:
        raise ValueError(f"precision: got {value!r}, expected 'auto', 'native' or 'float64'")


def asked(precision: Precision | None) -> Precision:
    """The argument of a call, or what the surrounding `precision` block says, or "auto"."""
    if precision is None:
        return _get_asked() or "auto"
    _check_precision(precision)
    return precision


@contextlib.contextmanager
def precision(value: Precision) -> Iterator[None]:
    """Choose the dtype lorentz computes in, for the calls inside the block that do not choose their own.

    "native" computes in the dtype of the inputs (half precision in float32), "float64" in float64; the result is
    rounded once, to the dtype of the inputs (under autocast half precision comes back as float32).
    "auto", as without a block, is each operation's own choice: float64 where accuracy needs it and the device has it,
    otherwise native. Every thread and every asyncio task has its own setting; blocks nest; it also decorates functions.
    Compiled functions follow the block they are called in (one compilation per setting). They see the last block that
    their thread entered: asyncio tasks that hold blocks open across an `await` pass `precision=` to compiled code.

    Args:
        value: "auto", "native" or "float64".

    Raises:
        ValueError: another value.

    Examples:
        >>> from lorentz.functional import dist, project
        >>> x, y = project(torch.tensor([[1000.0, 0.0], [1000.0, 0.1]]))
        >>> with precision("native"):
        ...     fast = dist(x, y)
        >>> torch.allclose(fast, dist(x, y))
        True
    """
    _check_precision(value)
    outer = _get_asked()
    _set_asked(value)
    try:
        yield
    finally:
        _set_asked(outer)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32."""
    return dtype if dtype == torch.float64 else torch.float32


def in_autocast(device_type: str) -> bool:
    """Whether autocast is on for `device_type`."""
    if torch.compiler.is_compiling():  # torch 2.10 cannot trace the question whether there is one
        return device_type in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device_type)
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def no_autocast(device_type: str) -> contextlib.AbstractContextManager:
    """Switch autocast off for `device_type`: hyperbolic formulas lose all meaning in half precision."""
    if in_autocast(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def working_dtypes(
    precision: Precision | None, tensors: tuple[Tensor, ...], auto: Precision = "float64"
) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in, never below float32, and the dtype to return.

    What is returned has the promoted dtype of the tensors, but half precision comes back as float32 under autocast, as
    from torch's own operators that run in float32. Where `asked(precision)` is "auto" it is the operation's choice
    `auto`.
    """
    result = tensors[0].dtype
    for tensor in tensors[1:]:
        if tensor.dtype != result:
            result = torch.promote_types(result, tensor.dtype)
    device_type = tensors[0].device.type
    native = at_least_float32(result)
    if result != native and in_autocast(device_type):
        result = native
    precision = asked(precision)
    if precision == "auto":
        precision = auto if device_type in _FLOAT64_DEVICES else "native"
    return (native if precision == "native" else torch.float64), result


def evaluate(
    kernel: Callable[..., Tensor],
    precision: Precision | None,
    c: Scalar,
    *tensors: Tensor,
    auto: Precision = "float64",
    axes: int = 1,
    fused: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Run `kernel(*tensors, c)` in the dtype `precision` asks for, autocast off, and cast the result back.

    Args:
        kernel: formula on tensors of one dtype.
        precision: see `working_dtypes`.
        c: number, or tensor that broadcasts against the tensors' axes before the last `axes`.
        tensors: checked by `spaces` or `vectors`.
        auto: what "auto" means for this operation.
        axes: how many last axes of the tensors are no batch axes.
        fused: the same kernel with a backward pass of its own, (wide, result, c, *tensors); torch.compile takes
            `kernel`.
    """
    check_curvature(c)
    if isinstance(c, Tensor) and c.ndim:
        check_scalar_like("c", c, axes, tensors)
    wide, result = working_dtypes(precision, tensors, auto)
    if fused is not None and not torch.compiler.is_compiling():
        with no_autocast(tensors[0].device.type):
            return fused(wide, result, c, *tensors)
    # Calls on small tensors cost what happens here: nothing is converted or entered that need not be.
    tensors = tuple(tensor if tensor.dtype == wide else tensor.to(wide) for tensor in tensors)
    if isinstance(c, Tensor) and c.dtype != wide:
        c = c.to(wide)
    with no_autocast(tensors[0].device.type):
        value = kernel(*tensors, c)
    return value if value.dtype == result else value.to(result)
