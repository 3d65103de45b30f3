"""The operations as the reference files name them: group, inputs, output, and the float32 bound they are held to."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import lorentz.functional as lf

LABELS = [f"c{c}.d{d}" for c in ("0.1", "1", "10") for d in (2, 16, 128)]
MIN_RADIUS = float(np.float32(0.1))
WRONG_TIME = 7.0  # of every point that goes in: it must not matter


class Operation(NamedTuple):
    """`function(*inputs, c, **options)`; inputs are fields, "x" for the point with space part "x_space"."""

    group: str
    inputs: tuple[str, ...]
    output: str
    float32_bound: float  # in eps
    function: Callable[..., Tensor]

    @property
    def condition(self) -> str | None:
        """The field of the condition number; a projection has none (it is 1)."""
        return None if self.output == "x_full" else self.output.removesuffix("_full").removesuffix("_space") + "_cond"


OPERATIONS = {
    "project": Operation("proj", ("x_space",), "x_full", 8.0, lf.project),
    "expmap0": Operation("exp0", ("v_space",), "y_full", 8.0, lf.expmap0),
    "logmap0": Operation("log0", ("x",), "v_space", 8.0, lf.logmap0),
    "expmap": Operation("exp", ("x", "v"), "y_full", 1.0, lf.expmap),
    "logmap": Operation("pair", ("x", "y"), "log_full", 1.0, lf.logmap),
    "project_tangent": Operation("proj", ("x", "w_full"), "u_full", 1.0, lf.project_tangent),
    "parallel_transport": Operation("pair", ("x", "y", "v"), "pt_full", 1.0, lf.parallel_transport),
    "inner": Operation("pair", ("x", "y"), "inner", 1.0, lf.inner),
    "dist": Operation("pair", ("x", "y"), "dist", 1.0, lf.dist),
    "pairwise_dist": Operation(
        "pair",
        ("x", "y"),
        "dist",
        1.0,
        lambda x, y, c, **o: lf.pairwise_dist(x.unsqueeze(1), y.unsqueeze(1), c, exact=True, **o)[:, 0, 0],
    ),
    "centroid": Operation(
        "cent", ("p", "w"), "m_full", 1.0, lambda p, w, c, **o: lf.centroid(p, w.unsqueeze(-2), c, **o)[..., 0, :]
    ),
    "half_aperture": Operation(
        "cone", ("x",), "half_aperture", 1.0, lambda x, c, **o: lf.half_aperture(x, c, MIN_RADIUS, **o)
    ),
    "exterior_angle": Operation("ext", ("x", "y"), "angle", 1.0, lf.exterior_angle),
}
# In the file of gradients every operation is a group of its own.
GRADIENTS = {
    **{k: one._replace(group=k, output="value") for k, one in OPERATIONS.items() if k != "pairwise_dist"},
    "dist0": Operation("dist0", ("x",), "value", 1.0, lf.dist0),
    "geodesic": Operation("geodesic", ("x", "y", "t"), "value", 1.0, lf.geodesic),
}
GRADIENT_LABELS = [f"c{c}.d{d}" for c in ("0.1", "1", "10") for d in (2, 5)]
# Inputs of float64 only: pairs closer than float32 can hold.
FLOAT64_PAIRS = {
    name: OPERATIONS[name]._replace(group="pair64") for name in ("dist", "inner", "logmap", "exterior_angle")
}


def curvature_of(label: str) -> float:
    return float(np.float32(label[1 : label.index(".d")]))


def arguments(arrays: dict[str, np.ndarray], operation: Operation, label: str, dtype: torch.dtype) -> list[Tensor]:
    """The inputs of an operation in a dtype."""
    found = []
    for name in operation.inputs:
        prefix = f"{operation.group}.{label}.{name}"
        if prefix in arrays:
            found.append(torch.from_numpy(arrays[prefix]).to(dtype))
        else:
            space = torch.from_numpy(arrays[prefix + "_space"]).to(dtype)
            found.append(torch.cat([torch.full_like(space[..., :1], WRONG_TIME), space], dim=-1))
    return found


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
    prefix = f"{operation.group}.{label}."
    inputs = [tensor.requires_grad_() for tensor in arguments(arrays, operation, label, dtype)]
    g = torch.from_numpy(arrays[prefix + "g"]).to(dtype)
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
    for name, gradient in found.items():
        field = name if prefix + name in arrays else name + "_space"
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
