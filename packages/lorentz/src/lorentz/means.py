"""The Frechet mean: the point with the least weighted sum of squared distances, and its exact gradient."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, library

from . import _hyperboloid as hyp
from ._centroid import centroid
from ._precision import Precision, Scalar, evaluate
from ._series import asinhc, polynomial, sinhc
from ._validation import check_alike, check_batch
from .gyro import boosted
from .points import point_spaces

_MAX_STEPS = 60
# Coefficients in q of (s coth s - 1)/q, s = sqrt(q); the first dropped term is below the float64 epsilon at the limit.
_BEND = (1 / 3, -1 / 45, 2 / 945, -1 / 4725, 2 / 93555, -1382 / 638512875, 4 / 18243225, -3617 / 162820783125)
_BEND_LIMIT = 0.1


def _bend(q: Tensor) -> Tensor:
    """(s coth s - 1)/q at s = sqrt(q), q >= 0: smooth through q = 0."""
    small = q < _BEND_LIMIT
    near, far = torch.where(small, q, 0.0), torch.where(small, 1.0, q)
    s = torch.sqrt(far)
    return torch.where(small, polynomial(_BEND, near), (s / torch.tanh(s) - 1.0) / far)


class _State(NamedTuple):
    """What one look at the points from m gives, in the tangent space at m carried to the origin: (*b, 1, d)."""

    cost: Tensor  # half the weighted mean of the squared distances
    step: Tensor  # Newton's step


def _looked(m: Tensor, x: Tensor, weights: Tensor, c: Scalar) -> _State:
    """Cost and Newton step at m.

    With u = log_o((-m) (+) x) the gradient of d^2/2 is -u, and its Hessian is 1 along u and s coth s across it,
    s = sqrt(c)|u|.
    """
    y = boosted(-m, x, c)
    u = asinhc(c * hyp.dot(y, y)) * y
    square = hyp.dot(u, u)
    q = c * square
    bend = _bend(q)
    w = weights.mT  # (*b, n, 1)
    across = (w * (1.0 + q * bend)).sum(-2, keepdim=True)
    identity = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
    # Without any weight the Hessian is 0: the identity in its place leaves the mean where it is.
    hessian = torch.where(across == 0, 1.0, across) * identity - (u * (w * bend * c)).mT @ u
    step = torch.linalg.solve(hessian, (weights @ u).mT).mT
    return _State(0.5 * weights @ square, step)


def _moved(m: Tensor, step: Tensor, c: Scalar) -> Tensor:
    return boosted(m, sinhc(c * hyp.dot(step, step)) * step, c)


def _newton(x: Tensor, weights: Tensor, c: Tensor) -> Tensor:
    """The mean by damped Newton steps from the Lorentz centroid; each problem of a batch has its own damping."""
    m = centroid(hyp.lifted(x, c), weights, c)[..., 1:]
    tolerance, slack = torch.finfo(x.dtype).eps ** 0.5, 64.0 * torch.finfo(x.dtype).eps
    state = _looked(m, x, weights, c)
    share = torch.ones_like(state.cost)
    for _ in range(_MAX_STEPS):
        if bool((c * hyp.dot(state.step, state.step) <= tolerance**2).all()):
            break
        candidate = _moved(m, share * state.step, c)
        next_state = _looked(candidate, x, weights, c)
        better = next_state.cost <= state.cost * (1.0 + slack)
        m = torch.where(better, candidate, m)
        state = _State(*(torch.where(better, new, old) for new, old in zip(next_state, state, strict=True)))
        share = torch.where(better, (2.0 * share).clamp(max=1.0), 0.25 * share)
    return m.contiguous()


def _fake(x: Tensor, weights: Tensor, c: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(x.shape[:-2], weights.shape[:-2], c.shape[:-2])
    return x.new_empty((*batch, 1, x.shape[-1]))


def _vmapped(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
    """All problems at once: the new axis in front of all others, which broadcast."""
    rank = max(t.ndim - (d is not None) for t, d in zip(tensors, in_dims, strict=True))
    moved = []
    for tensor, d in zip(tensors, in_dims, strict=True):
        if d is not None:
            tensor = tensor.movedim(d, 0)
            tensor = tensor.reshape(tensor.shape[0], *(1,) * (rank - tensor.ndim + 1), *tensor.shape[1:])
        moved.append(tensor)
    return _solution(*moved), 0


def _operator() -> Callable[..., Tensor]:
    """`_newton` as an operator without a gradient: its loop ends by values, which compilers and vmap cannot read.

    Defined once in a process: to define it again, when this module is reloaded, would free the operator that functions
    of the first import still call.
    """
    if not hasattr(torch.ops.lorentz, "frechet_solution"):
        operator = library.custom_op("lorentz::frechet_solution", _newton, mutates_args=())
        operator.register_fake(_fake)
        operator.register_vmap(_vmapped)
    return torch.ops.lorentz.frechet_solution


_solution = _operator()


def _frechet_mean(x: Tensor, weights: Tensor, c: Scalar) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total == 0, 1.0, total)
    number = c.detach() if isinstance(c, Tensor) else torch.tensor(c, dtype=x.dtype, device=x.device)
    m = _solution(x.detach(), weights.detach(), number)
    # At the solution one Newton step has the derivatives of the implicit function, two have the second ones as well;
    # and they take the solution from its tolerance to rounding.
    for _ in range(2):
        m = _moved(m, _looked(m, x, weights, c).step, c)
    return hyp.lifted(m, c).squeeze(-2)


def frechet_mean(
    x: Float[Tensor, "*#b n k"],
    weights: Float[Tensor, "*#b n"] | None = None,
    c: Scalar = 1.0,
    *,
    precision: Precision | None = None,
) -> Float[Tensor, "*b k"]:
    """Frechet mean: the point m with the least sum_i w_i dist(x_i, m)^2, unique on the hyperboloid.

    Newton's method from the Lorentz centroid: at most 60 steps, until one is below sqrt(eps)/sqrt(c), and two more. The
    gradient goes through the last two alone and is that of the implicit function (Lou et al. 2020), exact in points,
    weights and c, as are second derivatives. `centroid` is the mean of another distance, in closed form and cheaper.

    Args:
        x: ambient points, n of them along the axis before the last; only their space parts are read.
        weights: non-negative, one per point; their scale does not count. None: all 1. All zero gives the origin.
        c, precision: see the conventions of `lorentz.functional`.

    Returns:
        Ambient points, the leading axes of `x` and `weights` broadcast.

    Examples:
        >>> from lorentz.functional import expmap0, logmap0
        >>> x = expmap0(torch.tensor([[3.0, 0.0], [0.0, 0.0]]))
        >>> logmap0(frechet_mean(x, torch.tensor([2.0, 1.0])))
        tensor([2., 0.])
    """
    (space,) = point_spaces(c, 2, x=x)
    if weights is None:
        weights = torch.ones_like(space[..., 0])
    check_alike(x=x, weights=weights)
    if weights.ndim < 1 or weights.shape[-1] != x.shape[-2]:
        raise ValueError(
            f"weights: got shape {tuple(weights.shape)}, expected (..., {x.shape[-2]}), one weight for every point of "
            f"x {tuple(x.shape)}"
        )
    check_batch("weights", weights.shape, weights.shape[:-1], "x", x.shape[:-2])
    return evaluate(_frechet_mean, precision, c, space, weights.unsqueeze(-2), axes=2)
