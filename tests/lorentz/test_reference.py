"""Every operation and its gradients, curvature included, against stored references, within the promised bounds.

Values are those of 60 digits. Float32: 1 eps on the operations that compute in float64, 8 eps on the native ones.
Float64: 8 eps (1 + cond), with the relative condition number of the output stored beside the reference. Errors of
vectors are relative to their norm. LORENTZ_REFERENCE=FILE takes another reference than the committed one
(`make_reference.py --seed N --output FILE`).

Gradients are differences of the definitions in 120 digits. Float64: 16 eps (1 + cond), cond being the relative
condition number of that gradient. Float32: 1 eps where the operation computes in float64, 16 eps (1 + cond) where it is
native. `make_reference.py --gradients` makes the file.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_rows import (
    FLOAT64_PAIRS,
    GRADIENT_LABELS,
    GRADIENTS,
    LABELS,
    OPERATIONS,
    Operation,
    arguments,
    curvature_of,
    gradient_errors,
    gradients_of,
    reference_of,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("any_time")

FIXTURES = Path(__file__).parents[1] / "fixtures"
VALUES = dict(np.load(os.environ.get("LORENTZ_REFERENCE") or FIXTURES / "lorentz_reference.npz"))
SLOPES = dict(np.load(FIXTURES / "lorentz_gradients.npz"))
ROWS = [
    *((VALUES, operation, label) for operation in OPERATIONS.values() for label in LABELS),
    *((SLOPES, GRADIENTS[name], label) for name in ("dist0", "geodesic") for label in GRADIENT_LABELS),
]
CLOSE = [(VALUES, operation, label) for operation in FLOAT64_PAIRS.values() for label in LABELS]
ID = {"ids": lambda value: value.group if isinstance(value, Operation) else value if isinstance(value, str) else ""}


@pytest.mark.parametrize(("arrays", "operation", "label"), ROWS, **ID)
def test_float32(arrays: dict[str, np.ndarray], operation: Operation, label: str) -> None:
    got = operation.function(*arguments(arrays, operation, label, torch.float32), curvature_of(label))
    assert got.dtype == torch.float32
    error = relative_error(got, reference_of(arrays, operation, label)[0])
    assert error.max() <= operation.float32_bound * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(("arrays", "operation", "label"), ROWS + CLOSE, **ID)
def test_float64(arrays: dict[str, np.ndarray], operation: Operation, label: str) -> None:
    got = operation.function(*arguments(arrays, operation, label, torch.float64), curvature_of(label))
    expected, condition = reference_of(arrays, operation, label)
    assert (relative_error(got, expected) / (1.0 + condition)).max() <= 8.0 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("label", GRADIENT_LABELS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, label: str, dtype: torch.dtype) -> None:
    operation = GRADIENTS[name]
    found = gradients_of(SLOPES, operation, label, dtype)
    native = dtype == torch.float64 or operation.float32_bound > 1.0
    for error, condition in gradient_errors(SLOPES, operation, label, found).values():
        assert (error / (1.0 + condition * native)).max() <= (16.0 if native else 1.0) * torch.finfo(dtype).eps
