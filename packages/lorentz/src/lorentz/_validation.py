"""What every public function asks of its arguments: types, dtypes, devices, shapes, and numbers that a CPU has.

Reading a value of a GPU would make it wait, and compilers cannot: only `check_point` and `checked` do.
"""

import math
from contextvars import ContextVar
from numbers import Real
from typing import TypeGuard

import torch
from torch import Tensor

_checked: ContextVar[bool] = ContextVar("lorentz.checked", default=False)


class checked:
    """Check the values of points, tangent vectors and curvatures, too: a debugging mode.

    Refused at the call, with the argument's name: points off the hyperboloid (time last, another curvature, the time
    left out, NaN), points given to `expmap0`, a time part other than 0 given to `manifold.Lorentz.expmap0`, and c <= 0
    on any device. Outside of it the only values that are looked at are those of `c` and `temperature` on a CPU.
    Reading costs as much as the operations do and makes a GPU wait. Code under torch.compile or vmap, or on meta
    tensors, where values cannot be read, runs unchecked.

    As `torch.set_grad_enabled`: `with lorentz.checked():` for a block, `lorentz.checked()` from here on (in the first
    cell of a notebook, say), for this thread or asyncio task. Blocks nest.

    Args:
        mode: False switches the checks off.

    Examples:
        >>> import lorentz
        >>> x = lorentz.project(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), c=2.0)
        >>> with lorentz.checked():
        ...     lorentz.dist(x[0], x[1], c=1.0)
        Traceback (most recent call last):
        ValueError: x: 1 of 1 points (shape (3,)) off the hyperboloid of curvature -1: time part 2.34521 ...
    """

    def __init__(self, mode: bool = True) -> None:
        self._outer = _checked.get()
        _checked.set(mode)

    def __enter__(self) -> None:
        """Nothing is left to do."""

    def __exit__(self, *_: object) -> None:
        """Go back to the mode before."""
        _checked.set(self._outer)


def is_checked() -> bool:
    """Whether values are to be checked, and no compiler is at work."""
    return not torch.compiler.is_compiling() and _checked.get() and not torch.jit.is_tracing()


def described(tensor: Tensor) -> str:
    """Dtype and shape, as the messages give them."""
    return f"{str(tensor.dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}"


def is_number(value: object) -> TypeGuard[float]:
    """A real number of Python or numpy, not a bool."""
    return isinstance(value, (float, int, Real)) and not isinstance(value, bool)


def check_float(name: str, value: object) -> None:
    """Refuse what is not a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a torch.Tensor; wrap it in torch.as_tensor")
    if not value.is_floating_point():
        raise TypeError(f"{name}: got {described(value)}, expected floating point; call .float() on it")


def _check_numbers(name: str, value: Tensor, why: str) -> None:
    """Refuse numbers that are not finite and > 0 where they can be read: on a CPU, when `checked` on any device."""
    try:
        low, high = (value.item(),) * 2 if value.numel() == 1 else (m.item() for m in torch.aminmax(value.detach()))
    except RuntimeError:  # within vmap, of a fake or meta tensor
        return
    if not 0 < low <= high < math.inf:
        got = f"{low}" if low == high or low != low else f"numbers from {low:g} to {high:g}"
        raise ValueError(f"{name}: got {got}, expected finite numbers > 0 ({why})")


def check_positive(name: str, value: object, why: str) -> None:
    """Refuse a number that is not finite and > 0, and what is neither a number nor a floating-point tensor."""
    if isinstance(value, Tensor):
        check_float(name, value)
        readable = value.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.jit.is_tracing()
        if value.numel() and (readable or is_checked()):
            _check_numbers(name, value, why)
    elif not is_number(value):
        call = f"; call it: {name}()" if isinstance(value, torch.nn.Module) else ""
        raise TypeError(f"{name}: got {type(value).__name__}, expected a number > 0 or a floating-point tensor{call}")
    elif not 0 < value < math.inf:
        raise ValueError(f"{name}: got {value}, expected a finite number > 0 ({why})")


MEANING_OF_C = "the curvature is -c; geoopt's k is 1/c"
"""What c stands for, as the messages give it."""


def check_curvature(c: object) -> None:
    """Refuse c <= 0 where that can be seen without making a device wait."""
    check_positive("c", c, MEANING_OF_C)


def _raised(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def check_alike(**tensors: Tensor) -> None:
    """Refuse what is no floating-point tensor, and devices or dtypes that differ; half precision counts as float32."""
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        check_float(name, tensor)
        other = tensors[first]
        if tensor.device != other.device:
            raise ValueError(
                f"{name}: got {described(tensor)} on {tensor.device}, expected {other.device}, where {first} is"
            )
        if tensor.dtype != other.dtype and _raised(tensor.dtype) != _raised(other.dtype):
            raise TypeError(
                f"{name}: got {described(tensor)}, but {first} is a {described(other)}; convert one of them "
                "(only half precision and float32 mix)"
            )


def broadcast(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes broadcast."""
    axes = min(len(shape), len(other))
    pairs = zip(shape[len(shape) - axes :], other[len(other) - axes :], strict=True)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def check_batch(
    name: str, shape: tuple[int, ...], lead: tuple[int, ...], other: str, expected: tuple[int, ...]
) -> None:
    """Refuse leading axes `lead` (of `shape`) that do not broadcast against `expected`, those of `other`."""
    if not broadcast(lead, expected):
        raise ValueError(
            f"{name}: got shape {tuple(shape)}, whose leading axes {tuple(lead)} do not broadcast against "
            f"{tuple(expected)}, those of {other}"
        )


def vectors(axes: int = 1, least: int = 1, **named: Tensor) -> tuple[Tensor, ...]:
    """Check vectors of one dimension >= `least`, their last axis; of the `axes` last axes none is a batch axis."""
    check_alike(**named)
    first = next(iter(named))
    shape = named[first].shape
    for name, tensor in named.items():
        got = tensor.shape
        if len(got) < axes or got[-1] < least:
            kind = "space coordinate" if least == 1 else "time and at least one space coordinate"
            raise ValueError(
                f"{name}: got shape {tuple(got)}, expected at least {axes} axes, the last of length >= {least} ({kind})"
            )
        if got != shape:
            if got[-1] != shape[-1]:
                raise ValueError(
                    f"{name}: got shape {tuple(got)}, expected a last axis of length {shape[-1]} as that of {first}, "
                    f"{tuple(shape)}"
                )
            check_batch(name, got, got[:-axes], first, shape[:-axes])
    return tuple(named.values())


def spaces(axes: int = 1, **named: Tensor) -> tuple[Tensor, ...]:
    """Check ambient points or tangent vectors (see `vectors`) and return their space parts."""
    return tuple(tensor[..., 1:] for tensor in vectors(axes, 2, **named))


def check_scalar_like(name: str, value: Tensor, axes: int, tensors: tuple[Tensor, ...]) -> None:
    """Refuse a tensor of scalars that does not broadcast against the batch axes of `tensors`.

    Its own last `axes` axes have length 1: without them it would meet the coordinates, not the batch.
    """
    if any(size != 1 for size in value.shape[-axes:]):
        ones = "a last axis" if axes == 1 else f"last {axes} axes"
        raise ValueError(
            f"{name}: got shape {tuple(value.shape)}, expected a scalar or {ones} of length 1; "
            f"reshape it to {(*value.shape, *(1,) * axes)} for one value per leading axis"
        )
    for tensor in tensors:
        check_batch(name, value.shape, value.shape[:-axes], "the vectors", tensor.shape[:-axes])
        if value.ndim and value.device != tensor.device:
            raise ValueError(f"{name}: got {described(value)} on {value.device}, expected {tensor.device}")


def check_factor(name: str, value: object, tensors: tuple[Tensor, ...]) -> None:
    """Refuse what is neither a number nor a tensor of one number for every vector of `tensors`."""
    if isinstance(value, Tensor):
        check_float(name, value)
        check_scalar_like(name, value, 1, tensors)
    elif not is_number(value):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a number or a floating-point tensor")
