"""Convolutions of images and graphs: plain loops, torch's own convolution, equivariance, and sparse graphs."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, curvatures, seeds
from torch import Tensor

import lorentz.functional as lf
from lorentz.nn import LorentzConv2d, LorentzGraphConv, LorentzLinear

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


@pytest.mark.parametrize("c", [0.3, 1.0, 5.0])
def test_it_is_torchs_convolution_and_a_share_of_the_time(c: float) -> None:
    moves = {"stride": (2, 1), "padding": (1, 0)}
    layer = LorentzConv2d(2, 3, (3, 2), **moves, c=c).double()  # type: ignore[arg-type]
    x = image(2, 6, 5, 2, c=c)
    channels, inner = x[..., 1:].movedim(-1, 1), layer.linear.linear
    kernel, of_time = inner.weight[:, 1:].reshape(3, 2, 3, 2), inner.weight[:, 0]
    ones = torch.ones(1, 1, 3, 2, dtype=DOUBLE)
    squares = torch.nn.functional.conv2d(channels.square().sum(1, keepdim=True), ones, **moves)  # type: ignore[arg-type]
    space = torch.nn.functional.conv2d(channels, kernel, inner.bias, **moves)  # type: ignore[arg-type]
    space = space + of_time.reshape(-1, 1, 1) * (1 / c + squares).sqrt()
    torch.testing.assert_close(layer(x), lf.project(space.movedim(1, -1), c))


def test_groups_are_convolutions_of_their_own_side_by_side() -> None:
    options = {"kernel_size": 3, "padding": 2, "dilation": 2, "c": 0.7}
    layer, x = LorentzConv2d(4, 6, groups=2, **options).double(), image(2, 5, 4, 4, c=0.7)  # type: ignore[arg-type]
    parts = []
    for linear, space in zip(layer.linear, x[..., 1:].chunk(2, -1), strict=True):  # type: ignore[call-overload]
        part = LorentzConv2d(2, 3, **options).double()  # type: ignore[arg-type]
        part.linear = linear
        parts.append(part(lf.project(space, 0.7))[..., 1:])
    torch.testing.assert_close(layer(x), lf.project(torch.cat(parts, -1), 0.7))
    with pytest.raises(ValueError, match="groups: got 2, expected a divisor of 4 and 3 features"):
        LorentzConv2d(4, 3, 3, groups=2)
    with pytest.raises(ValueError, match=r"an image of at least \(5, 5\) points, padding \(0, 0\) included"):
        LorentzConv2d(4, 3, 3, dilation=2, c=0.7).double()(x)


def test_a_window_of_one_point_is_the_linear_layer_and_axes_in_front_are_free() -> None:
    layer, x = LorentzConv2d(3, 4, 1).double(), image(2, 7, 5, 6, 3)
    torch.testing.assert_close(layer(x), layer.linear(x))
    torch.testing.assert_close(layer(x[0, 0]), layer(x)[0, 0])
    assert layer(x[:0]).shape == (0, 7, 5, 6, 5)
    bounded = LorentzConv2d(3, 4, 3, magnitude="bounded", activation=torch.tanh, bias=False)
    assert (bounded(x.float())[..., 1:].norm(dim=-1) <= 2.0).all()
    assert isinstance(bounded.linear, LorentzLinear)


def test_a_shifted_image_gives_a_shifted_one() -> None:
    layer, x = LorentzConv2d(2, 3, 3).double(), image(1, 9, 9, 2)
    torch.testing.assert_close(layer(x.roll((1, 2), (1, 2)))[:, 1:, 2:], layer(x)[:, :-1, :-2])


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


def test_weights_of_edges_are_learned_and_half_precision_mixes() -> None:
    layer, weights = LorentzGraphConv(3, 4), graph(6, 0).float().requires_grad_()
    x = lf.expmap0(torch.randn(6, 3))
    lf.dist0(layer(x, weights)).sum().backward()
    assert weights.grad is not None
    assert weights.grad.abs().sum() > 0
    half = weights.detach().bfloat16()
    torch.testing.assert_close(layer(x, half), layer(x, half.float()))


def test_arguments_that_do_not_fit_are_refused(unchecked: None) -> None:
    for arguments, message in (
        ((0, 3, 3), "in_features: got 0"),
        ((3, 0, 3), "out_features: got 0"),
        ((3, 3, 0), "kernel_size: got 0, expected a number >= 1"),
        ((3, 3, (3, 3, 3)), r"kernel_size: got \(3, 3, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            LorentzConv2d(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="padding: got -1, expected a number >= 0"):
        LorentzConv2d(3, 3, 3, padding=-1)
    conv, x = LorentzConv2d(2, 3, 3), image(2, 5, 5, 2).float()
    with pytest.raises(ValueError, match=r"^x: got shape \(2, 5, 2\), expected a last axis of length 3"):
        conv(x[..., 0, 1:])
    with pytest.raises(ValueError, match=r"^x: got shape \(5, 3\), expected \(\*b, h, w, 3\)"):
        conv(x[0, 0])
    with pytest.raises(ValueError, match=r"^x: got shape \(2, 2, 5, 3\), .* at least \(3, 3\) points"):
        conv(x[:, :2])
    with pytest.raises(TypeError, match=r"^x: got float64 tensor"):
        conv(x.double())
    layer, nodes, edges = LorentzGraphConv(2, 3), x[0], torch.ones(5, 5)
    with pytest.raises(TypeError, match=r"^adjacency: got int64 tensor of shape \(5, 5\), expected floating point"):
        layer(nodes, edges.long())
    for wrong in (edges[:, :4], edges[0]):
        with pytest.raises(ValueError, match=r"^adjacency: got float32 tensor of shape .*, expected \(\*b, i, n\)"):
            layer(nodes, wrong)
    with pytest.raises(ValueError, match=r"^adjacency: got shape \(3, 5, 5\), whose leading axes"):
        layer(x[:, :, 0], edges.expand(3, 5, 5))
    with pytest.raises(ValueError, match=r"^adjacency: got a sparse matrix for 1 batch axes of x"):
        layer(nodes, edges.to_sparse())
    with pytest.raises(ValueError, match=r"^x: got shape \(5, 2\), expected a last axis of length 3"):
        layer(nodes[0, :, 1:], edges)
