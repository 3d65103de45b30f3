"""Every differentiable operation under one signature, so that the laws of derivatives and compilation run on all."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

import lorentz.functional

Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def operations(lf: ModuleType) -> dict[str, Operation]:
    """Each takes two points x, y, an ambient vector v and the curvature c."""
    return {
        "project": lambda x, y, v, c: lf.project(v[..., 1:], c),
        "expmap0": lambda x, y, v, c: lf.expmap0(v[..., 1:], c),
        "logmap0": lambda x, y, v, c: lf.logmap0(x, c),
        "expmap": lambda x, y, v, c: lf.expmap(x, v, c),
        "logmap": lambda x, y, v, c: lf.logmap(x, y, c),
        "project_tangent": lambda x, y, v, c: lf.project_tangent(x, v, c),
        "parallel_transport": lambda x, y, v, c: lf.parallel_transport(x, y, v, c),
        "inner": lambda x, y, v, c: lf.inner(x, y, c),
        "dist": lambda x, y, v, c: lf.dist(x, y, c),
        "pairwise_inner": lambda x, y, v, c: lf.pairwise_inner(x, y, c),
        "pairwise_dist": lambda x, y, v, c: lf.pairwise_dist(x, y, c),
        "pairwise_dist_exact": lambda x, y, v, c: lf.pairwise_dist(x, y, c, exact=True),
        "centroid": lambda x, y, v, c: lf.centroid(x, v[..., :2, :].abs() @ v.abs().mT, c),
        "centroid_native": lambda x, y, v, c: lf.centroid(x, v[..., :2, :].abs() @ v.abs().mT, c, precision="native"),
        "lorentz_attention": lambda x, y, v, c: lf.lorentz_attention(
            x, y, y, c, scale=1.0 + c, bias=-lf.pairwise_dist(x, y)
        ),
        "half_aperture": lambda x, y, v, c: lf.half_aperture(x, c),
        "exterior_angle": lambda x, y, v, c: lf.exterior_angle(x, y, c),
        "entailment_violation": lambda x, y, v, c: lf.entailment_violation(x, y, c),
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames and not any(
        m.args[0] == "name" for m in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("name", list(operations(lorentz.functional)))


@pytest.fixture
def operation(name: str) -> Operation:
    """The operation of this name, from lorentz.functional."""
    return operations(lorentz.functional)[name]


@pytest.fixture
def operations_of() -> Callable[[ModuleType], dict[str, Operation]]:
    """All operations, from any import of lorentz.functional."""
    return operations


@pytest.fixture
def inputs() -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Random arguments of an operation."""

    def draw(c: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y, v = torch.randn(3, 3, 4, dtype=dtype)
        return x, y, v, torch.tensor(c, dtype=dtype)

    return draw
