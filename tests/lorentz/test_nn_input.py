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
    LorentzDropout,
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
@pytest.mark.parametrize("c", [0.0, -1.0, math.nan, math.inf])
def test_curvature_must_be_a_positive_number(layer: str, c: float) -> None:
    with pytest.raises(ValueError, match=f"c: got {c}, expected a finite number > 0"):
        build(layer, c)


@pytest.mark.parametrize("layer", EXAMPLES)
def test_a_tensor_is_no_curvature(layer: str) -> None:
    with pytest.raises(TypeError, match=r"c: got float32 tensor.*lorentz.nn.Curvature"):
        build(layer, torch.tensor(1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LorentzLayerNorm(0), "features: got 0"),
        (lambda: LorentzLayerNorm(4, eps=-1.0), "eps: got -1.0"),
        (lambda: LorentzDropout(1.0), "p: got 1.0"),
        (lambda: LorentzResidual(0.0), "share: got 0.0"),
        (lambda: LorentzResidual(math.nan), "share: got nan"),
        (lambda: LorentzMLR(4, 0), "num_classes: got 0"),
        (lambda: LorentzLinear(0, 4), "in_features: got 0"),
        (lambda: LorentzLinear(4, 4, max_length=math.nan), "max_length: got nan"),
        (lambda: LorentzLinear(2, 2, max_length=0.0), "max_length"),
        (lambda: LorentzLinear(2, 2, magnitude="unbounded"), "bounded"),  # type: ignore[arg-type]
        (lambda: LorentzMultiheadAttention(4, 0), "num_heads: got 0"),
        (lambda: LorentzMultiheadAttention(8, 5), "divides neither"),
        (lambda: LorentzMultiheadAttention(3, 4), "head_dim"),
        (lambda: LorentzMultiheadAttention(8, 2, dropout=1.0), "dropout"),
        (lambda: Curvature(0.05), "expected 0 < lo < init < hi"),
        (lambda: Curvature(10.0), "expected 0 < lo < init < hi"),
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


def test_residual_refuses_points_that_do_not_go_together() -> None:
    layer, x = LorentzResidual(), lf.project(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"y: got shape \(3, 4\), expected a last axis of length 5"):
        layer(x, x[:, 1:])
    with pytest.raises(ValueError, match=r"y: got shape \(2, 5\)"):
        layer(x, x[:2])
    with pytest.raises(TypeError, match="y: got float64 tensor"):
        layer(x, x.double())


def test_attention_names_the_argument() -> None:
    module, x = LorentzMultiheadAttention(4, 2), lf.project(torch.zeros(3, 6, 4))
    with pytest.raises(ValueError, match=r"k: got shape \(3, 6, 4\), expected a last axis of length 5"):
        module(x, x[..., 1:], x)
    with pytest.raises(ValueError, match=r"v: got shape \(3, 2, 5\), expected one value for each key"):
        module(x, x, x[:, :2])
    with pytest.raises(ValueError, match=r"k: got shape \(2, 6, 5\), whose leading axes"):
        module(x, x[:2], x[:2])
    with pytest.raises(ValueError, match=r"q: got shape \(5,\), expected \(\*b, length, 5\)"):
        module(x[0, 0], x, x)
    with pytest.raises(TypeError, match="mask: got float32 tensor"):
        module(x, x, x, mask=torch.ones(6, 6))
    with pytest.raises(ValueError, match=r"mask: got shape \(5, 5\)"):
        module(x, x, x, mask=torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize("c", [0.25, Curvature(1.0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_long_vectors_are_shortened_and_keep_their_direction(c: float | Curvature, dtype: torch.dtype) -> None:
    root = float(c() if isinstance(c, Curvature) else c) ** 0.5
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
    with pytest.raises(ValueError, match="max_norm: got 0, expected a positive number, or None"):
        ExpMap0(max_norm=0)
