"""geoopt's optimisers on our manifold: SGD with and without momentum, and Adam."""

from collections.abc import Callable
from functools import partial

import geoopt
import pytest
import torch
from geoopt.optim import RiemannianAdam, RiemannianSGD

from lorentz.manifold import Lorentz


@pytest.mark.parametrize(
    ("optimiser", "dtype", "bound", "c", "squared"),
    [
        (partial(RiemannianSGD, lr=0.1), torch.float64, 1e-16, 0.3, True),
        (partial(RiemannianSGD, lr=0.1, momentum=0.5), torch.float64, 1e-16, 3.0, True),
        (partial(RiemannianAdam, lr=0.1), torch.float64, 1e-13, 1.0, False),
        (partial(RiemannianAdam, lr=0.1), torch.float32, 1e-9, 2.0, True),
    ],
)
def test_riemannian_optimisers_fit_distances(
    optimiser: Callable[..., torch.optim.Optimizer], dtype: torch.dtype, bound: float, c: float, squared: bool
) -> None:
    """`dist2` is smooth where points meet; the square of `dist` passes through a root."""
    manifold = Lorentz(c=c)
    target, start = manifold.random_normal(2, 8, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    points = geoopt.ManifoldParameter(start.clone(), manifold=manifold)
    steps = optimiser([points])
    for _ in range(400):
        steps.zero_grad()
        loss = (manifold.dist2(points, target) if squared else manifold.dist(points, target).square()).sum()
        loss.backward()
        steps.step()
    assert loss.item() <= bound
    manifold.assert_check_point_on_manifold(points)
