"""What the layers say to bad input: the argument, what it was, what was expected."""

import math
from collections.abc import Callable

import pytest
import torch
from layers import EXAMPLES, Example
from test_nn_laws import build
from torch import nn

import lorentz.functional as lf
from lorentz.nn import (
    Curvature,
    ExpMap0,
    LorentzActivation,
    LorentzBatchNorm,
    LorentzContrastiveLoss,
    LorentzConv2d,
    LorentzDropout,
    LorentzEmbedding,
    LorentzGraphConv,
    LorentzLayerNorm,
    LorentzLinear,
    LorentzMLR,
    LorentzMultiheadAttention,
    LorentzResidual,
)

pytestmark = pytest.mark.usefixtures("unchecked")

ONE_INPUT = [
    name
    for name, example in EXAMPLES.items()
    if example.arguments is Example._field_defaults["arguments"] and name != "LogMap0"  # a map says `points`
]


@pytest.mark.parametrize("layer", EXAMPLES)
def test_a_curvature_is_a_positive_number_or_a_module(layer: str) -> None:
    with pytest.raises(ValueError, match=r"c: got -1\.0, expected a finite number > 0"):
        build(layer, -1.0)
    with pytest.raises(TypeError, match=r"c: got float32 tensor.*lorentz.nn.Curvature"):
        build(layer, torch.tensor(1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LorentzLayerNorm(0), "features: got 0"),
        (lambda: LorentzLayerNorm(4, eps=-1.0), "eps: got -1.0"),
        (lambda: LorentzBatchNorm(3, eps=-1.0), "eps: got -1.0"),
        (lambda: LorentzBatchNorm(3, momentum=2.0), "momentum: got 2.0"),
        (lambda: LorentzDropout(1.0), "p: got 1.0"),
        (lambda: LorentzResidual(math.nan), "share: got nan"),
        (lambda: LorentzMLR(4, 0), "num_classes: got 0"),
        (lambda: LorentzLinear(0, 4), "in_features: got 0"),
        (lambda: LorentzLinear(4, 4, max_length=math.nan), "max_length: got nan"),
        (lambda: LorentzLinear(2, 2, magnitude="unbounded"), "bounded"),  # type: ignore[arg-type]
        (lambda: LorentzMultiheadAttention(4, 0), "num_heads: got 0"),
        (lambda: LorentzMultiheadAttention(8, 5), "divides neither"),
        (lambda: LorentzMultiheadAttention(3, 4), "head_dim"),
        (lambda: LorentzMultiheadAttention(8, 2, dropout=1.0), "dropout"),
        (lambda: LorentzMultiheadAttention(8, 2, temperature=0.0), "temperature: got 0"),
        (lambda: LorentzConv2d(3, 3, (3, 3, 3)), "kernel_size: got"),  # type: ignore[arg-type]
        (lambda: LorentzConv2d(3, 3, 3, padding=-1), "padding: got -1, expected a number >= 0"),
        (lambda: LorentzConv2d(4, 3, 3, groups=2), "groups: got 2, expected a divisor of 4 and 3"),
        (lambda: LorentzEmbedding(0, 4), "num_embeddings: got 0"),
        (lambda: LorentzEmbedding(4, 4, 4), "padding_idx: got 4, expected one of the 4 numbers"),
        (lambda: LorentzEmbedding(4, 4, radius=0.0), "radius: got 0.0"),
        (lambda: LorentzContrastiveLoss(1), "embed_dim: got 1"),
        (lambda: LorentzContrastiveLoss(4, temperature=0.01), r"temperature: got 0\.01"),
        (lambda: LorentzContrastiveLoss(4, entailment_weight=-1.0), "entailment_weight: got -1"),
        (lambda: LorentzContrastiveLoss(4, min_radius=0.0), r"min_radius: got 0\.0"),
        (lambda: ExpMap0(max_norm=0), "max_norm: got 0, expected a positive number, or None"),
        (lambda: Curvature(0.05), "expected 0 < lo < init < hi"),
        (lambda: Curvature(1.0, bounds=(0.0, 2.0)), "expected 0 < lo < init < hi"),
        (lambda: Curvature(math.nan), "init, bounds: got nan"),
    ],
)
def test_arguments_of_construction(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_activation_must_be_callable() -> None:
    with pytest.raises(TypeError, match="activation: got str"):
        LorentzActivation("relu")  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", ONE_INPUT)
def test_integers_and_numbers_are_refused_and_empty_batches_are_not(layer: str) -> None:
    module = build(layer, 1.0)
    with pytest.raises(TypeError, match=r"x: got int64 tensor of shape \(2, 5\), expected floating point"):
        module(torch.ones(2, 5, dtype=torch.int64))
    with pytest.raises(TypeError, match="x: got list"):
        module([[1.0, 0.0, 0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"x: got shape \(2, 1\)"):
        module(torch.ones(2, 1))
    assert module(torch.ones(0, 5)).shape[0] == 0


@pytest.mark.parametrize(
    "layer", [name for name in ONE_INPUT if build(name, 1.0).state_dict().keys() - {"curvature._extra_state"}]
)
def test_dimension_and_dtype_must_be_those_of_the_layer(layer: str) -> None:
    module = build(layer, 1.0)
    with pytest.raises(ValueError, match=r"x: got shape \(2, 4\), expected a last axis of length 5"):
        module(torch.ones(2, 4))
    with pytest.raises(TypeError, match=r"x: got float64 tensor of shape \(2, 5\), but the layer is torch.float32"):
        module(torch.ones(2, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"x: got float32 tensor of shape \(2, 5\) on meta, but the layer is on cpu"):
        module(torch.ones(2, 5, device="meta"))


X, IMAGE = lf.project(torch.zeros(3, 6, 4)), lf.project(torch.zeros(2, 5, 5, 2))
EDGES, FEATURES = torch.ones(6, 6), torch.ones(2, 4)
attend, join = LorentzMultiheadAttention(4, 2), LorentzResidual()
convolve, spread = LorentzConv2d(2, 3, 3), LorentzGraphConv(4, 3)
contrast, norm = LorentzContrastiveLoss(4), LorentzBatchNorm(4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: join(X, X[:2]), ValueError, r"y: got shape \(2, 6, 5\)"),
        (lambda: join(X, X.double()), TypeError, "y: got float64 tensor"),
        (lambda: attend(X, X[..., 1:], X), ValueError, r"k: got shape .*, expected a last axis of length 5"),
        (lambda: attend(X, X, X[:, :2]), ValueError, "v: got shape .*, expected one value for each key"),
        (lambda: attend(X, X[:2], X[:2]), ValueError, r"k: got shape \(2, 6, 5\), whose leading axes"),
        (lambda: attend(X[0, 0], X, X), ValueError, r"q: got shape \(5,\), expected \(\*b, length, 5\)"),
        (lambda: attend(X, X, X, mask=EDGES), TypeError, "mask: got float32 tensor"),
        (lambda: attend(X, X, X, mask=EDGES[1:].bool()), ValueError, r"mask: got shape \(5, 6\)"),
        (lambda: attend(X, X, X, key_padding_mask=EDGES), TypeError, "key_padding_mask: got float32 tensor"),
        (lambda: attend(X, X, X, key_padding_mask=EDGES.bool()), ValueError, "key_padding_mask: got shape"),
        (lambda: convolve(IMAGE[0, 0]), ValueError, r"x: got shape \(5, 3\), expected \(\*b, h, w, 3\)"),
        (lambda: convolve(IMAGE[:, :2]), ValueError, r"x: got shape .* at least \(3, 3\) points"),
        (lambda: spread(X[0], EDGES.long()), TypeError, "adjacency: got int64 tensor"),
        (lambda: spread(X[0], EDGES[:, :4]), ValueError, r"adjacency: got .*, expected \(\*b, i, n\)"),
        (lambda: spread(X, EDGES.expand(2, 6, 6)), ValueError, r"adjacency: got .*, whose leading axes"),
        (lambda: spread(X, EDGES.to_sparse()), ValueError, "adjacency: got a sparse matrix for 1 batch axes of x"),
        (lambda: norm(X[:1, :1]), ValueError, r"x: got one point, .* expected more in training; call \.eval"),
        (lambda: norm(X, EDGES[:3]), TypeError, "mask: got float32 tensor .*booleans, True where a point counts"),
        (lambda: norm(X, EDGES.bool()), ValueError, "mask: got shape .* those of the points"),
        (lambda: contrast(FEATURES[:, :3], FEATURES[:, :3]), ValueError, r"general: got shape \(2, 3\)"),
        (lambda: contrast(FEATURES, FEATURES.repeat(2, 1)), ValueError, "specific: got shape .* general_of"),
        (lambda: contrast(FEATURES, FEATURES, FEATURES[:, 0] > 0), TypeError, "general_of: got bool .* integers"),
        (lambda: LorentzEmbedding(4, 4)(FEATURES), TypeError, "numbers: got .*, expected integers"),
    ],
)
def test_arguments_of_a_call(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    ("c", "dtype"), [(0.25, torch.float16), (Curvature(1.0), torch.float32), (Curvature(1.0), torch.float64)]
)
def test_long_vectors_are_shortened_and_keep_their_direction(c: float | Curvature, dtype: torch.dtype) -> None:
    root = float(c().detach() if isinstance(c, Curvature) else c) ** 0.5
    v = torch.randn(40, 6, dtype=torch.float64)
    v *= torch.logspace(-3, 4, 40, dtype=torch.float64)[:, None] / v.norm(dim=-1, keepdim=True) / root
    v = v.to(dtype)
    for limit, layer in ((5.0, ExpMap0(c)), (1.0, ExpMap0(c, max_norm=1.0))):
        points = layer(v)
        length = root * v.double().norm(dim=-1, keepdim=True)
        expected = v.double() * (limit / length).clamp(max=1.0)
        got = lf.logmap0(lf.project(points[:, 1:].double(), root**2), root**2)
        torch.testing.assert_close(got, expected, rtol=20 * torch.finfo(dtype).eps, atol=1e-30)
    near = v[(root * v.double().norm(dim=-1) < 5)]
    assert torch.equal(ExpMap0(c)(near), ExpMap0(c, max_norm=None)(near))
    assert not ExpMap0(c, max_norm=None)(v).isfinite().all()


def test_gradients_of_shortened_vectors_turn_them_alone() -> None:
    v = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1e30, 1e30]]).requires_grad_()
    x = ExpMap0(max_norm=2.0)(v)
    x[:, 1:].square().sum().backward()
    assert v.grad is not None
    torch.testing.assert_close(v.grad, torch.zeros(3, 2), rtol=0, atol=1e-5)
