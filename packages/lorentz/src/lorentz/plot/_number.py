"""The curvature as a number: pictures and fits are made on the CPU, in float64, wherever the points are."""

from torch import Tensor

from lorentz._precision import Scalar, check_curvature


def as_number(c: Scalar) -> float:
    """c as a float.

    Raises:
        ValueError: c <= 0, or a tensor of more than one number.
    """
    if isinstance(c, Tensor) and c.numel() != 1:
        raise ValueError(f"c: got a tensor of shape {tuple(c.shape)}, expected one number: a picture has one curvature")
    number = float(c.detach().item() if isinstance(c, Tensor) else c)
    check_curvature(number)
    return number
