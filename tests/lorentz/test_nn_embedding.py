"""The table of points: lookup, padding, a shared curvature, and training by ordinary optimisers."""

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


def test_a_table_from_points_holds_them() -> None:
    points = lf.expmap0(torch.randn(6, 3, dtype=torch.float64), 0.7)
    table = LorentzEmbedding.from_points(points, 0, c=Curvature(0.7).double())
    torch.testing.assert_close(table.points()[1:], points[1:])
    assert (table.points()[0, 1:] == 0).all()
