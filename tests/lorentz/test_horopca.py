"""HoroPCA finds what is there; the Busemann function and the projection along horospheres keep what they should."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW
from torch import Tensor

import lorentz
from lorentz.horospheres import coordinates_along_horospheres
from lorentz.plot import HoroPCA

F64 = torch.float64


def projected(x: Tensor, directions: Tensor, c: float = 1.0) -> Tensor:
    return lorentz.project(coordinates_along_horospheres(x[..., 1:], directions, c), c)


@pytest.mark.parametrize("c", [0.5, 2.0])
@pytest.mark.parametrize("center", [False, True])
def test_a_plane_in_eight_dimensions_is_found_and_kept(c: float, center: bool) -> None:
    plane = torch.linalg.qr(torch.randn(8, 2, dtype=F64)).Q
    flat = torch.rand(15, 2, dtype=F64) - 0.5
    x = lorentz.expmap0((flat - flat.mean(0)) @ plane.mT / c**0.5, c)
    if center:  # and carry it away from the origin
        away = torch.cat([torch.zeros(1, 1, dtype=F64), torch.randn(1, 8, dtype=F64)], dim=-1)
        origin = lorentz.project(torch.zeros(1, 8, dtype=F64), c)
        base = lorentz.expmap(origin, away, c)
        x = lorentz.expmap(base, lorentz.parallel_transport(origin, base, lorentz.logmap(origin, x, c), c), c)
    pca = HoroPCA(2, c, center=center, starts=2)
    low = pca.fit_transform(x)
    before, after = (lorentz.pairwise_dist(points, points, c, exact=True) for points in (x, low))
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)
    assert pca.variance_ratio_ == pytest.approx(1.0, abs=1e-3)
    torch.testing.assert_close(pca.components_ @ pca.components_.mT, torch.eye(2, dtype=F64))


def test_second_direction_is_the_best_across_the_first() -> None:
    x = lorentz.expmap0(torch.randn(20, 3, dtype=F64) * torch.tensor([2.0, 1.0, 0.5]))
    pca = HoroPCA(2, center=False).fit(x)
    first = pca.components_[0]
    across = torch.linalg.svd(first[None]).Vh[1:]

    def spread(turn: float) -> float:
        second = torch.tensor([[turn]], dtype=F64).cos() * across[:1] + torch.tensor([[turn]]).sin() * across[1:]
        low = projected(x, torch.cat([first[None], second]))
        return float(lorentz.pairwise_dist(low, low).square().mean())

    before = float(lorentz.pairwise_dist(x, x).square().mean())
    assert pca.variance_ratio_ >= max(map(spread, torch.linspace(0.0, 6.2832, 181).tolist())) / before - 1e-9


def test_same_seed_same_result_and_dtype_and_gradient_are_those_of_x() -> None:
    x = lorentz.expmap0(torch.randn(30, 4))
    low = [HoroPCA(2, max_points=20, starts=2, seed=3).fit_transform(x) for _ in range(2)]
    assert torch.equal(*low)
    assert low[0].dtype == torch.float32
    points = x.clone().requires_grad_()
    HoroPCA(1, starts=1).fit(x).transform(points).sum().backward()
    assert points.grad is not None
    assert bool(points.grad.isfinite().all())
    assert float(points.grad.abs().max()) > 0.0


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
    low = projected(x, directions, c)
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
