"""geoopt's product manifold with Lorentz factors, each with its own learned curvature, as docs/lorentz.md has it."""

import geoopt
import pytest
import torch
from hypothesis import given
from laws import LAW, Situation, situations
from torch import Tensor

from lorentz.manifold import Lorentz
from lorentz.nn import Curvature


@LAW
@given(situations(4, dtypes=(torch.float64,), most=3.0))
def test_operations_of_a_product_are_those_of_its_factors(situation: Situation) -> None:
    c, _, (x, y, z, w) = situation
    parts = (
        Lorentz(Curvature(c, bounds=(0.5 * c, 2.0 * c))).double(),
        Lorentz(Curvature(c, bounds=(0.01, 20.0))).double(),
    )
    product = geoopt.ProductManifold(*((part, len(x)) for part in parts))
    p, q = (torch.stack([torch.cat(pair)] * 2) for pair in ((x, z), (y, w)))
    one, two = parts
    close = {"rtol": 1e-7, "atol": 1e-7}
    torch.testing.assert_close(product.dist2(p, q)[0], one.dist2(x, y) + two.dist2(z, w), **close)
    v = product.logmap(p, q)
    torch.testing.assert_close(v[0], torch.cat([one.logmap(x, y), two.logmap(z, w)]), **close)
    torch.testing.assert_close(product.inner(p, v)[0], product.dist2(p, q)[0], **close)
    torch.testing.assert_close(product.expmap(p, v), q, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(product.transp(p, q, v)[0, : len(x)], one.transp(x, y, v[0, : len(x)]), **close)


def tree_and_line() -> Tensor:
    """Distances in the product of a binary tree of 15 nodes and a line of four: the root of the sum of squares."""
    above = [{n >> i for i in range(5)} - {0} for n in range(1, 16)]
    tree = torch.tensor([[float(len(a ^ b)) for b in above] for a in above])
    line = (torch.arange(4.0).unsqueeze(-1) - torch.arange(4.0)).abs()
    return torch.sqrt(tree.square()[:, None, :, None] + line.square()[None, :, None, :]).reshape(60, 60)


def fitted(factors: int) -> tuple[float, geoopt.ProductManifold, geoopt.ManifoldParameter]:
    """Root mean square of the relative errors of distances, after 150 steps."""
    torch.manual_seed(0)
    parts = [Lorentz(Curvature(1.0)) for _ in range(factors)]
    product = geoopt.ProductManifold(*((part, 3) for part in parts))
    start = torch.cat([part.random_normal(60, 3, std=0.3) for part in parts], -1)
    points = geoopt.ManifoldParameter(torch.as_tensor(start), manifold=product)
    groups = [{"params": [points], "lr": 0.05}, {"params": list(product.parameters()), "lr": 0.02}]
    optimiser = geoopt.optim.RiemannianAdam(groups)
    target, (i, j) = tree_and_line(), torch.triu_indices(60, 60, 1)
    for _ in range(150):
        optimiser.zero_grad()
        error = (product.dist(points[i], points[j]) / target[i, j] - 1.0).square().mean()
        error.backward()
        optimiser.step()
        with torch.no_grad():
            points.copy_(product.projx(points))  # a step of the curvature has moved the hyperboloid
    return error.item() ** 0.5, product, points


def test_two_factors_with_learned_curvatures_fit_what_one_cannot() -> None:
    """Inside `lorentz.checked()`: every step starts from points of the curvature that it has."""
    error, product, points = fitted(2)
    curvatures = [float(part.c.detach()) for part in product.manifolds]
    assert error < 0.2
    assert all(abs(c - 1.0) > 0.05 for c in curvatures)
    assert product.check_point_on_manifold(points)
    assert fitted(1)[0] > 0.3
    fresh = geoopt.ProductManifold(*((Lorentz(Curvature(1.0)), 3) for _ in range(2)))
    fresh.load_state_dict(product.state_dict())
    assert [float(part.c.detach()) for part in fresh.manifolds] == pytest.approx(curvatures)
