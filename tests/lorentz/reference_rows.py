"""The operations as the reference files name them: group, inputs, output, bound, ours and the textbook's."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import textbook as tb
import torch
from mpmath import mpf
from torch import Tensor

import lorentz.functional as lf

LABELS = [f"c{c}.d{d}" for c in ("0.1", "1", "10") for d in (2, 16, 128)]
GRADIENT_LABELS = [f"c{c}.d{d}" for c in ("0.1", "1", "10") for d in (2, 5)]
MIN_RADIUS = float(np.float32(0.1))
POINTS = 8  # of a centroid
WRONG_TIME = 7.0  # of every point that goes in: it must not matter


class Operation(NamedTuple):
    """`function(*inputs, c, **options)`; inputs are fields, "x" for the point with space part "x_space".

    The definition takes vectors of numbers, of a point its space part.
    """

    group: str
    inputs: tuple[str, ...]
    output: str
    float32_bound: float  # in eps
    function: Callable[..., Tensor]
    definition: Callable[..., Any]

    @property
    def condition(self) -> str | None:
        """The field of the condition number; a projection has none (it is 1)."""
        return None if self.output == "x_full" else self.output.removesuffix("_full").removesuffix("_space") + "_cond"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a file that the inputs are read from."""
        return tuple(f"{name}_space" if name in ("x", "y", "v", "p") else name for name in self.inputs)


def _pairwise(x: Tensor, y: Tensor, c: Any, **options: Any) -> Tensor:
    return lf.pairwise_dist(x.unsqueeze(1), y.unsqueeze(1), c, exact=True, **options)[:, 0, 0]


def _centroid(p: Tensor, w: Tensor, c: Any, **options: Any) -> Tensor:
    return lf.centroid(p, w.unsqueeze(-2), c, **options)[..., 0, :]


def _centroid_of(p: tb.Vector, w: tb.Vector, c: tb.Number) -> tb.Vector:
    d = len(p) // len(w)
    return tb.centroid([p[i * d : (i + 1) * d] for i in range(len(w))], w, c)


def _half_aperture(x: Tensor, c: Any, **options: Any) -> Tensor:
    return lf.half_aperture(x, c, MIN_RADIUS, **options)


OPERATIONS = {
    "project": Operation("proj", ("x_space",), "x_full", 8.0, lf.project, tb.point),
    "expmap0": Operation("exp0", ("v_space",), "y_full", 8.0, lf.expmap0, tb.expmap0),
    "logmap0": Operation("log0", ("x",), "v_space", 8.0, lf.logmap0, tb.logmap0),
    "expmap": Operation("exp", ("x", "v"), "y_full", 1.0, lf.expmap, tb.expmap),
    "logmap": Operation("pair", ("x", "y"), "log_full", 1.0, lf.logmap, tb.logmap),
    "project_tangent": Operation("proj", ("x", "w_full"), "u_full", 1.0, lf.project_tangent, tb.project_tangent),
    "parallel_transport": Operation(
        "pair", ("x", "y", "v"), "pt_full", 1.0, lf.parallel_transport, tb.parallel_transport
    ),
    "inner": Operation("pair", ("x", "y"), "inner", 1.0, lf.inner, tb.inner_of_points),
    "dist": Operation("pair", ("x", "y"), "dist", 1.0, lf.dist, tb.dist),
    "pairwise_dist": Operation("pair", ("x", "y"), "dist", 1.0, _pairwise, tb.dist),
    "centroid": Operation("cent", ("p", "w"), "m_full", 1.0, _centroid, _centroid_of),
    "half_aperture": Operation(
        "cone", ("x",), "half_aperture", 1.0, _half_aperture, lambda x, c: tb.half_aperture(x, c, mpf(MIN_RADIUS))
    ),
    "exterior_angle": Operation("ext", ("x", "y"), "angle", 1.0, lf.exterior_angle, tb.exterior_angle),
}
# In the file of gradients every operation is a group of its own.
GRADIENTS = {
    **{k: one._replace(group=k, output="value") for k, one in OPERATIONS.items() if k != "pairwise_dist"},
    "dist0": Operation("dist0", ("x",), "value", 1.0, lf.dist0, tb.dist0),
    "geodesic": Operation(
        "geodesic", ("x", "y", "t"), "value", 1.0, lf.geodesic, lambda x, y, t, c: tb.geodesic(x, y, t[0], c)
    ),
}
# Inputs of float64 only: pairs closer than float32 can hold.
FLOAT64_PAIRS = {
    name: OPERATIONS[name]._replace(group="pair64") for name in ("dist", "inner", "logmap", "exterior_angle")
}


def curvature_of(label: str) -> float:
    return float(np.float32(label[1 : label.index(".d")]))


def with_time(space: Tensor) -> Tensor:
    """The point with this space part, and a time part that nothing may read."""
    return torch.cat([torch.full_like(space[..., :1], WRONG_TIME), space], dim=-1)


def arguments(arrays: dict[str, np.ndarray], operation: Operation, label: str, dtype: torch.dtype) -> list[Tensor]:
    """The inputs of an operation in a dtype."""
    pairs = zip(operation.inputs, operation.fields, strict=True)
    tensors = [(name, field, torch.from_numpy(arrays[f"{operation.group}.{label}.{field}"])) for name, field in pairs]
    return [tensor.to(dtype) if name == field else with_time(tensor.to(dtype)) for name, field, tensor in tensors]


def reference_of(arrays: dict[str, np.ndarray], operation: Operation, label: str) -> tuple[np.ndarray, np.ndarray]:
    """The 60-digit output and its condition number."""
    prefix = f"{operation.group}.{label}."
    expected = arrays[prefix + operation.output]
    condition = operation.condition
    return expected, np.zeros(len(expected)) if condition is None else arrays[prefix + condition].astype(float)


def relative_error(got: Tensor, expected: np.ndarray) -> np.ndarray:
    """Relative error row by row, of vectors by their norm; absolute where the reference is 0."""
    rows = expected.reshape(len(expected), -1)
    error = np.linalg.norm(got.detach().double().numpy().reshape(rows.shape) - rows, axis=-1)
    size = np.linalg.norm(rows, axis=-1)
    return error / np.where(size == 0, 1.0, size)


def gradients_of(
    arrays: dict[str, np.ndarray], operation: Operation, label: str, dtype: torch.dtype, **options: object
) -> dict[str, Tensor]:
    """The gradients of <g, f> by autograd, under the names of the inputs; "c" is the curvature's."""
    inputs = [tensor.requires_grad_() for tensor in arguments(arrays, operation, label, dtype)]
    g = torch.from_numpy(arrays[f"{operation.group}.{label}.g"]).to(dtype)
    # one curvature per row, so that each row has its own gradient
    c = torch.full((len(g), 1), curvature_of(label), dtype=dtype, requires_grad=True)
    value = operation.function(*inputs, c.unsqueeze(-1) if operation.group == "centroid" else c, **options)
    found = torch.autograd.grad((g * value.reshape(g.shape)).sum(), (*inputs, c))
    return dict(zip((*operation.inputs, "c"), found, strict=True))


def gradient_errors(
    arrays: dict[str, np.ndarray], operation: Operation, label: str, found: dict[str, Tensor]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Relative error of each gradient, row by row, and its condition number; the time part of a point must get none."""
    errors, prefix = {}, f"{operation.group}.{label}.grad_"
    for (name, gradient), field in zip(found.items(), (*operation.fields, "c"), strict=True):
        expected, got = arrays[prefix + field], gradient
        if field != name:
            assert not gradient[..., 0].any(), "gradient of a time part that is not read"
            got = gradient[..., 1:]
        error, condition = relative_error(got, expected), arrays[f"{prefix}{field}_cond"].astype(float)
        if name == "c":  # relative to <g, f>/c where that is larger: far out f grows while its derivative does not
            own, value = np.abs(expected[:, 0]), arrays[prefix.removesuffix("grad_") + "size"] / curvature_of(label)
            share = np.where(own < value, own / np.where(value == 0, 1.0, value), 1.0)
            error, condition = np.where(own == 0, error, error * share), condition * share
        errors[name] = error, condition
    return errors
