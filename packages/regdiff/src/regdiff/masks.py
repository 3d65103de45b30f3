"""Masks for a variable number of registers: True marks a valid one, and whatever the others hold changes nothing."""

import inspect
from collections.abc import Sequence
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


def readable(values: Tensor) -> bool:
    """Whether values can be looked at: not on an accelerator, where it means waiting, nor traced, nor within vmap.

    Args:
        values: Any tensor.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        values.data_ptr()  # tensors within vmap have none
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
