"""The textbook in hundreds of digits, up to the largest radius of float32."""

import pytest
import torch
from far_rows import OPERATIONS, errors_at

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
