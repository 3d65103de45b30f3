"""The textbook in hundreds of digits, up to the largest radius of float32."""

import make_reference
import numpy as np
import pytest
import torch
from far_rows import OPERATIONS, errors_at
from mpmath import mp
from test_reference import VALUES

pytestmark = pytest.mark.usefixtures("any_time")


@pytest.mark.parametrize("radius", [24, 88])
@pytest.mark.parametrize("name", OPERATIONS)
def test_float32_is_right_to_the_largest_radius(name: str, radius: float) -> None:
    bound = 16.0 if name in ("expmap0", "logmap0") else 2.0  # these two compute in float32
    assert max(errors_at(name, radius, 1.0, torch.float32, "auto")) <= bound * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("name", ["dist", "inner", "LorentzResidual"])
def test_small_curvature(name: str) -> None:  # coordinates are ten times as large there
    assert max(errors_at(name, 20, 0.01, torch.float32, "auto")) <= 2.0 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("name", ["project", "expmap0", "logmap0", "dist0", "dist", "inner", "LorentzResidual"])
def test_float64_beyond_the_fourth_root_of_its_largest_number(name: str) -> None:
    # At radius 178 products of two squares would overflow.
    assert max(errors_at(name, 300, 1.0, torch.float64, "auto")) <= 1e-12


@pytest.mark.parametrize("name", make_reference.GROUPS)
@mp.workdps(120)
def test_the_reference_is_what_the_definitions_say(name: str) -> None:
    # Two rows per group and curvature by the textbook forms in 120 digits: the stored numbers are right to a bit.
    inputs = make_reference.GROUPS[name].inputs
    for label, c in make_reference.CURVATURES.items():
        prefix = f"{name}.c{label}.d2."
        count = len(VALUES[prefix + inputs[0]])
        rows = [tuple(VALUES[prefix + field][i] for field in inputs) for i in (count // 3, count - 1)]
        for field, values in make_reference.arrays_of(name, rows, c):
            stored = VALUES[prefix + field][[count // 3, count - 1]]
            if field.endswith("_cond"):  # the worst of some signs, so no more than a factor apart
                np.testing.assert_array_less(values, 3.0 * stored + 1e-6)
                np.testing.assert_array_less(stored, 3.0 * values + 1e-6)
            else:
                np.testing.assert_allclose(values, stored, rtol=2.3e-16, atol=1e-40)
