"""geoopt's optimisers on our manifold SGD with momentum, Adam, a learned curvature, saved states."""

from collections.abc import Callable
from functools import partial

import geoopt
import pytest
import torch
from geoopt.optim import RiemannianAdam, RiemannianSGD
from torch import Tensor

from lorentz.manifold import Lorentz


def problem(dtype: torch.dtype, c: float = 1.0) -> tuple[Lorentz, Tensor, geoopt.ManifoldParameter]:
    """A manifold, eight points to reach, and eight to start from."""
    manifold = Lorentz(c=c)
    generator = torch.Generator().manual_seed(0)
    target, start = manifold.random_normal(2, 8, 4, dtype=dtype, generator=generator)
    return manifold, target.clone(), geoopt.ManifoldParameter(start.clone(), manifold=manifold)


def descend(optimiser: torch.optim.Optimizer, loss: Callable[[], Tensor], steps: int) -> float:
    value = torch.tensor(torch.inf)
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss()
        value.backward()
        optimiser.step()
    return value.item()


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
    manifold, target, points = problem(dtype, c)

    def loss() -> Tensor:
        return (manifold.dist2(points, target) if squared else manifold.dist(points, target).square()).sum()

    assert descend(optimiser([points]), loss, 400) <= bound
    manifold.assert_check_point_on_manifold(points)


def test_one_step_of_sgd_on_half_the_squared_distance_arrives() -> None:
    """The Riemannian gradient of dist^2/2 is -log_x(y), so a step of length 1 ends at y."""
    manifold, target, points = problem(torch.float64, 0.7)
    optimiser = RiemannianSGD([points], lr=1.0)
    descend(optimiser, lambda: 0.5 * manifold.dist2(points, target).sum(), 1)
    torch.testing.assert_close(points.data, target, rtol=1e-12, atol=1e-12)
