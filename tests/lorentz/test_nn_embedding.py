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


def test_starts_at_the_radius_asked_for_in_any_dimension() -> None:
    for dim in (2, 64):
        for c in (0.1, 10.0):
            r = lf.dist0(LorentzEmbedding(4000, dim, c=c, radius=0.3).points(), c)
            torch.testing.assert_close(r.square().mean().sqrt(), torch.tensor(0.3), rtol=0.05, atol=0.0)


def test_sparse_gradients_are_the_dense_ones_and_take_sparse_optimisers() -> None:
    dense, sparse = LorentzEmbedding(5, 3), LorentzEmbedding(5, 3, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    for table in (dense, sparse):
        lf.pairwise_dist(table(torch.tensor([1, 3, 3])), table(torch.tensor([0]))).sum().backward()
    assert sparse.weight.grad.is_sparse
    torch.testing.assert_close(sparse.weight.grad.to_dense(), dense.weight.grad)
    torch.optim.SparseAdam(sparse.parameters()).step()


def test_a_table_from_points_holds_them() -> None:
    points = lf.expmap0(torch.randn(6, 3, dtype=torch.float64), 0.7)
    table = LorentzEmbedding.from_points(points, 0, c=Curvature(0.7).double())
    torch.testing.assert_close(table.points()[1:], points[1:])
    assert (table.points()[0, 1:] == 0).all()
