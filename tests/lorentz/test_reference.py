"""Every operation against a 60-digit reference, within the bounds the package promises.

Float32: 1 eps on the operations that compute in float64, 8 eps on the native ones. Float64: 8 eps (1 + cond), with the
relative condition number of the output stored beside the reference. Errors of vectors are relative to their norm.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lorentz.functional as lf

FIXTURE = Path(__file__).parents[1] / "fixtures" / "lorentz_reference.npz"
LABELS = [f"c{c}.d{d}" for c in ("0.1", "1", "10") for d in (2, 16, 128)]
MIN_RADIUS = float(np.float32(0.1))


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(FIXTURE) as archive:
        return dict(archive)


class Rows:
    """The inputs and references of one group, in one dtype; points get a wrong time part, which must not matter."""

    def __init__(self, arrays: dict[str, np.ndarray], group: str, label: str, dtype: torch.dtype) -> None:
        self.prefix, self.arrays, self.dtype = f"{group}.{label}.", arrays, dtype
        self.c = float(np.float32(label[1 : label.index(".d")]))

    def plain(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[self.prefix + name]).to(self.dtype)

    def point(self, name: str) -> Tensor:
        space = self.plain(name + "_space")
        return torch.cat([torch.full_like(space[..., :1], 7.0), space], dim=-1)


# name: (group, reference, condition or None, float32 bound in eps, function of the rows)
OPERATIONS: dict[str, tuple[str, str, str | None, float, Callable[[Rows], Tensor]]] = {
    "expmap0": ("exp0", "y_full", "y_cond", 8.0, lambda r: lf.expmap0(r.plain("v_space"), r.c)),
    "logmap0": ("log0", "v_space", "v_cond", 8.0, lambda r: lf.logmap0(r.point("x"), r.c)),
    "project": ("proj", "x_full", None, 8.0, lambda r: lf.project(r.plain("x_space"), r.c)),
    "project_tangent": (
        "proj",
        "u_full",
        "u_cond",
        1.0,
        lambda r: lf.project_tangent(r.point("x"), r.plain("w_full"), r.c),
    ),
    "expmap": ("exp", "y_full", "y_cond", 1.0, lambda r: lf.expmap(r.point("x"), r.point("v"), r.c)),
    "dist": ("pair", "dist", "dist_cond", 1.0, lambda r: lf.dist(r.point("x"), r.point("y"), r.c)),
    "pairwise_dist": (
        "pair",
        "dist",
        "dist_cond",
        1.0,
        lambda r: lf.pairwise_dist(r.point("x"), r.point("y"), r.c, exact=True).diagonal(),
    ),
    "inner": ("pair", "inner", "inner_cond", 1.0, lambda r: lf.inner(r.point("x"), r.point("y"), r.c)),
    "logmap": ("pair", "log_full", "log_cond", 1.0, lambda r: lf.logmap(r.point("x"), r.point("y"), r.c)),
    "parallel_transport": (
        "pair",
        "pt_full",
        "pt_cond",
        1.0,
        lambda r: lf.parallel_transport(r.point("x"), r.point("y"), r.point("v"), r.c),
    ),
    "centroid": (
        "cent",
        "m_full",
        "m_cond",
        1.0,
        lambda r: lf.centroid(r.point("p"), r.plain("w").unsqueeze(-2), r.c)[:, 0],
    ),
    "half_aperture": (
        "cone",
        "half_aperture",
        "half_aperture_cond",
        1.0,
        lambda r: lf.half_aperture(r.point("x"), r.c, MIN_RADIUS),
    ),
    "exterior_angle": ("ext", "angle", "angle_cond", 1.0, lambda r: lf.exterior_angle(r.point("x"), r.point("y"), r.c)),
}
FLOAT64_PAIRS = {
    "dist": ("dist", "dist_cond"),
    "inner": ("inner", "inner_cond"),
    "logmap": ("log_full", "log_cond"),
    "exterior_angle": ("angle", "angle_cond"),
}


def relative_error(got: Tensor, expected: np.ndarray) -> np.ndarray:
    """Relative error row by row; absolute where the reference is 0."""
    difference, scale = got.double().numpy() - expected, np.abs(expected)
    if expected.ndim == 2:
        difference, scale = np.linalg.norm(difference, axis=-1), np.linalg.norm(expected, axis=-1)
    return np.abs(difference) / np.where(scale == 0, 1.0, scale)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_float32(reference: dict[str, np.ndarray], name: str, label: str) -> None:
    group, key, _, bound, operation = OPERATIONS[name]
    got = operation(Rows(reference, group, label, torch.float32))
    assert got.dtype == torch.float32
    error = relative_error(got, reference[f"{group}.{label}.{key}"])
    assert error.max() <= bound * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_float64(reference: dict[str, np.ndarray], name: str, label: str) -> None:
    group, key, condition, _, operation = OPERATIONS[name]
    got = operation(Rows(reference, group, label, torch.float64))
    cond = reference[f"{group}.{label}.{condition}"] if condition else 0.0
    error = relative_error(got, reference[f"{group}.{label}.{key}"])
    assert (error / (1.0 + cond)).max() <= 8.0 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", FLOAT64_PAIRS)
def test_close_pairs_far_out_in_float64(reference: dict[str, np.ndarray], name: str, label: str) -> None:
    key, condition = FLOAT64_PAIRS[name]
    got = OPERATIONS[name][-1](Rows(reference, "pair64", label, torch.float64))
    error = relative_error(got, reference[f"pair64.{label}.{key}"])
    assert (error / (1.0 + reference[f"pair64.{label}.{condition}"])).max() <= 8.0 * torch.finfo(torch.float64).eps
