"""Points of space parts, and the heads of an attention made one point, with gradients of their own.

Autograd would keep every intermediate result. Here the gradients follow from the points, which the next operation keeps
anyway: fewer passes over memory, and half of it kept. They are ordinary operations again, so that second derivatives,
`vmap` and forward mode go through. Without gradients, and in compiled code, where the compiler joins the passes itself,
the formulas run as they are.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from lorentz import _hyperboloid as hyp
from lorentz._precision import Scalar


def lifted(x: Tensor, c: Scalar, sign: float = 1.0, place: Literal[0, -1] = 0) -> Tensor:
    """Points (*b, g + n) of the space parts in x, which begins with g >= 1 zeros; sign * time takes the first place.

    With place -1 the zeros are the last ones, and so is the time: for products, in which a large term that is added
    first rounds all others to its own size. With sign -1, <x, y>_L is the plain dot product with another point.
    """
    lift = _Lift.apply if _has_gradient(x) else _Lift.forward
    return lift(x, c, sign, place)  # type: ignore[return-value]


def joined(total: Tensor, c: Scalar, gap: int, largest: Tensor | None = None, alive: Tensor | None = None) -> Tensor:
    """The point (*b, h n + 1) whose space part are the heads' Lorentz centroids side by side.

    Args:
        total: weighted sums of the values of each head, (*b, h, g + n), as `lifted` orders them.
        c: a number or a scalar tensor.
        gap: g.
        largest: at least every time part of the values, broadcastable to (*b, h, 1); None if weights have the total 1.
        alive: False where a head is the origin, broadcastable to (*b, h, 1); None if no sum is empty.
    """
    join = _Join.apply if _has_gradient(total) else _Join.forward
    return join(total, c, gap, largest, alive)[0]  # type: ignore[index]


def _has_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _saved(c: Scalar) -> tuple[Tensor, ...]:
    return (c,) if isinstance(c, Tensor) else ()


class _Lift(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, c: Scalar, sign: float, place: int) -> Tensor:
        unit = torch.zeros(x.shape[-1], dtype=x.dtype, device=x.device)
        unit[place] = sign
        return torch.addcmul(x, hyp.safe_time(x, c), unit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Scalar, float, int], output: Tensor) -> None:
        _, c, _, ctx.place = inputs
        ctx.save_for_backward(output, *_saved(c))
        ctx.save_for_forward(output, *_saved(c))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With d time = (x . dx - dc/(2 c^2)) / time; what the place of the time is given belongs to a constant."""
        point, *c = ctx.saved_tensors
        share = grad.narrow(-1, ctx.place, 1) / point.narrow(-1, ctx.place, 1)
        of_c = -0.5 * (share / c[0].square()).sum() if ctx.needs_input_grad[1] else None
        return torch.addcmul(grad, share, point), of_c, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dc: Tensor | None, _sign: None, _place: None) -> Tensor:
        point, *c = ctx.saved_tensors
        time = point.narrow(-1, ctx.place, 1)
        along = hyp.dot(point, dx) - time * dx.narrow(-1, ctx.place, 1)
        if dc is not None:
            along = along - 0.5 * dc / c[0].square()
        return dx.slice_scatter(along / time, -1, ctx.place, ctx.place + 1 or None)


class _Join(torch.autograd.Function):
    """Returns, for the gradients, also the heads' factors 1/sqrt(-c<s, s>) and where the bound on -c<s, s> applies."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        total: Tensor, c: Scalar, gap: int, largest: Tensor | None, alive: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        s0, s = total[..., :1], total[..., gap:]
        ss = hyp.dot(s, s)
        free = c * (s0 * s0 - ss)
        # The reversed triangle inequality, -c<s, s> >= (sum of weights)^2 >= (s0 / largest)^2, holds against rounding.
        bound = torch.ones_like(s0) if largest is None else (s0 / largest).square()
        bounded = free < bound
        squared = torch.where(bounded, bound, free)
        if alive is None:
            factor = torch.rsqrt(squared)
        else:
            factor = torch.where(alive, torch.rsqrt(torch.where(alive, squared, 1.0)), 0.0)
        time = torch.sqrt((ss * factor.square()).sum(-2) + 1.0 / c)
        return torch.cat([time, (s * factor).flatten(-2)], dim=-1), factor, bounded

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        total, c, ctx.gap, largest, _ = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.number, ctx.unit = None if isinstance(c, Tensor) else c, largest is None
        saved = (total, total[..., :1] if largest is None else largest, *output, *_saved(c))
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, of_factor: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """With m = f s and f = squared^(-1/2): dm = f ds + s df, df = -f^3/2 dsquared."""
        total, largest, point, factor, bounded, *rest = ctx.saved_tensors
        c = rest[0] if rest else ctx.number
        s0, s = total[..., :1], total[..., ctx.gap :]
        share = grad[..., :1] / point[..., :1]
        of_m = torch.addcmul(grad[..., 1:], share, point[..., 1:]).unflatten(-1, s.shape[-2:])
        of_factor = of_factor + hyp.dot(of_m, s)
        of_squared = -0.5 * of_factor * factor * factor.square()
        of_free = torch.where(bounded, 0.0, of_squared)
        of_s = torch.addcmul(of_m * factor, -2.0 * c * of_free, s)
        of_s0, of_largest = 2.0 * c * of_free * s0, None
        if not ctx.unit:
            of_ratio = 2.0 * torch.where(bounded, of_squared, 0.0) * s0 / largest  # bound = ratio^2
            of_s0 = of_s0 + of_ratio / largest
            of_largest = (-of_ratio * s0 / largest.square()).sum_to_size(largest.shape)
        gap = [of_s.new_zeros((*of_s.shape[:-1], ctx.gap - 1))] if ctx.gap > 1 else []
        of_c = None
        if ctx.needs_input_grad[1]:  # `free` is c times what does not depend on c, and f^2 squared = 1
            through_factor = torch.where(bounded, 0.0, -0.5 * of_factor * factor)
            of_c = through_factor.sum() / c - 0.5 * share.sum() / c.square()
        return torch.cat([of_s0, *gap, of_s], -1), of_c, None, of_largest, None

    @staticmethod
    def jvp(
        ctx: Any, dtotal: Tensor, dc: Tensor | None, _gap: None, dlargest: Tensor | None, _alive: None
    ) -> tuple[Tensor, Tensor, None]:
        """The gradient of the gradient, which is linear: forward mode inside of forward mode is not to be had."""
        total, largest, point, factor, _, *c = ctx.saved_tensors

        def join(total: Tensor, largest: Tensor, c: Scalar = ctx.number) -> tuple[Tensor, ...]:
            return _Join.forward(total, c, ctx.gap, None if ctx.unit else largest, factor > 0)[:2]

        operands = (total, largest, *c)
        along = zip(operands, (dtotal, dlargest, dc), strict=False)
        pull = torch.func.vjp(join, *operands)[1]
        push = torch.func.vjp(pull, (torch.zeros_like(point), torch.zeros_like(factor)))[1]
        return *push(tuple(torch.zeros_like(x) if d is None else d for x, d in along))[0], None
