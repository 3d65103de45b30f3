"""The origin of the hyperboloid, and whether a tensor holds points of it."""

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from ._precision import Scalar, at_least_float32, evaluate
from ._validation import vectors
from .maps import project


def origin(
    *size: int,
    c: Scalar = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "..."]:
    """The origin (1/sqrt(c), 0, ..., 0), repeated.

    Args:
        size: shape of the result, its last number d + 1 >= 2.
        c: see the conventions of `lorentz.functional`.
        dtype: floating-point dtype; None: torch's default.
        device: None: torch's default.

    Returns:
        Ambient points, differentiable in `c`.

    Raises:
        ValueError: `c` is a number <= 0 or does not fit, or the last number of `size` is below 2.
        TypeError: `c` is neither a number nor a floating-point tensor.

    Examples:
        >>> origin(2, 3, c=4.0)
        tensor([[0.5000, 0.0000, 0.0000],
                [0.5000, 0.0000, 0.0000]])
    """
    if not size or size[-1] < 2:
        raise ValueError(f"size: got {size}, expected a last number d + 1 >= 2, the time and the space coordinates")
    return project(torch.zeros(*size[:-1], size[-1] - 1, dtype=dtype, device=device), c)


def check_point(
    x: Float[Tensor, "*b n"], c: Scalar = 1.0, *, rtol: float | None = None, atol: float = 0.0
) -> Float[Tensor, "*b n"]:
    """Return x if it lies on the hyperboloid, x0 = sqrt(1/c + |x|^2); otherwise raise and say by how much it does not.

    The functions of this package recompute the time part and accept any; this is for points from elsewhere. It reads
    values: a GPU is waited for, and torch.compile and vmap cannot pass.

    Args:
        x: ambient points.
        c: see the conventions of `lorentz.functional`.
        rtol: allowed error of the time part relative to its true value; None is 16 eps of the dtype of `x`.
        atol: allowed absolute error on top.

    Returns:
        x itself.

    Raises:
        ValueError: a point is off the hyperboloid or not finite, `c` is a number <= 0, or a shape does not fit.
        TypeError: an argument is no floating-point tensor.

    Examples:
        >>> check_point(torch.tensor([1.25, 0.75]))
        tensor([1.2500, 0.7500])
        >>> check_point(torch.tensor([[1.25, 0.75], [1.5, 0.75]]))
        Traceback (most recent call last):
        ValueError: x: 1 of 2 points (shape (2, 2)) off the hyperboloid of curvature -1: time part 1.5 at ...
    """
    (x,) = vectors(least=2, x=x)
    rtol = 16.0 * torch.finfo(x.dtype).eps if rtol is None else rtol

    def excess(x: Tensor, c: Scalar) -> Tensor:
        time = hyp.time(x[..., 1:], c)
        error = (x[..., :1] - time).abs()
        on = (error <= atol + rtol * time) & torch.isfinite(x).all(-1, keepdim=True)  # NaN and inf are off
        return torch.cat([torch.where(on, 0.0, 1.0), time], dim=-1)

    wide = x.detach().to(at_least_float32(x.dtype))  # what is counted and printed is not rounded to half precision
    off, time = evaluate(excess, None, c, wide).unbind(-1)
    count = int(off.sum())
    if count:
        worst = (off * torch.nan_to_num((x.detach()[..., 0].to(time.dtype) - time).abs(), nan=torch.inf)).argmax()
        index = tuple(int(i) for i in torch.unravel_index(worst, off.shape))
        got, expected = float(x[(*index, 0)]), float(time[index])
        curvature = float(c) if not isinstance(c, Tensor) or not c.ndim else float(c.expand(*off.shape, 1)[(*index, 0)])
        raise ValueError(
            f"x: {count} of {off.numel()} points (shape {tuple(x.shape)}) off the hyperboloid of curvature "
            f"{-curvature:g}: time part {got:g} at index {index}, expected {expected:g}, off by {got - expected:.3g} "
            f"(relative {(got - expected) / expected:.3g}, allowed {rtol:.3g}); lorentz.project(x[..., 1:], c) mends it"
        )
    return x
