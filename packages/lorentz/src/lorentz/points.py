"""Whether a tensor holds points of the hyperboloid, or tangent vectors at them.

`check_point` is for everybody; the other functions check the arguments of all operations where `checked` asks for it.
"""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from . import _hyperboloid as hyp
from ._precision import Scalar, at_least_float32, check_curvature, evaluate
from ._validation import is_checked, vectors


def check_point(
    x: Float[Tensor, "*b n"], c: Scalar = 1.0, *, rtol: float | None = None, atol: float = 0.0
) -> Float[Tensor, "*b n"]:
    """Return x if it lies on the hyperboloid, x0 = sqrt(1/c + |x|^2); otherwise raise and say by how much it does not.

    The functions of this package recompute the time part and accept any; this is for points from elsewhere, and inside
    `lorentz.checked()` every function does it. It reads values: a GPU is waited for, and torch.compile and vmap cannot
    pass.

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
    off, time = _times(x, c, rtol, atol)
    if int(off.sum()):
        raise ValueError(_message("x", x, c, off, time, rtol))
    return x


def ambient_points(c: Scalar, axes: int = 1, **named: Tensor) -> tuple[Tensor, ...]:
    """Check points (see `vectors`) and return them; `checked` refuses what is off the hyperboloid."""
    points = vectors(axes, 2, **named)
    check_on_hyperboloid(c, **named)
    return points


def point_spaces(c: Scalar, axes: int = 1, **named: Tensor) -> tuple[Tensor, ...]:
    """The space parts of `ambient_points`."""
    return tuple(x[..., 1:] for x in ambient_points(c, axes, **named))


def check_on_hyperboloid(c: Scalar, **named: Tensor) -> None:
    """When `checked`, refuse points that are off the hyperboloid; their shapes were checked before."""
    if not is_checked():
        return
    check_curvature(c)
    for name, x in named.items():
        rtol = 16.0 * max(torch.finfo(dtype).eps for dtype in (x.dtype, torch.float32))  # it may have been float32 once
        off, time = _times(x, c, rtol, 0.0)
        if _is_true(off.any()):
            raise ValueError(_message(name, x, c, off, time, rtol))


def ball_points(c: Scalar, **named: Tensor) -> tuple[Tensor, ...]:
    """Check coordinates of the Poincare ball (see `vectors`); `checked` refuses what is not inside."""
    points = vectors(1, 1, **named)
    check_in_ball(c, **named)
    return points


def check_in_ball(c: Scalar, **named: Tensor) -> None:
    """When `checked`, refuse points that are not inside the ball of radius 1/sqrt(c)."""
    if not is_checked():
        return
    check_curvature(c)
    for name, p in named.items():
        wide = p.detach().double() if p.device.type in ("cpu", "cuda") else p.detach()
        radius = evaluate(lambda p, c: hyp.root(c) * torch.linalg.vector_norm(p, dim=-1, keepdim=True), None, c, wide)
        off = ~(radius < 1)  # NaN is off
        if _is_true(off.any()):
            raise ValueError(
                f"{name}: {int(off.sum())} of {off.numel()} points (shape {tuple(p.shape)}) not inside the ball of "
                f"radius 1/sqrt(c): got sqrt(c) |{name}| up to {float(radius.max()):.9g}, expected below 1; points of "
                f"the hyperboloid are lorentz.models.to_poincare({name}, c) in the ball"
            )


def check_time_zero(**named: Tensor) -> None:
    """When `checked`, refuse vectors that are no ambient tangent vectors at the origin: their time part is 0."""
    for name, v in named.items() if is_checked() else ():
        off = v[..., 0].abs() > torch.finfo(v.dtype).eps ** 0.5 * torch.linalg.vector_norm(v, dim=-1)
        if _is_true(off.any()):
            raise ValueError(
                f"{name}: got shape {tuple(v.shape)} and time parts up to {float(v[..., 0].abs().max()):g}, expected "
                "ambient tangent vectors at the origin, time first and 0; lorentz.expmap0 takes d space coordinates"
            )


def check_space_part(c: Scalar, **named: Tensor) -> None:
    """When `checked`, refuse points in place of the d space coordinates; warn of what looks like ambient vectors."""
    if not is_checked():
        return
    check_curvature(c)
    for name, v in named.items():
        if v.shape[-1] < 2:
            continue
        off, _ = _times(v, c, None, 0.0)
        if v.numel() and _is_true((off == 0).all()):
            raise ValueError(
                f"{name}: got points of shape {tuple(v.shape)}, expected the d space coordinates of tangent vectors at "
                f"the origin; {name} lies on the hyperboloid already, lorentz.logmap0({name}, c) is its tangent vector"
            )
        moving = (v[..., 1:] != 0).any(-1)
        if _is_true((moving.sum() > 1) & (v[..., 0] == 0).all()):
            warnings.warn(
                f"{name}: got shape {tuple(v.shape)}, the first coordinate 0 in every row, as ambient tangent vectors "
                f"at the origin have it; expected the d space coordinates. If it is the time part pass {name}[..., 1:]",
                stacklevel=3,
            )


def _is_true(value: Tensor) -> bool:
    """The value of a boolean; False where it cannot be read, within vmap and of fake and meta tensors."""
    try:
        return bool(value)
    except RuntimeError:
        return False


def _times(x: Tensor, c: Scalar, rtol: float | None, atol: float) -> tuple[Tensor, Tensor]:
    """For every point whether it is off the hyperboloid, 1 or 0, and the time part that it is to have."""
    allowed = 16.0 * torch.finfo(x.dtype).eps if rtol is None else rtol

    def excess(x: Tensor, c: Scalar) -> Tensor:
        time = hyp.time(x[..., 1:], c)
        error = (x[..., :1] - time).abs()
        on = (error <= atol + allowed * time) & torch.isfinite(x).all(-1, keepdim=True)  # NaN and inf are off
        return torch.cat([torch.where(on, 0.0, 1.0), time], dim=-1)

    wide = x.detach().to(at_least_float32(x.dtype))  # what is counted and printed is not rounded to half precision
    c = c.detach() if isinstance(c, Tensor) else c
    off, time = evaluate(excess, None, c, wide).unbind(-1)
    return off, time


def _message(name: str, x: Tensor, c: Scalar, off: Tensor, time: Tensor, rtol: float | None) -> str:
    x, allowed = x.detach(), 16.0 * torch.finfo(x.dtype).eps if rtol is None else rtol
    worst = (off * torch.nan_to_num((x[..., 0].to(time.dtype) - time).abs(), nan=torch.inf)).argmax()
    index = tuple(int(i) for i in torch.unravel_index(worst.cpu(), off.shape))
    got = float(x.expand(*off.shape, x.shape[-1])[(*index, 0)])
    expected = float(time[index])
    c = c.detach() if isinstance(c, Tensor) else c
    curvature = float(c.expand(*off.shape, 1)[(*index, 0)]) if isinstance(c, Tensor) and c.ndim else float(c)
    return (
        f"{name}: {int(off.sum())} of {off.numel()} points (shape {tuple(x.shape)}) off the hyperboloid of curvature "
        f"{-curvature:g}: time part {got:g} at index {index}, expected {expected:g}, off by {got - expected:.3g} "
        f"(relative {(got - expected) / expected:.3g}, allowed {allowed:.3g}); {_remedy(name, x, c, off)}"
    )


def _remedy(name: str, x: Tensor, c: Scalar, off: Tensor) -> str:
    """How to mend points that are off: what they look like decides."""
    if not bool(torch.isfinite(x).all()):
        return "they are not finite: look where they come from"
    if not bool(_times(x.roll(1, -1), c, 1e-3, 0.0)[0].any()):
        return f"the last coordinate fits as the time part, which stands first here: {name}.roll(1, -1)"
    squares = x.double().square()
    others = (1.0 / (squares[..., 0] - squares[..., 1:].sum(-1))).expand(off.shape)[off > 0]
    other = float(others[0])
    if 0 < other < torch.inf and bool(((others - other).abs() <= 1e-3 * other).all()):
        return f"they fit the curvature {-other:.4g}: pass c={other:.4g}, or build all layers with one c"
    return (
        f"lorentz.project({name}[..., 1:], c) recomputes the time part, lorentz.project({name}, c) adds one to space "
        "coordinates"
    )
