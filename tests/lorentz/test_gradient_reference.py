"""Gradients of every operation, curvature included, against differences of its definition in 120 digits.

Float64: 16 eps (1 + cond), cond being the relative condition number of that gradient. Float32: 1 eps where the
operation computes in float64, 16 eps (1 + cond) where it is native. `make_reference.py --gradients` makes the file.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from reference_rows import (
    GRADIENT_LABELS,
    GRADIENTS,
    arguments,
    curvature_of,
    gradient_errors,
    gradients_of,
    reference_of,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("any_time")

FIXTURE = Path(__file__).parents[1] / "fixtures" / "lorentz_gradients.npz"
EPS32, EPS64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    with np.load(FIXTURE) as archive:
        return dict(archive)


@pytest.mark.parametrize("label", GRADIENT_LABELS)
@pytest.mark.parametrize("name", ["dist0", "geodesic"])  # `test_reference` has rows of the others
def test_values(arrays: dict[str, np.ndarray], name: str, label: str) -> None:
    operation = GRADIENTS[name]
    expected, condition = reference_of(arrays, operation, label)
    for dtype, bound in ((torch.float32, operation.float32_bound * EPS32), (torch.float64, 8.0 * EPS64)):
        got = operation.function(*arguments(arrays, operation, label, dtype), curvature_of(label))
        error = relative_error(got, expected) / (1.0 + condition * (dtype == torch.float64))
        assert error.max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("label", GRADIENT_LABELS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(arrays: dict[str, np.ndarray], name: str, label: str, dtype: torch.dtype) -> None:
    operation = GRADIENTS[name]
    found = gradients_of(arrays, operation, label, dtype)
    native = dtype == torch.float64 or operation.float32_bound > 1.0
    for error, condition in gradient_errors(arrays, operation, label, found).values():
        assert (error / (1.0 + condition * native)).max() <= (16.0 if native else 1.0) * torch.finfo(dtype).eps
