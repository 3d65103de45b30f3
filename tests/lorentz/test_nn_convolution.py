"""Convolutions of images and graphs: plain loops, torch's own convolution, equivariance, and sparse graphs."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, curvatures, seeds
from torch import Tensor

import lorentz.functional as lf
from lorentz.nn import LorentzConv2d, LorentzGraphConv

DOUBLE = torch.float64
PADS = st.integers(1, 2)


def image(*shape: int, c: float = 1.0) -> Tensor:
    return lf.expmap0(torch.randn(*shape, dtype=DOUBLE) / c**0.5, c)


@LAW
@given(curvatures, st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), PADS, st.integers(1, 2), seeds)
def test_a_convolution_is_the_linear_layer_of_every_window(
    c: float, height: int, width: int, stride: int, padding: int, dilation: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = LorentzConv2d(2, 3, (height, width), stride=stride, padding=padding, dilation=(2, dilation), c=c).double()
    high, wide = 2 * (height - 1) + 1, dilation * (width - 1) + 1
    x = image(2, 5, 4, 2, c=c)
    padded = torch.nn.functional.pad(x[..., 1:], (0, 0, padding, padding, padding, padding))  # with origins
    rows = []
    for i in range(0, padded.shape[1] - high + 1, stride):
        row = []
        for j in range(0, padded.shape[2] - wide + 1, stride):
            window = padded[:, i : i + high : 2, j : j + wide : dilation]
            row.append(layer.linear(lf.project(window.permute(0, 3, 1, 2).flatten(1), c)))
        rows.append(torch.stack(row, 1))
    torch.testing.assert_close(layer(x), torch.stack(rows, 1))


def test_groups_are_convolutions_of_their_own_side_by_side() -> None:
    options = {"kernel_size": 3, "padding": 2, "dilation": 2, "c": 0.7}
    layer, x = LorentzConv2d(4, 6, groups=2, **options).double(), image(2, 5, 4, 4, c=0.7)  # type: ignore[arg-type]
    parts = []
    for linear, space in zip(layer.linear, x[..., 1:].chunk(2, -1), strict=True):  # type: ignore[call-overload]
        part = LorentzConv2d(2, 3, **options).double()  # type: ignore[arg-type]
        part.linear = linear
        parts.append(part(lf.project(space, 0.7))[..., 1:])
    torch.testing.assert_close(layer(x), lf.project(torch.cat(parts, -1), 0.7))


def graph(nodes: int, seed: int, share: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(nodes, nodes, generator=generator, dtype=DOUBLE)
    return weights * (torch.rand(nodes, nodes, generator=generator) < share)


@LAW
@given(curvatures, seeds, st.integers(1, 8))
def test_a_graph_convolution_is_the_centroid_of_the_neighbours(c: float, seed: int, nodes: int) -> None:
    torch.manual_seed(seed)
    layer, adjacency = LorentzGraphConv(3, 4, c=c).double(), graph(nodes, seed)
    x = lf.expmap0(torch.randn(2, nodes, 3, dtype=DOUBLE) / c**0.5, c)
    y = layer(x, adjacency)
    torch.testing.assert_close(y, lf.centroid(layer.linear(x), adjacency.expand(2, -1, -1), c))
    scales = torch.rand(nodes, 1, dtype=DOUBLE) + 0.1
    torch.testing.assert_close(layer(x, scales * adjacency), y)
    order = torch.randperm(nodes)
    torch.testing.assert_close(layer(x[:, order], adjacency[order][:, order]), y[:, order])
    alone = adjacency.sum(-1) == 0
    torch.testing.assert_close(y[:, alone], lf.origin(*y[:, alone].shape, c=c, dtype=DOUBLE))


@pytest.mark.filterwarnings("ignore:Sparse CSR")  # in beta
@pytest.mark.parametrize("to_sparse", [Tensor.to_sparse, Tensor.to_sparse_csr])
def test_sparse_graphs_give_values_and_gradients_of_dense_ones(to_sparse: Callable[[Tensor], Tensor]) -> None:
    layer, adjacency = LorentzGraphConv(3, 4, magnitude="bounded").double(), graph(12, 0, 0.2)
    results = []
    for matrix in (adjacency, to_sparse(adjacency)):
        x = lf.expmap0(torch.randn(12, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))).requires_grad_()
        y = layer(x, matrix)
        results.append([y, *torch.autograd.grad(lf.dist0(y).sum(), (x, *layer.parameters()))])
    torch.testing.assert_close(results[1], results[0])
    # Fewer outputs than nodes: a pooling.
    assert layer(lf.origin(12, 4, dtype=DOUBLE), to_sparse(adjacency[:5])).shape == (5, 5)


def test_edges_as_pyg_has_them() -> None:
    """The second row of `edge_index` are the nodes that receive."""
    layer, x = LorentzGraphConv(3, 4).double(), lf.expmap0(torch.randn(6, 3, dtype=torch.float64))
    edges, weights = torch.tensor([[0, 1, 2, 0, 5], [1, 1, 3, 4, 0]]), torch.rand(5, dtype=torch.float64)
    dense = torch.zeros(6, 6, dtype=torch.float64)
    for weight in (None, weights):
        dense[edges[1], edges[0]] = 1.0 if weight is None else weight
        torch.testing.assert_close(layer(x, edges, weight), layer(x, dense))
    with pytest.raises(RuntimeError, match="size"):
        layer(x, torch.tensor([[6], [0]]))
