"""`dist` on a CUDA device in one kernel forward and one backward: float32 is read once, float64 stays in registers.

Off unless the environment variable LORENTZ_TRITON is 1 when lorentz is imported, since no card has run it yet. On CPUs
its values and gradients are tested by Triton's interpreter (TRITON_INTERPRET=1), and it is compiled for a card, where
roots and quotients are those of IEEE 754. What that leaves open: the last digits of `log` on the device, and the time
(`python benchmarks/lorentz_ops.py --what card`). The formulas are those of `_fused`, which also runs for other dtypes,
for vectors that broadcast or have more than 2,047 coordinates, and for one curvature per row.
"""

import os
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from ._precision import Scalar

_COLUMNS = 2048


@triton.jit
def _dot(a, b):
    return tl.sum(a * b, axis=1)[:, None]


@triton.jit
def _rows(pointer, stride, rows, columns, count, width):
    """Rows of float32 in float64, the time part and what is beyond the tensor as 0."""
    inside = (rows < count) & (columns > 0) & (columns < width)
    return tl.load(pointer + rows * stride + columns, mask=inside, other=0.0).to(tl.float64)


@triton.jit
def _measure(x, y, c):
    """`_fused._measure`."""
    h = 1.0 / c
    xx, yy, d = _dot(x, x), _dot(y, y), y - x
    dd = _dot(d, d)
    is_close = dd < tl.minimum(xx, yy)
    close = is_close.to(tl.float64)
    f = close * x - y
    xf = _dot(x, f)
    share = xf / tl.where(xx > 0, xx, 1.0)
    p = f - share * x
    pp = _dot(p, p)
    pp = tl.where(pp <= 2.0**-98 * tl.where(is_close, dd, yy), 0.0, pp)
    x0, y0 = tl.sqrt(xx + h), tl.sqrt(yy + h)
    xy, both = close * xx - xf, x0 * y0
    beyond = xy + h + both
    u = 0.5 * tl.where(xy < -h, c * (both - xy) - 1.0, dd / beyond + xx / beyond * (c * pp))
    return f, close, xx, yy, x0, y0, dd, xf, share, pp, u


@triton.jit
def _asinh_of_root(u):
    """asinh(sqrt(u)): a Taylor series where the logarithm would lose digits."""
    s = tl.sqrt(u)
    q = tl.minimum(u, 0.02)
    series = 35.0 / 1152.0 - 63.0 / 2816.0 * q
    series = 1.0 + q * (-1.0 / 6.0 + q * (3.0 / 40.0 + q * (-5.0 / 112.0 + q * series)))
    return tl.where(u < 0.02, s * series, tl.log(s + tl.sqrt(1.0 + u)))


@triton.jit
def _forward(x_at, y_at, c_at, to, x_stride, y_stride, count, width, R: tl.constexpr, N: tl.constexpr):
    rows = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    columns = tl.arange(0, N)[None, :]
    c = tl.load(c_at)
    x, y = _rows(x_at, x_stride, rows, columns, count, width), _rows(y_at, y_stride, rows, columns, count, width)
    f, close, xx, yy, x0, y0, dd, xf, share, pp, u = _measure(x, y, c)  # noqa: RUF059
    tl.store(to + rows, (2.0 / tl.sqrt(c) * _asinh_of_root(u)).to(tl.float32), mask=rows < count)


@triton.jit
def _backward(
    x_at, y_at, g_at, c_at, to_x, to_y, to_c, x_stride, y_stride, count, width,
    OF_C: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """`_fused.dist_backward` with `_fused._apart`."""
    rows = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    columns = tl.arange(0, N)[None, :]
    c = tl.load(c_at)
    x, y = _rows(x_at, x_stride, rows, columns, count, width), _rows(y_at, y_stride, rows, columns, count, width)
    g = tl.load(g_at + rows, mask=rows < count, other=0.0).to(tl.float64)
    f, close, xx, yy, x0, y0, dd, xf, share, pp, u = _measure(x, y, c)
    steps = (x0 + y0) * x0
    near = tl.where(close > 0, (dd - 2.0 * xf) / steps, y0 / x0)
    along = (close - 1.0 - share) * ((u + 1.0) * (2.0 / c)) - pp
    far, across = c * xx > 1.0, (pp > 0).to(tl.float64)
    sinh = 2.0 * tl.sqrt(u) * tl.sqrt(1.0 + u)
    positive = tl.where(sinh > 0, sinh, 1.0)
    scale = tl.where(sinh > 0, g * tl.sqrt(c) / positive, 0.0)
    gx = scale * tl.where(far, -(along / steps + across * share), near) * x + scale * tl.where(far, across, 1.0) * f
    inside, at = (rows < count) & (columns < width), rows * width + columns
    tl.store(to_x + at, gx.to(tl.float32), mask=inside)
    tl.store(to_y + at, (-(x0 / y0) * gx).to(tl.float32), mask=inside)
    if OF_C:
        gap = (xx - yy) / (x0 + y0)
        angle = tl.where(sinh > 0, (2.0 * u - 0.5 * gap * gap / (x0 * y0)) / c / positive, 0.0)
        tl.store(to_c + rows, g * (angle - _asinh_of_root(u) / c) / tl.sqrt(c), mask=rows < count)


def _has_memory(tensor: Tensor) -> bool:
    """False within vmap and of fake tensors."""
    try:
        return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.data_ptr() is not None
    except RuntimeError:
        return False


def suits(wide: torch.dtype, result: torch.dtype, c: Scalar, vectors: tuple[Tensor, ...]) -> bool:
    """Whether the kernels can take these ambient points, and the gradient behind them."""
    x, y = vectors[:2]
    tensors = (*vectors, c) if isinstance(c, Tensor) else vectors
    return (
        wide == torch.float64
        and (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
        and result == x.dtype == y.dtype == torch.float32
        and x.shape == y.shape
        and x.numel() > 0
        and x.shape[-1] < _COLUMNS
        and not (isinstance(c, Tensor) and (c.ndim or c.device != x.device))
        and all(_has_memory(tensor) for tensor in tensors)
    )


def _prepared(c: Scalar, *tensors: Tensor) -> tuple[list[Tensor], Tensor, tuple[int, ...], dict[str, Any]]:
    """Tensors as rows side by side, the curvature, how many rows and columns, and how many a program takes."""
    width = tensors[0].shape[-1]
    flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    flat = [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in flat]
    # In a tensor: numbers among the arguments of a kernel would be float32.
    number = c.detach() if isinstance(c, Tensor) else torch.full((), c, dtype=torch.float64, device=flat[0].device)
    number = number.double().reshape(1)
    block = triton.next_power_of_2(width)
    return flat, number, (len(flat[0]), width), {"R": max(1, 1024 // block), "N": block}


def dist_forward(x: Tensor, y: Tensor, c: Scalar) -> Tensor:
    """Distances (*b, 1) of ambient points."""
    (a, b), number, (count, width), block = _prepared(c, x, y)
    value = x.new_empty((*x.shape[:-1], 1))
    grid = (triton.cdiv(count, block["R"]),)
    with torch.cuda.device_of(x):
        _forward[grid](a, b, number, value, a.stride(0), b.stride(0), count, width, **block)
    return value


def dist_backward(of_c: bool, x: Tensor, y: Tensor, g: Tensor, c: Scalar) -> tuple[Tensor, ...]:
    """The gradients of x and y, and if `of_c` that of c in each row, in float64."""
    (a, b, g), number, (count, width), block = _prepared(c, x, y, g)
    gx, gy = x.new_empty(x.shape), x.new_empty(x.shape)
    gc = x.new_empty((*x.shape[:-1], 1), dtype=torch.float64) if of_c else gx
    grid = (triton.cdiv(count, block["R"]),)
    block["OF_C"] = of_c
    with torch.cuda.device_of(x):
        _backward[grid](a, b, g.contiguous(), number, gx, gy, gc, a.stride(0), b.stride(0), count, width, **block)
    return (gx, gy, gc) if of_c else (gx, gy)
