"""Operations far out: inputs at a given radius, and how far values and gradients are from those of the textbook."""

import math

import textbook as tb
import torch
from make_reference import split, value_of, vector
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


def kind_of(operation: Operation) -> str:
    """What a row is made of: "v" a vector at the origin, "x" a point, "xv" with a tangent vector, "xy" a pair, ..."""
    if operation.group == "exterior_angle":
        return "angle"  # a pair not on a line with the origin
    kinds = {("v_space",): "v", ("x_space",): "x", ("x",): "x", ("x", "v"): "xv"}
    return kinds.get(operation.inputs, "xy")


def row_of(operation: Operation, parts: tuple[Tensor, ...]) -> list[Tensor]:
    """The inputs; vectors of ones beside pairs, at a quarter of the way, of equal weights."""
    x, y = parts[0], parts[-1]
    values = {"x_space": x, "v_space": x, "x": x, "y": y, "v": y, "w_full": torch.nn.functional.pad(y, (1, 0))}
    values |= {"t": torch.tensor([0.25]).to(x), "p": torch.stack(parts), "w": torch.full((2,), 0.5).to(x)}
    if operation.group == "parallel_transport":
        values["v"] = torch.ones_like(x)
    return [values[name] for name in operation.inputs]


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


def exact(operation: Operation, row: list[Tensor], c: float) -> tuple[Vector, list[Vector]]:
    """The value, and the gradient of its sum by every input and by c."""
    arrays = tuple(x.numpy() for x in row)

    def function(flat: Vector) -> Vector:
        return value_of(operation, flat[:-1], arrays, flat[-1])

    flat = [*(k for x in arrays for k in vector(x)), mpf(c)]
    columns = [mp.fsum(column) for column in tb.derivatives(lambda at: [mp.fsum(function(at))], flat)]
    return function(flat), split(columns, [*(x.size for x in arrays), 1])


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
    mp.dps = int(6 * radius) + 200
    return errors_of(name, rows(kind_of(OPERATIONS[name]), radius, c, dtype), c, dtype, mode)


def errors_of(
    name: str, inputs: list[tuple[Tensor, ...]], c: float, dtype: torch.dtype, mode: str
) -> tuple[float, float]:
    """`errors_at` for the space parts given, in the digits of mpmath that are set."""
    operation, info = OPERATIONS[name], torch.finfo(dtype)
    values, slopes, names = [0.0], [0.0], (operation.inputs, operation.fields)
    for parts in inputs:
        leaves = [one.to(dtype).clone().requires_grad_() for one in row_of(operation, parts)]
        curvature = torch.tensor(c, dtype=dtype).requires_grad_()
        true, true_gradients = exact(operation, [x.detach() for x in leaves], float(curvature.detach()))
        value = operation.function(
            *(x if name == field else with_time(x) for x, name, field in zip(leaves, *names, strict=True)),
            curvature,
            precision=mode,
        )
        values.append(off(value.detach(), true, info.max, info.tiny))
        if any(abs(k) > info.max for k in true):
            continue
        found = torch.autograd.grad(value.sum(), [*leaves, curvature], allow_unused=True)
        scale = mp.fsum(abs(k) for k in true) / c
        for one, gradient in zip(found, true_gradients, strict=True):
            if one is None:
                continue
            points = one.reshape(-1, one.shape[-1]) if one.ndim else one[None]  # each by its own size
            for point, part in zip(points, split(gradient, [len(gradient) // len(points)] * len(points)), strict=True):
                error = off(point, part, info.max, info.tiny)
                if one is found[-1] and math.isfinite(error):  # relative to value / c where its own slope is less
                    error *= float(min(abs(part[0]) / (scale or 1), 1))
                slopes.append(error)
    return max(values), max(slopes)


KINDS = {
    name: ("alone",) if kind_of(OPERATIONS[name]) in ("v", "x") else ("close", "radial", "random")
    for name in ("expmap0", "logmap0", "dist", "logmap", "expmap", "centroid")
}


def drawn(name: str, kind: str, radius: float, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """Inputs at c = 1 as the dtype holds them: pairs 0.1 apart, on a ray and 0.5 apart, at random; or one, alone."""
    generator = torch.Generator().manual_seed(int(radius))
    mp.dps = int(6 * radius) + 120

    def at(u: Vector, length: Number) -> Vector:
        return tb.scale(length / mp.sqrt(tb.dot(u, u)), u)

    def one() -> list[Vector]:
        u, w = torch.randn(2, 3, generator=generator, dtype=torch.float64).tolist()
        if kind == "alone":
            return [at(u, mpf(radius) if name == "expmap0" else mp.sinh(radius))]
        x = at(u, mp.sinh(radius))
        if kind == "close":  # from the origin to x a vector becomes longer along x alone, by x0
            along = (mp.cosh(radius) - 1) * tb.dot(x, w) / tb.dot(x, x)
            share = mpf("0.1") / mp.sqrt(tb.dot(w, w))
            y = tb.expmap(x, tb.combine(share, w, share * along, x), mpf(1))[1:]
        else:
            y = at(u if kind == "radial" else w, mp.sinh(radius - 0.5))
        return [x, tb.logmap(x, y, mpf(1))[1:] if name == "expmap" else y]

    return [tuple(torch.tensor([float(k) for k in part], dtype=dtype) for part in one()) for _ in range(8)]
