"""The Busemann function and the projection along horospheres: limits, what is kept, and digits far out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW
from torch import Tensor

import lorentz

F64 = torch.float64
problems = st.tuples(st.integers(0, 10_000), st.sampled_from([0.1, 1.0, 4.0]), st.integers(1, 4))


def draw(seed: int, k: int, c: float, spread: float = 1.5) -> tuple[Tensor, Tensor]:
    """Points (9, 6) and k orthonormal directions (k, 5)."""
    generator = torch.Generator().manual_seed(seed)
    x = spread * torch.randn(9, 5, dtype=F64, generator=generator)
    return lorentz.project(x, c), torch.linalg.qr(torch.randn(5, 5, dtype=F64, generator=generator)).Q[:k]


@LAW
@given(problems)
def test_busemann_function_is_the_limit_of_distances_along_the_ray(problem: tuple[int, float, int]) -> None:
    seed, c, _ = problem
    x, directions = draw(seed, 1, c)
    t = 25.0 / c**0.5
    limit = lorentz.dist(x, lorentz.expmap0(t * directions, c), c) - t
    torch.testing.assert_close(lorentz.busemann(x, directions, c), limit, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lorentz.busemann(x, 7.5 * directions, c), limit, rtol=1e-9, atol=1e-9)


@LAW
@given(problems)
def test_projection_keeps_busemann_functions_and_lengthens_nothing(problem: tuple[int, float, int]) -> None:
    seed, c, k = problem
    x, directions = draw(seed, k, c)
    low = lorentz.horospherical_projection(x, directions, c)
    inside = lorentz.project(low[:, 1:] @ directions, c)
    b = lorentz.busemann(x.unsqueeze(-2), directions, c)
    torch.testing.assert_close(lorentz.busemann(inside.unsqueeze(-2), directions, c), b)
    before, after = (lorentz.pairwise_dist(points, points, c, exact=True) for points in (x, low))
    assert bool((after <= before + 1e-9).all())
    if k == 1:
        torch.testing.assert_close(after, (b - b.mT).abs())


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_busemann_function_keeps_its_digits_far_out(dtype: torch.dtype) -> None:
    x = lorentz.project(torch.tensor([[1e9, 1.0], [1e18, 0.0], [-1e9, 0.0]], dtype=dtype))
    expected = torch.log(torch.tensor([1e-9, 0.5e-18, 2e9], dtype=F64)).to(dtype)
    torch.testing.assert_close(lorentz.busemann(x, torch.tensor([1.0, 0.0], dtype=dtype)), expected)
