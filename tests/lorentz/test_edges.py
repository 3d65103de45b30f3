"""No NaN or inf, in values or gradients, where formulas divide by zero or take its root; geoopt where it is right."""

import geoopt
import pytest
import torch
from torch import Tensor

import lorentz.functional as lf
from lorentz._precision import Precision


def shifted(radius: float, gap: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two points at that radius, that far apart along their ray (in float64, then rounded)."""
    u = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    return lf.expmap0(radius * u).to(dtype), lf.expmap0((radius + gap) * u).to(dtype)


def test_where_geoopt_is_wrong_and_we_are_not() -> None:
    # acosh(-c<x, y>_L) has no digits left for close pairs: 0.01 apart at radius 8, float32, and 1e-6 in float64.
    for radius, gap, dtype in ((8.0, 0.01, torch.float32), (8.0, 1e-6, torch.float64)):
        x, y = shifted(radius, gap, dtype)
        theirs = float(geoopt.Lorentz(k=torch.tensor(1.0, dtype=dtype)).dist(x, y))
        assert abs(float(lf.dist(x, y)) - gap) < 0.01 * gap
        assert abs(theirs - gap) > 0.1 * gap


@pytest.mark.parametrize("precision", ["auto", "native"])
def test_what_expmap_cannot_store_is_inf_and_not_nan(precision: Precision) -> None:
    # Rounded to float32, a vector of length 2 at radius 40 has a part across x of length 1e9: found by nightly points.
    x = lf.expmap0(torch.tensor([[30.0, 20.0], [40.0, 0.0], [40.0, 0.0]]))
    v = torch.tensor([[0.0, -2e17, 1e17], [0.0, 0.0, 1e5], [0.0, 1e19, 0.0]])
    y = lf.expmap(x, v, precision=precision)
    assert torch.equal(y[:, 0], torch.full((3,), torch.inf))
    assert not y.isnan().any()
