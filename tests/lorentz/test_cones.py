"""Entailment cones against their textbook forms and on the line through the origin."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lorentz.functional as lf

seeds = st.integers(0, 2**20)
curvatures = st.sampled_from([0.1, 1.0, 10.0])


@given(seeds, curvatures)
def test_exterior_angle_agrees_with_the_law_of_cosines(seed: int, c: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = lf.expmap0(torch.randn(2, 8, 3, generator=generator, dtype=torch.float64) / c**0.5, c)
    origin = lf.project(torch.zeros(8, 3, dtype=torch.float64), c)
    a, b, opposite = (c**0.5 * lf.dist(*pair, c) for pair in ((origin, x), (x, y), (origin, y)))
    cosine = (a.cosh() * b.cosh() - opposite.cosh()) / (a.sinh() * b.sinh())
    torch.testing.assert_close(lf.exterior_angle(x, y, c), math.pi - cosine.clamp(-1, 1).acos(), rtol=1e-5, atol=1e-5)


@given(seeds, curvatures, st.sampled_from([0.05, 0.1, 0.3]))
def test_half_aperture_is_the_arcsine(seed: int, c: float, min_radius: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = lf.project(torch.randn(8, 3, generator=generator, dtype=torch.float64) / c**0.5, c)
    expected = (2 * min_radius / (c**0.5 * x[:, 1:].norm(dim=-1))).clamp(max=1.0).asin()
    torch.testing.assert_close(lf.half_aperture(x, c, min_radius), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_exactly_0_and_pi_on_the_line(c: float, dtype: torch.dtype) -> None:
    u = torch.randn(20, 5).to(dtype).round(decimals=3).float().to(dtype)
    x = lf.project(u, c)
    # Powers of two keep the multiples exactly on the line.
    for factor, angle in ((2.0, 0.0), (1024.0, 0.0), (1.5, 0.0), (0.5, math.pi), (0.0, math.pi), (-4.0, math.pi)):
        y = lf.project((factor * u.double()).to(dtype), c)
        exact = torch.equal(y[..., 1:].double(), factor * u.double())
        if exact:
            assert torch.equal(lf.exterior_angle(x, y, c), torch.full((20,), angle, dtype=dtype))


def test_violation_is_zero_in_the_cone_and_grows_outside() -> None:
    general = lf.project(torch.tensor([1.0, 0.0]))
    inside = lf.project(torch.tensor([[2.0, 0.0], [3.0, 0.1]]))
    outside = lf.project(torch.tensor([[2.0, 2.0], [0.5, 0.0], [-1.0, 0.0]]))
    assert (lf.entailment_violation(general, inside) == 0).all()
    violation = lf.entailment_violation(general, outside)
    assert (violation.diff() > 0).sum() >= 1
    torch.testing.assert_close(violation[1:], torch.full((2,), math.pi - math.asin(0.2)))
    # The origin entails everything.
    assert (lf.entailment_violation(lf.project(torch.zeros(2)), outside) == 0).all()


def test_min_radius_must_be_positive() -> None:
    with pytest.raises(ValueError, match="min_radius: got 0"):
        lf.half_aperture(lf.project(torch.zeros(2)), min_radius=0.0)
