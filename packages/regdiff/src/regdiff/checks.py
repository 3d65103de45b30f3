"""Refusals of bad input, each with what was expected."""

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor


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


def expect_choice(name: str, value: object, choices: Any) -> None:
    """Refuse what is not among the values of a `Literal`.

    Raises:
        ValueError: It is not.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(map(repr, get_args(choices)))}")


def expect_finite(name: str, values: Tensor) -> None:
    """Refuse rows computed from features that are not finite; on the CPU alone, elsewhere asking waits for the device.

    Raises:
        ValueError: A value on the CPU is NaN or infinite.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return
    finite = values.isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        raise ValueError(
            f"features: the {name} of row {int(finite.int().argmin())} is not finite, so the features hold NaN, "
            "infinite or huge values (or the weights do); expected finite numbers at all valid positions"
        )
