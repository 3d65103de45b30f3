"""Masks for a variable number of registers: True marks a valid one, and whatever the others hold changes nothing."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """`values` (b, n, ...) with zeros in place of invalid registers, even of nan; no gradient reaches those.

    Args:
        values: Any tensor whose first axes are those of the mask.
        mask: (b, n), or None, which returns `values` itself.

    Examples:
        >>> import torch
        >>> masked(torch.tensor([[1.0, float("nan")]]), torch.tensor([[True, False]]))
        tensor([[1., 0.]])
    """
    if mask is None:
        return values
    return torch.where(mask.view(*mask.shape, *(1,) * (values.ndim - mask.ndim)), values, values.new_zeros(()))


_checked: ContextVar[bool] = ContextVar("regdiff.checked", default=False)


@contextmanager
def checked() -> Iterator[None]:
    """Look at values on an accelerator too, as on a CPU: a debugging mode, in which each look waits for the device.

    A timestep out of range, which would end all work on a GPU, a start that is not finite, a row of a mask without a
    valid position and targets beyond what samples are clipped to are then named there. For this thread or asyncio task.

    Examples:
        >>> import regdiff
        >>> diffusion = regdiff.ConditionalDiffusion(lambda x, t, c: x, regdiff.make_scheduler("ddim", 10))
        >>> with regdiff.checked():
        ...     diffusion.loss(torch.zeros(1, 2), None, timesteps=[10])
        Traceback (most recent call last):
        ValueError: timesteps: got 10, expected integers in [0, 10), the trained ones
    """
    token = _checked.set(True)
    try:
        yield
    finally:
        _checked.reset(token)


def readable(values: Tensor) -> bool:
    """Whether values can be looked at: not traced, nor on an accelerator, where it means waiting, but when `checked`.

    Args:
        values: Any tensor.
    """
    return (values.is_cpu or _checked.get()) and is_concrete(values)


def is_concrete(values: Tensor) -> bool:
    """Whether a tensor has values, which one that is traced, on the meta device or within vmap has not.

    Args:
        values: Any tensor.
    """
    if torch.compiler.is_compiling() or values.is_meta:
        return False
    try:
        values.data_ptr()
    except RuntimeError:
        return False
    return True


def expect_mask(name: str, mask: Tensor, shape: Sequence[int]) -> None:
    """Refuse a mask that is not boolean or not of `shape`.

    Raises:
        ValueError: It is not.
    """
    if mask.shape != tuple(shape) or mask.dtype != torch.bool:
        raise ValueError(
            f"{name}: got {mask.dtype} of shape {tuple(mask.shape)}, expected bool of shape {tuple(shape)}, "
            "True at valid positions"
        )


def takes_mask(function: Any) -> bool:
    """Whether a callable or module has a keyword `mask`; True where nothing can be known.

    Args:
        function: A denoiser or a loss function.

    Examples:
        >>> takes_mask(lambda sample, timestep, condition: sample)
        False
    """
    try:
        # The class of every module has __call__(*args, **kwargs): forward knows better.
        parameters = inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters
    except (TypeError, ValueError):
        return True
    return "mask" in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
