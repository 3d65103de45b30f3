"""HoroPCA: that the fit finds what is there, and what is refused."""

import pytest
import torch

import lorentz
from lorentz.plot import HoroPCA

F64 = torch.float64


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
        low = lorentz.horospherical_projection(x, torch.cat([first[None], second]))
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
