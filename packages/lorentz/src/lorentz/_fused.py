"""`dist`, `logmap`, `expmap`, `centroid` with backward passes of their own: half of the operators of autograd.

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

from . import _extension
from . import _hyperboloid as hyp
from ._precision import Precision, Scalar, evaluate
from ._series import asinh, asinhc_slope, polynomial

_BLOCK = 2**17  # coordinates worked on at a time on a CPU: the intermediate results of a block stay in its cache
# Taylor coefficients of d(theta/sinh theta)/d(cosh theta) in sinh^2(theta/2), and of d(sinh(s)/s)/d(s^2) in s^2.
_LOG_SLOPE = tuple(0.5 * n * (-4.0) ** n * math.factorial(n) ** 2 / math.factorial(2 * n + 1) for n in range(1, 11))
_LOG_SLOPE_LIMIT = 0.02
_SINHC_SLOPE = tuple(n / math.factorial(2 * n + 1) for n in range(1, 8))
_SINHC_SLOPE_LIMIT = 0.2

Vectors = tuple[Tensor, ...]


class Fused(NamedTuple):
    """An operation on ambient vectors that `evaluate` runs through an autograd function of its own.

    Attributes:
        plain: kernel (*vectors, c) -> value, of differentiable operators.
        forward: (*vectors, c) -> the value, and numbers of each row that the backward pass needs again, (*b, 1).
        backward: (of_c, *vectors, gradient, those numbers, c) -> gradients of the vectors, and if `of_c` that of c in
            each row.
        sets: True for sets of points and their weights, whose last two axes are no batch axes.
        compiled: its number in `_extension`, None for none.

    `forward` and `backward` get copies of the vectors whose time part is 0: sums over all coordinates are those over
    space, and what is made of such vectors needs no padding.
    """

    plain: Callable[..., Tensor]
    forward: Callable[..., Vectors]
    backward: Callable[..., Vectors]
    sets: bool = False
    compiled: int | None = None

    def __call__(self, wide: torch.dtype, result: torch.dtype, c: Scalar, *vectors: Tensor) -> Tensor:
        """Compute in the dtype `wide`, return `result`."""
        return _Function.apply(self, wide, result, c, *vectors)[0]  # pyright: ignore[reportIndexIssue]

    def evaluate(self, precision: Precision | None, c: Scalar, *vectors: Tensor, auto: Precision = "float64") -> Tensor:
        """The operation in the dtype that `precision` asks for."""
        return evaluate(self.plain, precision, c, *vectors, auto=auto, axes=1 + self.sets, fused=self)


def of_spaces(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel on space parts as one on ambient vectors."""
    return lambda *operands: kernel(*(x[..., 1:] for x in operands[:-1]), operands[-1])


class _Function(torch.autograd.Function):
    generate_vmap_rule = True

    @classmethod
    def apply(cls, *operands: Any) -> Any:
        """Without torch's own, which binds the operands to names, for as long as a hundred rows take."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*operands)
        return super(torch.autograd.Function, cls).apply(*operands)  # pyright: ignore[reportAttributeAccessIssue]

    @staticmethod
    def forward(of: Fused, wide: torch.dtype, result: torch.dtype, c: Scalar, *vectors: Tensor) -> Vectors:
        if of.compiled is not None and (done := _extension.run(of.compiled, wide, c, vectors)) is not None:
            return done  # and no numbers: the backward pass begins with the vectors
        value, *numbers = _by_rows(of, of.forward, wide, c, vectors)
        return value.to(result), *numbers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Vectors) -> None:
        ctx.of, ctx.wide, ctx.result, c, *vectors = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.number = None if isinstance(c, Tensor) else c
        operands = [c, *vectors] if isinstance(c, Tensor) else vectors
        ctx.count, ctx.numbers = len(operands), len(output) - 1
        ctx.save_for_backward(*operands, *output[1:])
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        operands, numbers = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        none = (None,) * (3 if ctx.number is None else 4)
        if gradients[0] is None:
            return *none, *(None for _ in operands)
        if torch.is_grad_enabled():  # second derivatives are wanted
            return *none, *torch.func.vjp(_plain(ctx), *operands)[1](gradients[0])
        c, vectors = (operands[0], operands[1:]) if ctx.number is None else (ctx.number, operands)
        of_c = ctx.number is None and ctx.needs_input_grad[3]
        of, wide, grads = ctx.of, ctx.wide, None
        if not numbers:
            grads = _extension.run(of.compiled, wide, c, vectors, gradients[0], of_c=of_c)
            numbers = () if grads is not None else _by_rows(of, of.forward, wide, c, vectors)[1:]
        if grads is None:
            grads = _by_rows(of, partial(of.backward, of_c), wide, c, vectors, gradients[0], *numbers)
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
        return torch.func.jvp(_plain(ctx), tuple(operands), tuple(along))[1], *(None,) * ctx.numbers


def _plain(ctx: Any) -> Callable[..., Tensor]:
    """The plain kernel as a function of tensors: of c, if that is one, and of the vectors."""

    def function(*operands: Tensor) -> Tensor:
        first, *rest = (operand.to(ctx.wide) for operand in operands)
        value = ctx.of.plain(*rest, first) if ctx.number is None else ctx.of.plain(first, *rest, ctx.number)
        return value.to(ctx.result)

    return function


def _by_rows(
    of: Fused, function: Callable[..., Vectors], wide: torch.dtype, c: Scalar, vectors: Vectors, *others: Tensor
) -> Vectors:
    """`function(*vectors without time, *others, c)` in the dtype `wide`; many rows on a CPU in blocks."""
    if isinstance(c, Tensor):
        c = c.to(wide)

    def run(*parts: Tensor) -> Vectors:
        spaces = [part.to(wide, copy=True) for part in parts[:count]]
        for space in spaces:
            space[..., 0].zero_()
        return function(*spaces, *(part.to(wide) for part in parts[count:]), c)

    tensors, count = (*vectors, *others), 1 if of.sets else len(vectors)
    lead, width = vectors[0].shape[:-1], vectors[0].shape[-1]
    same_lead = all(tensor.shape[:-1] == lead for tensor in tensors) and not (isinstance(c, Tensor) and c.ndim)
    if of.sets or not same_lead or vectors[0].device.type != "cpu" or math.prod(lead) * width <= 2 * _BLOCK:
        return run(*tensors)
    blocks = (tensor.reshape(-1, tensor.shape[-1]).split(max(_BLOCK // width, 1)) for tensor in tensors)
    results = [run(*parts) for parts in zip(*blocks, strict=True)]
    return tuple(torch.cat(parts).unflatten(0, lead) for parts in zip(*results, strict=True))


# Below, products whose result is new are changed in place: an array of its own costs more than the arithmetic.


def _squared(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()


def _add(total: Tensor, factor: Tensor, vector: Tensor, value: float = 1.0) -> Tensor:
    """Add value factor vector to the total in place, which vmap has no rule for."""
    add = Tensor.addcmul if torch._C._are_functorch_transforms_active() else Tensor.addcmul_
    return add(total, factor, vector, value=value)


def _positive(xx: Tensor) -> Tensor:
    """|x|^2, but not 0: for quotients whose numerator is 0 too where it is."""
    return xx + torch.finfo(xx.dtype).tiny


def _zeroed(p: Tensor, ee: Tensor) -> Tensor:
    """|p|^2 of the part p of e across a line, 0 where it is rounding."""
    pp = _squared(p)
    return pp.masked_fill_(hyp.is_rounding(pp, ee), 0.0)


class _Pair(NamedTuple):
    """Numbers of two points: dot products, and u = sinh^2(sqrt(c) dist / 2)."""

    close: Tensor  # 1 where y - x is shorter than x and y, else 0
    xx: Tensor
    yy: Tensor
    x0: Tensor
    y0: Tensor
    dd: Tensor
    xf: Tensor  # f = close x - y has the same part across x as -y, and rounds less
    share: Tensor  # xf / xx
    pp: Tensor  # |p|^2, p = f - share x the part across x
    u: Tensor


def _measure(x: Tensor, y: Tensor, c: Scalar) -> tuple[Tensor, _Pair]:
    """f and the numbers of the pair; 2u = Q/2 is free of cancellation for any angle and distance.

    With b = c (x0 y0 + x.y) + 1 it is (c |d|^2 + c^2 |x ^ d|^2)/b, and c (x0 y0 - x.y) - 1 where b could cancel.
    """
    xx, yy = _squared(x), _squared(y)
    d = y - x
    dd = _squared(d)
    is_close = dd < torch.minimum(xx, yy)
    close = is_close.to(x.dtype)
    f = (close * x).sub_(y)
    xf = hyp.dot(x, f)
    share = xf / _positive(xx)
    pp = _zeroed(_add(d.copy_(f), share, x, -1.0), torch.where(is_close, dd, yy))
    h = 1.0 / c
    x0, y0 = torch.sqrt(xx + h), torch.sqrt(yy + h)
    xy = (close * xx).sub_(xf)
    both = x0 * y0
    beyond = xy + h + both
    acute = torch.addcmul(dd / beyond, xx / beyond, hyp.scaled(pp, c))  # in this order nothing overflows before both
    obtuse = hyp.scaled(both - xy, c) - 1.0
    return f, _Pair(close, xx, yy, x0, y0, dd, xf, share, pp, 0.5 * torch.where(xy < -h, obtuse, acute))


def _apart(of: _Pair, c: Scalar) -> tuple[Tensor, Tensor]:
    """a and b of (y0/x0) x - y = a f + b x; x - (x0/y0) y is x0/y0 times it.

    The part along x is far shorter than f beyond radius 10: it has a formula of its own, that of `_hyperboloid.ahead`.
    """
    steps = (of.x0 + of.y0).mul_(of.x0)
    # y0 - x0 without cancellation: |y|^2 - |x|^2 = |f|^2 - 2 x.f where f = x - y.
    near = torch.where(of.close > 0, torch.sub(of.dd, of.xf, alpha=2.0) / steps, of.y0 / of.x0)
    along = torch.addcmul(-of.pp, (of.close - 1.0).sub_(of.share), hyp.scaled(of.u + 1.0, 2.0 / c))
    across = (of.pp > 0).to(along.dtype)
    far = hyp.scaled(of.xx, c) > 1.0
    b = torch.where(far, torch.addcmul(along.div_(steps), across, of.share).neg_(), near)
    return torch.where(far, across, 1.0), b


def _combined(a: Tensor, x: Tensor, *more: Tensor) -> Tensor:
    """a x + b y + ... of rows, with their factors in front."""
    total = a * x
    for factor, vector in zip(more[::2], more[1::2], strict=True):
        total = _add(total, factor, vector)
    return total


def _angle_of_c(of: _Pair, c: Scalar) -> Tensor:
    """sinh(theta) times the derivative of theta = sqrt(c) dist by c, at fixed space parts."""
    gap = (of.xx - of.yy) / (of.x0 + of.y0)
    return (2.0 * of.u - 0.5 * gap * gap / (of.x0 * of.y0)) / c


def _over(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return (a / b).masked_fill_(b == 0, 0.0)


def dist_forward(x: Tensor, y: Tensor, c: Scalar) -> Vectors:
    """2 asinh(sqrt(u)) / sqrt(c)."""
    _, of = _measure(x, y, c)
    return torch.asinh(torch.sqrt(of.u)).mul_(2.0 / hyp.root(c)), *of


def dist_backward(of_c: bool, x: Tensor, y: Tensor, g: Tensor, *numbers: Any) -> Vectors:
    """((y0/x0) x - y) sqrt(c) / sinh(theta), since cosh(theta) = c (x0 y0 - x.y); that of y is -x0/y0 times it."""
    of, c = _Pair(*numbers[:-1]), numbers[-1]
    sinh = torch.sqrt(of.u).mul_(2.0).mul_(torch.sqrt(1.0 + of.u))
    scale = _over(hyp.scaled(g, hyp.root(c)), sinh)
    a, b = _apart(of, c)
    gx = _combined(scale * b, x, scale * a, (of.close * x).sub_(y))
    gy = gx * (of.x0 / of.y0).neg_()
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
    f, of = _measure(x, y, c)
    factor = _shrinking(of.u).neg_()
    less = (2.0 * of.u).add_(1.0 - of.close)  # cosh(theta) - close
    v = _combined(factor, f, factor * less, x)
    v[..., :1] = v0 = torch.addcmul(of.xf, less, of.xx).mul_(factor).div_(of.x0)
    return v, *of, factor, less, v0


def logmap_backward(of_c: bool, x: Tensor, y: Tensor, g: Tensor, *numbers: Any) -> Vectors:
    """v = F (y - C x) with C = cosh(theta) and F = theta/sinh(theta), both functions of C = c (x0 y0 - x.y)."""
    *pair, opposite, less, v0, c = numbers
    of, factor = _Pair(*pair), -opposite
    f = (of.close * x).sub_(y)
    own = g[..., :1] / of.x0  # what the time part x.v/x0 adds to the gradient of x is own (v - (v0/x0) x)
    w = torch.addcmul(g, own, x)  # the gradient of v with that of its time part in it
    w[..., 0].zero_()
    wx, slope = hyp.dot(w, x), _shrinking_slope(factor, of.u)
    by_cosh = torch.addcmul(slope * hyp.dot(w, f), torch.addcmul(factor, slope, less), wx).neg_()
    a, b = _apart(of, c)
    turn, shift = hyp.scaled(by_cosh, c), torch.addcmul(v0 / of.x0, factor, less)
    gx = _combined(opposite * (less + of.close), w, turn * a - own * factor, f, turn * b - own * shift, x)
    turn = turn * (of.x0 / of.y0).neg_()
    gy = _combined(factor, w, turn * a, f, turn * b, x)
    if not of_c:
        return gx, gy
    return gx, gy, by_cosh * _angle_of_c(of, c) + 0.5 * own * v0 / of.x0 / c**2


def expmap_forward(x: Tensor, v: Tensor, c: Scalar) -> Vectors:
    """cosh(s) x + sinh(s)/s v with s = sqrt(c) |v|_L, |v|_L^2 by `_hyperboloid.tangent_norm_squared`."""
    xx, vv, xv = _squared(x), _squared(v), hyp.dot(x, v)
    pp = _zeroed(torch.addcmul(v, xv / _positive(xx), x, value=-1), vv)
    xx0 = xx + 1.0 / c
    q = torch.addcmul(vv / xx0, xx / xx0, hyp.scaled(pp, c))
    s = torch.sqrt(q)
    still = s == 0
    cosh = torch.cosh(s).clamp_max_(torch.finfo(s.dtype).max)  # what is too far for the dtype is inf, never inf - inf
    sinhc = (torch.sinh(s) / s).masked_fill_(still, 1.0)
    y = (torch.tanh(s) / s).masked_fill_(still, 1.0) * v
    y.add_(x).mul_(cosh)
    y0 = torch.sqrt(_squared(y) + 1.0 / c)
    y[..., :1] = y0
    return y, xx, xv, pp, q, cosh, sinhc, y0


def expmap_backward(of_c: bool, x: Tensor, v: Tensor, g: Tensor, *numbers: Any) -> Vectors:
    """y = cosh(s) x + sinhc(s) v, both functions of q = s^2 = c (|v|^2 - (x.v)^2/x0^2)."""
    xx, xv, pp, q, cosh, sinhc, y0, c = numbers
    h = 1.0 / c
    xx0 = xx + h
    own = g[..., :1] / y0
    w = _add(torch.addcmul(g, own * cosh, x), own * sinhc, v)  # y0 = sqrt(|y|^2 + 1/c)
    w[..., 0].zero_()
    small = q < _SINHC_SLOPE_LIMIT
    slope = torch.where(small, polynomial(_SINHC_SLOPE, q), (cosh - sinhc) / torch.where(small, 1.0, 2.0 * q))
    by_q = torch.addcmul(hyp.dot(w, v) * slope, hyp.dot(w, x), sinhc, value=0.5)
    # v - (x.v/x0^2) x = a v + b x; far out it is the part across x and a little along it.
    far, across = hyp.scaled(xx, c) > 1.0, (pp > 0).to(xx.dtype)
    a = torch.where(far, across, 1.0)
    b = torch.where(far, (h / xx0 - across) * xv / _positive(xx), -xv / xx0)
    turn = by_q * (2.0 * c)
    gv = _combined(sinhc, w, turn * a, v, turn * b, x)
    turn = -turn * xv / xx0
    gx = _combined(cosh, w, turn * a, v, turn * b, x)
    if not of_c:
        return gx, gv
    return gx, gv, by_q * (q - (xv / xx0).square()) / c - 0.5 * own * h * h


def logmap0_forward(x: Tensor, c: Scalar) -> Vectors:
    """asinh(r)/r x with r = sqrt(c) |x|."""
    factor = hyp.range_factor(x)
    length = torch.linalg.vector_norm(x * factor, dim=-1, keepdim=True)
    r = hyp.scaled(length / factor, hyp.root(c))
    share = (asinh(r) / r).masked_fill_(r == 0, 1.0)
    return share * x[..., 1:], factor, length, r, share


def logmap0_backward(of_c: bool, x: Tensor, g: Tensor, *numbers: Any) -> Vectors:
    """With u = x/|x| the gradient is f g + r f' (u.g) u, f = asinh(r)/r."""
    factor, length, r, f, c = numbers
    slope = asinhc_slope(f, r)
    u = x * _over(factor, length)
    g = torch.nn.functional.pad(g, (1, 0))
    along = slope * hyp.dot(u, g)
    gx = _combined(f, g, along, u)
    return (gx, along * (length / factor) * (0.5 / c)) if of_c else (gx,)
