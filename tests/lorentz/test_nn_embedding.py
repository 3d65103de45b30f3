"""The table of points: lookup, padding, a shared curvature, and training by ordinary optimisers."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lorentz.functional as lf
from lorentz.nn import Curvature, LorentzEmbedding


def test_is_the_exponential_map_of_torchs_embedding() -> None:
    table, plain = LorentzEmbedding(7, 4, c=0.5), nn.Embedding(7, 4)
    plain.weight.data.copy_(table.weight.data)
    numbers = torch.randint(7, (2, 3))
    torch.testing.assert_close(table(numbers), lf.expmap0(plain(numbers), 0.5))
    assert torch.equal(table.points()[numbers], table(numbers))
    assert table(torch.empty(0, dtype=torch.int64)).shape == (0, 5)


@pytest.mark.parametrize("padding", [3, -4])
def test_padding_is_the_origin_and_is_not_trained(padding: int) -> None:
    c = Curvature(2.0)
    table = LorentzEmbedding(7, 4, padding, c=c)
    x = table(torch.tensor([3, 1]))
    torch.testing.assert_close(x[0], lf.project(torch.zeros(4), c()))
    lf.pairwise_dist(x, lf.project(torch.ones(1, 4), c()), c()).sum().backward()
    assert table.weight.grad is not None
    assert (table.weight.grad[3] == 0).all()
    assert (table.weight.grad[1] != 0).all()


def test_starts_at_the_radius_asked_for_in_any_dimension() -> None:
    for dim in (2, 64):
        for c in (0.1, 10.0):
            r = lf.dist0(LorentzEmbedding(4000, dim, c=c, radius=0.3).points(), c)
            torch.testing.assert_close(r.square().mean().sqrt(), torch.tensor(0.3), rtol=0.05, atol=0.0)


@pytest.mark.parametrize(
    ("optimiser", "sparse"),
    [
        (lambda p: torch.optim.Adam(p, lr=0.05), False),
        (lambda p: torch.optim.SGD(p, lr=0.1), True),
        (lambda p: torch.optim.SparseAdam(p, lr=0.05), True),
    ],
)
def test_any_optimiser_fits_distances(optimiser: Callable[..., torch.optim.Optimizer], sparse: bool) -> None:
    """A star: the hub lies in the middle, the leaves at equal distances from each other."""
    table = LorentzEmbedding(5, 3, sparse=sparse)
    step = optimiser(table.parameters())
    target = 3.0 - 3.0 * torch.eye(5)
    target[0, 1:] = target[1:, 0] = 1.8
    losses: list[float] = []
    for _ in range(150):
        x = table(torch.arange(5))
        loss = (lf.pairwise_dist(x, x, exact=True) - target).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_a_table_from_points_holds_them() -> None:
    points = lf.expmap0(torch.randn(6, 3, dtype=torch.float64), 0.7)
    table = LorentzEmbedding.from_points(points, 0, c=Curvature(0.7).double())
    torch.testing.assert_close(table.points()[1:], points[1:])
    assert (table.points()[0, 1:] == 0).all()
