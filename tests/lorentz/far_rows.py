"""Operations far out: inputs at a given radius, and how far values and gradients are from those of the textbook."""

import math

import textbook as tb
import torch
from make_reference import split, vector
from mpmath import mp, mpf
from reference_rows import GRADIENTS, Operation, with_time
from textbook import Number, Vector
from torch import Tensor

import lorentz


def residual(x: Tensor, y: Tensor, c: Tensor, **options: str) -> Tensor:
    curvature = lorentz.nn.Curvature()
    curvature.forward = lambda: c  # for its gradient, without bounds in between
    layer = lorentz.nn.LorentzResidual(c=curvature)
    with lorentz.precision(options.get("precision", "auto")):  # type: ignore[arg-type]
        return layer(x, y)


def midpoint(x: Vector, y: Vector, c: Number) -> Vector:
    return tb.centroid([x, y], [mpf(0.5), mpf(0.5)], c)


OPERATIONS = GRADIENTS | {
    "LorentzResidual": Operation("", ("x", "y"), "", 1.0, residual, midpoint),
}


def kind_of(name: str) -> str:
    """What an operation takes: "x" a point, "xy" a pair, "angle" one not on a line with the origin, ..."""
    if name == "exterior_angle":
        return "angle"
    if OPERATIONS[name].inputs[0] in ("v_space", "x_space"):
        return OPERATIONS[name].inputs[0][0]
    return {1: "x", 2: "xv" if name == "expmap" else "xy"}.get(len(OPERATIONS[name].inputs), "xy")


def run(name: str, inputs: tuple[Tensor, ...], c: Tensor, mode: str) -> Tensor:
    """Ours on the space parts of points, vectors of ones beside them, at a quarter of the way, of equal weights."""
    operation = OPERATIONS[name]
    if name == "centroid":
        points = torch.stack([with_time(x) for x in inputs])
        return operation.function(points, torch.full((2,), 0.5).to(points), c, precision=mode)
    if name == "project_tangent":
        return operation.function(with_time(inputs[0]), torch.nn.functional.pad(inputs[1], (1, 0)), c, precision=mode)
    if name in ("project", "expmap0"):
        return operation.function(*inputs, c, precision=mode)
    given = [with_time(x) for x in inputs]
    given += {"parallel_transport": [with_time(torch.ones_like(inputs[0]))], "geodesic": [0.25]}.get(name, [])  # type: ignore[list-item]
    return operation.function(*given, c, precision=mode)


def define(name: str, inputs: list[Vector], c: Number) -> Vector:
    """The textbook's value of the same."""
    d = len(inputs[0])
    if name == "centroid":
        return midpoint(*inputs, c)
    if name == "project_tangent":
        inputs = [inputs[0], [mpf(0), *inputs[1]]]
    more = {"parallel_transport": [[mpf(1)] * d], "geodesic": [[mpf(0.25)]]}.get(name, [])
    value = OPERATIONS[name].definition(*inputs, *more, c)
    return value if isinstance(value, list) else [value]


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


def exact(name: str, inputs: tuple[Tensor, ...], c: float) -> tuple[Vector, list[Vector]]:
    """The value, and the gradient of its sum by every input and by c."""
    sizes = [len(x) for x in inputs]

    def function(flat: Vector) -> Vector:
        return define(name, split(flat[:-1], sizes), flat[-1])

    flat = [*(k for x in inputs for k in vector(x.numpy())), mpf(c)]
    columns = [mp.fsum(column) for column in tb.derivatives(lambda at: [mp.fsum(function(at))], flat)]
    return function(flat), split(columns, [*sizes, 1])


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
    info = torch.finfo(dtype)
    mp.dps = int(6 * radius) + 200
    values, slopes = [0.0], [0.0]
    for inputs in rows(kind_of(name), radius, c, dtype):
        leaves = [one.to(dtype).clone().requires_grad_() for one in inputs]
        curvature = torch.tensor(c, dtype=dtype).requires_grad_()
        true, true_gradients = exact(name, tuple(one.detach() for one in leaves), float(curvature.detach()))
        value = run(name, tuple(leaves), curvature, mode)
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
