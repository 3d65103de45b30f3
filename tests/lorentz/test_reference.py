"""Every operation against a 60-digit reference, within the bounds the package promises.

Float32: 1 eps on the operations that compute in float64, 8 eps on the native ones. Float64: 8 eps (1 + cond), with the
relative condition number of the output stored beside the reference. Errors of vectors are relative to their norm.
LORENTZ_REFERENCE=FILE takes another reference than the committed one (`make_reference.py --seed N --output FILE`).
"""

import os
from pathlib import Path

import make_reference
import numpy as np
import pytest
import torch
from reference_rows import (
    FLOAT64_PAIRS,
    LABELS,
    OPERATIONS,
    Operation,
    arguments,
    curvature_of,
    reference_of,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("any_time")

FIXTURE = Path(__file__).parents[1] / "fixtures" / "lorentz_reference.npz"


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(os.environ.get("LORENTZ_REFERENCE") or FIXTURE) as archive:
        return dict(archive)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_float32(reference: dict[str, np.ndarray], name: str, label: str) -> None:
    operation = OPERATIONS[name]
    got = operation.function(*arguments(reference, operation, label, torch.float32), curvature_of(label))
    assert got.dtype == torch.float32
    error = relative_error(got, reference_of(reference, operation, label)[0])
    assert error.max() <= operation.float32_bound * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("operation", [*OPERATIONS.values(), *FLOAT64_PAIRS.values()], ids=lambda one: one.group)
def test_float64(reference: dict[str, np.ndarray], operation: Operation, label: str) -> None:
    got = operation.function(*arguments(reference, operation, label, torch.float64), curvature_of(label))
    expected, condition = reference_of(reference, operation, label)
    assert (relative_error(got, expected) / (1.0 + condition)).max() <= 8.0 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("name", make_reference.GROUPS)
def test_the_reference_is_what_the_definitions_say(reference: dict[str, np.ndarray], name: str) -> None:
    # Two rows per group and curvature by the textbook forms in 120 digits: the stored numbers are right to a bit.
    group = make_reference.GROUPS[name]
    for label, c in make_reference.CURVATURES.items():
        prefix = f"{name}.c{label}.d2."
        count = len(reference[prefix + group.inputs[0]])
        rows = [tuple(reference[prefix + field][i] for field in group.inputs) for i in (count // 3, count - 1)]
        for field, values in make_reference.arrays_of(name, rows, c):
            stored = reference[prefix + field][[count // 3, count - 1]]
            if field.endswith("_cond"):  # the worst of some signs, so no more than a factor apart
                np.testing.assert_array_less(values, 3.0 * stored + 1e-6)
                np.testing.assert_array_less(stored, 3.0 * values + 1e-6)
            else:
                np.testing.assert_allclose(values, stored, rtol=2.3e-16, atol=1e-40)
