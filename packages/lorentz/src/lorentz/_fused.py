"""`dist`, `logmap` and `expmap` with backward passes of their own: a third of the operators that autograd would run.

The formulas are those of `_hyperboloid`, arranged for few passes over the coordinates: a pass costs far more than
arithmetic on one number per row. The plain formulas remain what torch.compile traces and what second derivatives are
taken of.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _hyperboloid as hyp
from ._precision import Scalar
from ._series import asinh, asinhc_slope, polynomial

_BLOCK = 2**17  # coordinates worked on at a time on a CPU: the intermediate results of a block stay in its cache
# Taylor coefficients of d(theta/sinh theta)/d(cosh theta) in sinh^2(theta/2), and of d(sinh(s)/s)/d(s^2) in s^2.
_LOG_SLOPE = tuple(0.5 * n * (-4.0) ** n * math.factorial(n) ** 2 / math.factorial(2 * n + 1) for n in range(1, 11))
_LOG_SLOPE_LIMIT = 0.02
_SINHC_SLOPE = tuple(n / math.factorial(2 * n + 1) for n in range(1, 8))
_SINHC_SLOPE_LIMIT = 0.2

Vectors = tuple[Tensor, ...]


class Fused(NamedTuple):
    """An operation on space parts that `evaluate` runs through an autograd function of its own.

    Attributes:
        plain: kernel (*vectors, c) -> value, of differentiable operators.
        forward: (*vectors, c) -> the value, and numbers of each row that the backward pass needs again, (*b, k).
        backward: (of_c, gradient, *vectors, those numbers, c) -> gradients of the vectors, and if `of_c` that of c in
            each row.
    """

    plain: Callable[..., Tensor]
    forward: Callable[..., Vectors]
    backward: Callable[..., Vectors]

    def __call__(self, wide: torch.dtype, result: torch.dtype, c: Scalar, *vectors: Tensor) -> Tensor:
        """Compute in the dtype `wide`, return `result`."""
        value, *_ = _Function.apply(self, wide, result, c, *vectors)  # pyright: ignore[reportGeneralTypeIssues]
        return value


class _Function(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(of: Fused, wide: torch.dtype, result: torch.dtype, c: Scalar, *vectors: Tensor) -> Vectors:
        value, cache = _by_rows(of.forward, wide, c, vectors)
        return value.to(result), cache

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Vectors) -> None:
        ctx.of, ctx.wide, ctx.result, c, *vectors = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.number = None if isinstance(c, Tensor) else c
        operands = [c, *vectors] if isinstance(c, Tensor) else vectors
        ctx.count = len(operands)
        ctx.save_for_backward(*operands, output[1])
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        *operands, cache = ctx.saved_tensors
        none = (None,) * (3 if ctx.number is None else 4)
        if gradients[0] is None:
            return *none, *(None for _ in operands)
        if torch.is_grad_enabled():  # second derivatives are wanted
            return *none, *torch.func.vjp(_plain(ctx), *operands)[1](gradients[0])
        c, vectors = (operands[0], operands[1:]) if ctx.number is None else (ctx.number, operands)
        of_c = ctx.number is None and ctx.needs_input_grad[3]
        grads = _by_rows(partial(ctx.of.backward, of_c), ctx.wide, c, (gradients[0], *vectors, cache))
        targets = (*vectors, c) if of_c else vectors
        grads = [grad.sum_to_size(target.shape).to(target.dtype) for grad, target in zip(grads, targets, strict=True)]
        last = (grads.pop() if of_c else None,) if ctx.number is None else ()
        return *none, *last, *grads

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        operands = ctx.saved_tensors[: ctx.count]
        along = [
            torch.zeros_like(operand) if tangent is None else tangent
            for operand, tangent in zip(operands, tangents[-len(operands) :], strict=True)
        ]
        return torch.func.jvp(_plain(ctx), tuple(operands), tuple(along))[1], None


def _plain(ctx: Any) -> Callable[..., Tensor]:
    """The plain kernel as a function of tensors: of c, if that is one, and of the vectors."""

    def function(*operands: Tensor) -> Tensor:
        first, *rest = (operand.to(ctx.wide) for operand in operands)
        value = ctx.of.plain(*rest, first) if ctx.number is None else ctx.of.plain(first, *rest, ctx.number)
        return value.to(ctx.result)

    return function


def _by_rows(function: Callable[..., Vectors], wide: torch.dtype, c: Scalar, tensors: Vectors) -> Vectors:
    """`function(*tensors, c)` in the dtype `wide`; many rows on a CPU in blocks."""
    if isinstance(c, Tensor):
        c = c.to(wide)
    lead = tensors[-1].shape[:-1]
    same_lead = all(tensor.shape[:-1] == lead for tensor in tensors) and not (isinstance(c, Tensor) and c.ndim)
    width = max(tensor.shape[-1] for tensor in tensors)
    if not same_lead or tensors[0].device.type != "cpu" or math.prod(lead) * width <= 2 * _BLOCK:
        return function(*(tensor.to(wide) for tensor in tensors), c)
    blocks = (tensor.reshape(-1, tensor.shape[-1]).split(max(_BLOCK // width, 1)) for tensor in tensors)
    results = [function(*(part.to(wide) for part in parts), c) for parts in zip(*blocks, strict=True)]
    return tuple(torch.cat(parts).unflatten(0, lead) for parts in zip(*results, strict=True))


def _squared(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()


def _positive(xx: Tensor) -> Tensor:
    """|x|^2, but not 0: for quotients whose numerator is 0 too where it is."""
    return xx + torch.finfo(xx.dtype).tiny


def _zeroed(p: Tensor, ee: Tensor) -> Tensor:
    """|p|^2 of the part p of e across a line, 0 where it is rounding."""
    pp = _squared(p)
    return pp.masked_fill(hyp.is_rounding(pp, ee), 0.0)


class _Pair(NamedTuple):
    """Numbers of two points: dot products, and u = sinh^2(sqrt(c) dist / 2)."""

    close: Tensor  # 1 where y - x is shorter than x and y, else 0
    xx: Tensor
    yy: Tensor
    xy: Tensor
    xe: Tensor  # e = y - close x has the same part across x as y, and rounds less
    ee: Tensor
    pp: Tensor  # |p|^2, p the part of e across x
    u: Tensor


def _measure(x: Tensor, y: Tensor, c: Scalar) -> tuple[Tensor, _Pair]:
    """e and the numbers of the pair, Q/4 = u by the two forms of `_hyperboloid.separation`."""
    xx, yy, xy = _squared(x), _squared(y), hyp.dot(x, y)
    close = (2.0 * xy > torch.maximum(xx, yy)).to(x.dtype)
    e = torch.addcmul(y, close, x, value=-1)
    ee, xe = _squared(e), hyp.dot(x, e)
    pp = _zeroed(torch.addcmul(e, xe / _positive(xx), x, value=-1), ee)
    h = 1.0 / c
    yy0 = yy + h
    both = torch.sqrt(xx + h) * torch.sqrt(yy0) + h
    dd = torch.addcmul(ee, 1.0 - close, torch.sub(xx, xy, alpha=2.0))
    beyond = both + xy
    acute = torch.addcmul(dd / beyond, xx / beyond, pp * c)  # in this order nothing overflows before squares do
    obtuse = ((xx / both) * yy0 - xy) * c + yy / both
    return e, _Pair(close, xx, yy, xy, xe, ee, pp, 0.5 * torch.where(xy >= 0, acute, obtuse))


def _apart(of: _Pair, c: Scalar) -> tuple[Tensor, Tensor]:
    """a and b of y - (y0/x0) x = a (y - close x) + b x, and beside them those of x - (x0/y0) y: (*b, 2) each.

    The part along x is far shorter than e beyond radius 10: it has a formula of its own, that of `_hyperboloid.ahead`.
    """
    h = 1.0 / c
    squares = torch.cat([of.xx, of.yy], dim=-1)
    times = torch.sqrt(squares + h)
    steps = times * times.sum(-1, keepdim=True)
    is_close = of.close > 0
    # (y - close x).x and (x - close y).y
    dots = torch.where(is_close, torch.cat([of.xe, -(of.xe + of.ee)], dim=-1), of.xy)
    # y0 - x0 without cancellation: |y|^2 - |x|^2 = 2 x.e + |e|^2 where e = y - x.
    near = torch.where(is_close, torch.add(of.ee, dots, alpha=2.0) / steps, times.flip(-1) / times)
    some = _positive(squares)
    share = dots / some
    across = (of.pp > 0).to(times.dtype)
    along = (share - (1.0 - of.close)) * (of.u * (2.0 * h) + 2.0 * h) - of.pp * (of.xx / some)
    far = c * squares > 1.0
    b = torch.where(far, torch.addcmul(along / steps, across, share, value=-1), -near)
    return torch.where(far, across, 1.0), b


def _angle_of_c(of: _Pair, c: Scalar) -> Tensor:
    """sinh(theta) times the derivative of theta = sqrt(c) dist by c, at fixed space parts."""
    x0, y0 = torch.sqrt(of.xx + 1.0 / c), torch.sqrt(of.yy + 1.0 / c)
    gap = (of.xx - of.yy) / (x0 + y0)
    return (2.0 * of.u - 0.5 * gap * gap / (x0 * y0)) / c


def _over(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b > 0, a / b, 0.0)


def dist_forward(x: Tensor, y: Tensor, c: Scalar) -> Vectors:
    """2 asinh(sqrt(u)) / sqrt(c)."""
    _, of = _measure(x, y, c)
    return 2.0 / hyp.root(c) * torch.asinh(torch.sqrt(of.u)), torch.cat(torch.broadcast_tensors(*of), dim=-1)


def dist_backward(of_c: bool, g: Tensor, x: Tensor, y: Tensor, numbers: Tensor, c: Scalar) -> Vectors:
    """((y0/x0) x - y) sqrt(c) / sinh(theta), since cosh(theta) = c (x0 y0 - x.y); that of y alike."""
    of = _Pair(*numbers.split(1, dim=-1))
    sinh = 2.0 * torch.sqrt(of.u) * torch.sqrt(1.0 + of.u)
    scale = _over(-hyp.root(c) * g, sinh)
    (a, a2), (b, b2) = (both.split(1, dim=-1) for both in _apart(of, c))
    gx = torch.addcmul(scale * b * x, scale * a, torch.addcmul(y, of.close, x, value=-1))
    gy = torch.addcmul(scale * b2 * y, scale * a2, torch.addcmul(x, of.close, y, value=-1))
    if not of_c:
        return gx, gy
    length = torch.asinh(torch.sqrt(of.u)) / c
    return gx, gy, g * (_over(_angle_of_c(of, c), sinh) - length) / hyp.root(c)


def _shrinking(u: Tensor) -> Tensor:
    """theta/sinh(theta) at sinh^2(theta/2) = u."""
    return torch.where(u > 0, torch.asinh(torch.sqrt(u)) / (torch.sqrt(u) * torch.sqrt(1.0 + u)), 1.0)


def _shrinking_slope(value: Tensor, u: Tensor) -> Tensor:
    """The derivative of `_shrinking` by cosh(theta)."""
    small = u < _LOG_SLOPE_LIMIT
    v = torch.where(small, 1.0, u)
    return torch.where(small, polynomial(_LOG_SLOPE, u), (1.0 - value * (1.0 + 2.0 * v)) / (4.0 * v) / (1.0 + v))


def logmap_forward(x: Tensor, y: Tensor, c: Scalar) -> Vectors:
    """theta/sinh(theta) (y - cosh(theta) x), and the time part x.v/x0."""
    e, of = _measure(x, y, c)
    factor = _shrinking(of.u)
    less = 2.0 * of.u + (1.0 - of.close)  # cosh(theta) - close
    v = torch.addcmul(factor * e, -factor * less, x)
    v0 = (factor * of.xe - factor * less * of.xx) / torch.sqrt(of.xx + 1.0 / c)
    return torch.cat([v0, v], dim=-1), torch.cat(torch.broadcast_tensors(*of), dim=-1)


def logmap_backward(of_c: bool, g: Tensor, x: Tensor, y: Tensor, numbers: Tensor, c: Scalar) -> Vectors:
    """v = f (y - C x) with C = cosh(theta) and f = theta/sinh(theta), both functions of C = c (x0 y0 - x.y)."""
    of = _Pair(*numbers.split(1, dim=-1))
    h = 1.0 / c
    x0 = torch.sqrt(of.xx + h)
    f = _shrinking(of.u)
    less = 2.0 * of.u + (1.0 - of.close)
    e = torch.addcmul(y, of.close, x, value=-1)
    g0, g = g[..., :1], g[..., 1:]
    w = torch.addcmul(g, g0 / x0, x)  # the gradient of v with that of its time part x.v/x0 in it
    wx, we = hyp.dot(w, x), hyp.dot(w, e)
    slope = _shrinking_slope(f, of.u)
    by_cosh = slope * we - (slope * less + f) * wx
    (a, a2), (b, b2) = (both.split(1, dim=-1) for both in _apart(of, c))
    turn = -c * by_cosh
    v0 = (f * of.xe - f * less * of.xx) / x0
    own = g0 / x0  # what the time part x.v/x0 adds to the gradient of x is own (v - (v0/x0) x)
    gx = torch.addcmul(-f * (less + of.close) * w, turn * a + own * f, e)
    gx = torch.addcmul(gx, turn * b - own * (f * less + v0 / x0), x)
    gy = torch.addcmul(f * w, turn * a2, torch.addcmul(x, of.close, y, value=-1))
    gy = torch.addcmul(gy, turn * b2, y)
    if not of_c:
        return gx, gy
    return gx, gy, by_cosh * _angle_of_c(of, c) + 0.5 * own * v0 / x0 * h * h


def expmap_forward(x: Tensor, v: Tensor, c: Scalar) -> Vectors:
    """cosh(s) x + sinh(s)/s v with s = sqrt(c) |v|_L, |v|_L^2 by `_hyperboloid.tangent_norm_squared`."""
    xx, vv, xv = _squared(x), _squared(v), hyp.dot(x, v)
    pp = _zeroed(torch.addcmul(v, xv / _positive(xx), x, value=-1), vv)
    xx0 = xx + 1.0 / c
    q = torch.addcmul(vv / xx0, xx / xx0, pp * c)
    s = torch.sqrt(q)
    cosh = torch.cosh(s).clamp_max(torch.finfo(s.dtype).max)  # what is too far for the dtype is inf, never inf - inf
    sinhc = torch.where(s > 0, torch.sinh(s) / s, 1.0)
    y = torch.addcmul(x, torch.where(s > 0, torch.tanh(s) / s, 1.0), v) * cosh
    y0 = torch.sqrt(_squared(y) + 1.0 / c)
    return torch.cat([y0, y], dim=-1), torch.cat(torch.broadcast_tensors(xx, xv, pp, q, cosh, sinhc, y0), dim=-1)


def expmap_backward(of_c: bool, g: Tensor, x: Tensor, v: Tensor, numbers: Tensor, c: Scalar) -> Vectors:
    """y = cosh(s) x + sinhc(s) v, both functions of q = s^2 = c (|v|^2 - (x.v)^2/x0^2)."""
    xx, xv, pp, q, cosh, sinhc, y0 = numbers.split(1, dim=-1)
    h = 1.0 / c
    xx0 = xx + h
    own = g[..., :1] / y0
    w = torch.addcmul(torch.addcmul(g[..., 1:], own * cosh, x), own * sinhc, v)  # y0 = sqrt(|y|^2 + 1/c)
    small = q < _SINHC_SLOPE_LIMIT
    slope = torch.where(small, polynomial(_SINHC_SLOPE, q), (cosh - sinhc) / torch.where(small, 1.0, 2.0 * q))
    by_q = hyp.dot(w, x) * (0.5 * sinhc) + hyp.dot(w, v) * slope
    # v - (x.v/x0^2) x = a v + b x; far out it is the part across x and a little along it.
    far, across = c * xx > 1.0, (pp > 0).to(xx.dtype)
    a = torch.where(far, across, 1.0)
    b = torch.where(far, (h / xx0 - across) * xv / _positive(xx), -xv / xx0)
    turn = 2.0 * c * by_q
    gv = torch.addcmul(torch.addcmul(sinhc * w, turn * a, v), turn * b, x)
    turn = -turn * xv / xx0
    gx = torch.addcmul(torch.addcmul(cosh * w, turn * a, v), turn * b, x)
    if not of_c:
        return gx, gv
    return gx, gv, by_q * (q - (xv / xx0).square()) / c - 0.5 * own * h * h


def logmap0_forward(x: Tensor, c: Scalar) -> Vectors:
    """asinh(r)/r x with r = sqrt(c) |x|."""
    factor = hyp.range_factor(x)
    length = torch.linalg.vector_norm(x * factor, dim=-1, keepdim=True)
    r = hyp.root(c) * length / factor
    share = torch.where(r > 0, asinh(r) / r, 1.0)
    return share * x, torch.cat(torch.broadcast_tensors(factor, length, r, share), dim=-1)


def logmap0_backward(of_c: bool, g: Tensor, x: Tensor, numbers: Tensor, c: Scalar) -> Vectors:
    """With u = x/|x| the gradient is f g + r f' (u.g) u, f = asinh(r)/r."""
    factor, length, r, f = numbers.split(1, dim=-1)
    slope = asinhc_slope(f, r)
    u = x * _over(factor, length)
    along = slope * hyp.dot(u, g)
    gx = torch.addcmul(f * g, along, u)
    return (gx, along * (length / factor) * (0.5 / c)) if of_c else (gx,)
