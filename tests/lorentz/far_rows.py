"""Operations far out: inputs at a given radius, and how far values and gradients are from those of the textbook."""

import math

import textbook as tb
import torch
from mpmath import mp, mpf
from textbook import Number, Vector
from torch import Tensor

import lorentz
import lorentz.functional as lf

MIN_RADIUS = 0.1


def residual(x: Tensor, y: Tensor, c: Tensor, **options: str) -> Tensor:
    curvature = lorentz.nn.Curvature()
    curvature.forward = lambda: c  # for its gradient, without bounds in between
    layer = lorentz.nn.LorentzResidual(c=curvature)
    with lorentz.precision(options.get("precision", "auto")):  # type: ignore[arg-type]
        return layer(padded(x), padded(y))


def padded(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (1, 0))


# name: what it takes ("x" a point, "xy" a pair, "angle" one not on a line with the origin, "xv" a point and a tangent
# vector, "v" one at the origin), ours on space parts, and the definition
OPERATIONS = {
    "project": ("x", lambda x, c, **o: lf.project(x, c, **o), lambda x, c: tb.point(x, c)),
    "expmap0": ("v", lambda v, c, **o: lf.expmap0(v, c, **o), tb.expmap0),
    "logmap0": ("x", lambda x, c, **o: lf.logmap0(padded(x), c, **o), tb.logmap0),
    "dist0": ("x", lambda x, c, **o: lf.dist0(padded(x), c, **o), tb.dist0),
    "half_aperture": (
        "x",
        lambda x, c, **o: lf.half_aperture(padded(x), c, MIN_RADIUS, **o),
        lambda x, c: tb.half_aperture(x, c, mpf(MIN_RADIUS)),
    ),
    "expmap": ("xv", lambda x, v, c, **o: lf.expmap(padded(x), padded(v), c, **o), tb.expmap),
    "dist": ("xy", lambda x, y, c, **o: lf.dist(padded(x), padded(y), c, **o), tb.dist),
    "inner": ("xy", lambda x, y, c, **o: lf.inner(padded(x), padded(y), c, **o), tb.inner_of_points),
    "logmap": ("xy", lambda x, y, c, **o: lf.logmap(padded(x), padded(y), c, **o), tb.logmap),
    "geodesic": (
        "xy",
        lambda x, y, c, **o: lf.geodesic(padded(x), padded(y), 0.25, c, **o),
        lambda x, y, c: tb.geodesic(x, y, mpf(0.25), c),
    ),
    "parallel_transport": (
        "xy",
        lambda x, y, c, **o: lf.parallel_transport(padded(x), padded(y), padded(torch.ones_like(x)), c, **o),
        lambda x, y, c: tb.parallel_transport(x, y, [mpf(1)] * len(x), c),
    ),
    "project_tangent": (
        "xy",
        lambda x, y, c, **o: lf.project_tangent(padded(x), padded(y), c, **o),
        lambda x, y, c: tb.project_tangent(x, [mpf(0), *y], c),
    ),
    "exterior_angle": (
        "angle",
        lambda x, y, c, **o: lf.exterior_angle(padded(x), padded(y), c, **o),
        tb.exterior_angle,
    ),
    "centroid": (
        "xy",
        lambda x, y, c, **o: lf.centroid(
            torch.stack([padded(x), padded(y)], -2),
            torch.tensor([[0.5, 0.5]]).to(x),
            c[..., None] if c.ndim else c,
            **o,
        )[..., 0, :],
        lambda x, y, c: tb.centroid([x, y], [mpf(0.5), mpf(0.5)], c),
    ),
    "LorentzResidual": ("xy", residual, lambda x, y, c: tb.centroid([x, y], [mpf(0.5), mpf(0.5)], c)),
}


def rows(kind: str, radius: float, c: float, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """Inputs at that radius, each a tuple of space parts (3,)."""
    generator = torch.Generator().manual_seed(int(radius))
    largest = torch.finfo(dtype).max

    def at(r: float, u: Tensor) -> Tensor:
        size = mp.sinh(mpf(r)) / mp.sqrt(c)
        return (u.double() / u.double().norm() * float(min(size, mpf(largest) * mpf(0.5)))).to(dtype)

    def unit() -> Tensor:
        return torch.randn(3, generator=generator, dtype=torch.float64)

    axis = torch.tensor([1.0, 0.0, 0.0])
    u, w = unit(), unit()
    if kind == "v":
        return [(radius / math.sqrt(c) * d.double() / d.double().norm(),) for d in (axis, u)]
    x, turned = at(radius, axis), at(radius, u)
    if kind == "x":
        return [(x,), (turned,)]
    if kind == "xv":
        x0 = float(x[0])
        return [
            (x, torch.tensor([0.5 * x0, 0.0, 0.0], dtype=dtype)),
            (x, torch.tensor([-0.5 * x0, 0.0, 0.0], dtype=dtype)),
            (x, torch.tensor([0.0, 1.0, 0.5], dtype=dtype)),
            (x, torch.tensor([0.25 * x0, 0.5, 0.0], dtype=dtype)[[1, 0, 2]]),
        ]
    on_a_line = [(x, at(radius - 0.5, axis)), (at(radius - 0.5, axis), x), (x, -at(radius - 0.25, axis))]
    pairs = [
        *(on_a_line if kind == "xy" else []),
        (x, 0.5 * x + 1e-3 * x.flip(0)),
        (turned, at(radius - 0.25, w)),
        (turned, at(1.0, w)),
        (at(1.0, w), turned),
    ]
    if dtype == torch.float32:
        pairs += [(turned, at(radius - 0.5, u)), (turned, at(radius, u + 1e-3 * w))]
    return pairs


def exact(define: object, inputs: tuple[Tensor, ...], c: float) -> tuple[Vector, list[Vector]]:
    """The value, and the gradient of its sum by every input and by c."""
    flat = [mpf(float(k)) for one in inputs for k in one] + [mpf(c)]
    sizes = [len(one) for one in inputs]

    def function(at: Vector) -> Vector:
        parts, start = [], 0
        for size in sizes:
            parts.append(at[start : start + size])
            start += size
        value: Number | Vector = define(*parts, at[-1])  # type: ignore[operator]
        return value if isinstance(value, list) else [value]

    value = function(flat)
    columns = [mp.fsum(column) for column in tb.derivatives(lambda at: [mp.fsum(function(at))], flat)]
    gradients, start = [], 0
    for size in (*sizes, 1):
        gradients.append(columns[start : start + size])
        start += size
    return value, gradients


def off(got: Tensor, true: Vector, largest: float, floor: Number) -> float:
    """Relative error of a vector by its norm; 0 where the true one cannot be stored, and below what can be."""
    size = mp.sqrt(mp.fdot(true, true))
    if size > largest or size < floor:
        return 0.0
    if not torch.isfinite(got).all():
        return math.inf
    flat = [mpf(float(k)) for k in got.reshape(-1)]
    return float(mp.sqrt(mp.fsum((a - b) ** 2 for a, b in zip(flat, true, strict=True))) / (size or 1))


def errors_at(name: str, radius: float, c: float, dtype: torch.dtype, mode: str) -> tuple[float, float]:
    """The largest relative errors of the values and of the gradients at that radius; inf where one is not finite."""
    kind, ours, define = OPERATIONS[name]
    info = torch.finfo(dtype)
    mp.dps = int(6 * radius) + 200
    values, slopes = [0.0], [0.0]
    for inputs in rows(kind, radius, c, dtype):
        leaves = [one.to(dtype).clone().requires_grad_() for one in inputs]
        curvature = torch.tensor(c, dtype=dtype).requires_grad_()
        true, true_gradients = exact(define, tuple(one.detach() for one in leaves), float(curvature.detach()))
        value = ours(*leaves, curvature, precision=mode)
        values.append(off(value.detach(), true, info.max, info.tiny))
        if any(abs(k) > info.max for k in true):
            continue
        found = torch.autograd.grad(value.sum(), [*leaves, curvature], allow_unused=True)
        scale = mp.fsum(abs(k) for k in true) / c
        for one, gradient in zip(found, true_gradients, strict=True):
            if one is None:
                continue
            error = off(one, gradient, info.max, info.tiny)
            if one is found[-1] and math.isfinite(error):  # relative to value / c where its own slope is less
                error *= float(min(abs(gradient[0]) / (scale or 1), 1))
            slopes.append(error)
    return max(values), max(slopes)
