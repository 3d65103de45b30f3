"""Laws of the layers between points: on the manifold, equivariance, residuals, dropout, and gradients everywhere."""

import pytest
import torch
from layers import EXAMPLES, OTHERS, POINTS
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lorentz
import lorentz.functional as lf
from lorentz.nn import (
    Curvature,
    LorentzActivation,
    LorentzDropout,
    LorentzLayerNorm,
    LorentzResidual,
)


def build(name: str, c: float | Curvature) -> nn.Module:
    return EXAMPLES[name].build(lorentz.nn, c)


def call(name: str, layer: nn.Module, x: Tensor) -> Tensor:
    """The layer on x; a residual joins x with the next point, attention attends to x itself."""
    return layer(*EXAMPLES[name].arguments(x))


def test_every_layer_has_an_example() -> None:
    modules = {name for name in lorentz.nn.__all__ if issubclass(getattr(lorentz.nn, name), nn.Module)}
    assert {name.split()[0] for name in EXAMPLES} == modules - OTHERS.keys(), "add an example of it to layers.py"


@pytest.mark.parametrize("layer", POINTS)
@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_are_points_of_the_input_dtype(layer: str, c: float, dtype: torch.dtype) -> None:
    module = build(layer, c).to(dtype)
    y = call(layer, module, lf.expmap0(torch.randn(2, 5, 4, dtype=dtype), c))
    assert y.dtype == dtype
    assert y.shape == (2, 5, 5)
    tolerance = 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(y[..., 0], (1 / c + y[..., 1:].square().sum(-1)).sqrt(), rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("layer", POINTS)
@pytest.mark.parametrize("radius", [0.0, 1e-20, 1e-4, 3.0, 15.0])
def test_values_and_gradients_are_finite_near_and_far(layer: str, radius: float) -> None:
    curvature = Curvature(0.7)
    module = build(layer, curvature)
    v = (torch.nn.functional.normalize(torch.randn(2, 5, 4), dim=-1) * radius).requires_grad_()
    y = call(layer, module, lf.expmap0(v, curvature()))
    assert torch.isfinite(y).all()
    (lf.dist0(y, curvature()) ** 2).sum().backward() if layer != "LorentzDropout" else y.sum().backward()
    assert v.grad is not None
    assert torch.isfinite(v.grad).all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("layer", POINTS)
def test_first_and_second_derivatives_are_right_at_the_origin_too(layer: str) -> None:
    curvature = Curvature(0.7)
    module = build(layer, curvature).double().eval()
    v, raw = torch.randn(1, 3, 4, dtype=torch.float64), curvature.raw.detach().requires_grad_()
    if layer not in ("LorentzLayerNorm", "LorentzLinear bounded"):  # steep (1/sqrt(eps)) or undefined there
        v[0, 0] = 0.0
    v.requires_grad_()
    name = next(name for name, parameter in module.named_parameters() if parameter is curvature.raw)

    def loss(v: Tensor, raw: Tensor) -> Tensor:
        arguments = EXAMPLES[layer].arguments(lf.project(v, 0.7))
        return torch.func.functional_call(module, {name: raw}, arguments)

    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no second derivative
        assert torch.autograd.gradcheck(loss, (v, raw))
        assert torch.autograd.gradgradcheck(loss, (v, raw))


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize(
    "layer", ["LorentzLayerNorm", "LorentzActivation", "LorentzDropout", "LorentzResidual"]
)  # a linear layer reads the time
def test_the_incoming_time_part_is_not_trusted(layer: str) -> None:
    module = build(layer, 1.0).eval()
    x = lf.expmap0(torch.randn(2, 5, 4))
    broken = torch.cat([torch.full_like(x[..., :1], 7.0), x[..., 1:]], -1)
    assert torch.equal(call(layer, module, x), call(layer, module, broken))


def test_layer_norm_is_torchs_on_the_space_part() -> None:
    norm, plain = LorentzLayerNorm(6, c=0.5), nn.LayerNorm(6)
    with torch.no_grad():
        for ours, theirs in ((norm.weight, plain.weight), (norm.bias, plain.bias)):
            ours.copy_(theirs.copy_(torch.randn(6)))  # type: ignore[union-attr]
    x = lf.expmap0(torch.randn(7, 6), 0.5)
    torch.testing.assert_close(norm(x), lf.project(plain(x[..., 1:]), 0.5))
    assert dict(LorentzLayerNorm(6, affine=False).named_parameters()) == {}
    assert list(dict(LorentzLayerNorm(6, bias=False).named_parameters())) == ["weight"]


def test_layer_norm_commutes_with_permutations_and_forgets_the_radius() -> None:
    norm = LorentzLayerNorm(6, eps=0.0, affine=False)
    v, order = torch.randn(7, 6), torch.randperm(6)
    torch.testing.assert_close(norm(lf.project(v[:, order]))[:, 1:], norm(lf.project(v))[:, 1:][:, order])
    for factor in (1e-6, 1e3, 1e25):  # squares of the last overflow float32
        torch.testing.assert_close(norm(lf.project(factor * v)), norm(lf.project(v)), rtol=1e-5, atol=1e-5)
        with lorentz.precision("native"):
            torch.testing.assert_close(norm(lf.project(factor * v)), norm(lf.project(v)), rtol=1e-5, atol=1e-5)


def test_activation_acts_on_the_space_part_and_registers_its_parameters() -> None:
    layer = LorentzActivation(nn.PReLU(), c=2.0)
    x = lf.expmap0(torch.randn(5, 4), 2.0)
    assert torch.equal(layer(x), lf.project(layer.activation(x[..., 1:]), 2.0))
    assert "activation.weight" in layer.state_dict()
    assert LorentzActivation(nn.GLU(), c=2.0)(x).shape == (5, 3)
    assert (lf.dist0(LorentzActivation(torch.relu, c=2.0)(x), 2.0) <= lf.dist0(x, 2.0)).all()


def test_dropout_is_the_identity_in_eval_and_keeps_the_mean_in_training() -> None:
    layer = LorentzDropout(0.4)
    x = lf.expmap0(torch.randn(6)).expand(20_000, 7)
    y = layer(x)
    kept = y[:, 1:] != 0
    assert 0.58 < float(kept.float().mean()) < 0.62
    torch.testing.assert_close(y[:, 1:][kept], (x[:, 1:] / 0.6)[kept])
    torch.testing.assert_close(y[:, 1:].mean(0), x[0, 1:], rtol=0.03, atol=0.0)
    assert torch.equal(layer.eval()(x), lf.project(x[:, 1:]))
    assert torch.equal(LorentzDropout(0.0)(x), lf.project(x[:, 1:]))


@pytest.mark.parametrize("c", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_residual_is_the_centroid_and_lies_on_the_geodesic(c: float, share: float) -> None:
    x, y = lf.expmap0(torch.randn(2, 20, 4, dtype=torch.float64), c)
    m = LorentzResidual(share, c=c)(x, y)
    weights = torch.tensor([[1 - share, share]], dtype=torch.float64)
    torch.testing.assert_close(m, lf.centroid(torch.stack([x, y], -2), weights, c).squeeze(-2))
    whole, first, second = lf.dist(x, y, c), lf.dist(x, m, c), lf.dist(m, y, c)
    torch.testing.assert_close(first + second, whole)
    # Law of the lever: (1 - w) sinh(d(x, m)) = w sinh(d(m, y)).
    root = c**0.5
    torch.testing.assert_close((1 - share) * torch.sinh(root * first), share * torch.sinh(root * second))


def test_residual_of_equal_points_is_the_point_and_of_swapped_points_the_same() -> None:
    x, y = lf.expmap0(3.0 * torch.randn(2, 50, 8))
    assert torch.equal(LorentzResidual(0.37)(x, x)[:, 1:], x[:, 1:])
    torch.testing.assert_close(LorentzResidual(0.3)(x, y), LorentzResidual(0.7)(y, x), rtol=1e-5, atol=1e-5)
    x, y = lf.expmap0(torch.randn(2, 50, 8))
    torch.testing.assert_close(LorentzResidual(0.5)(x, y), lf.expmap(x, 0.5 * lf.logmap(x, y)), rtol=1e-5, atol=1e-5)


def test_classifier_and_layers_share_one_learned_curvature() -> None:
    curvature = Curvature(1.5)
    parts = {name: build(name, curvature) for name in EXAMPLES}
    whole = nn.ModuleList(parts.values())
    assert sum(p is curvature.raw for p in whole.parameters()) == 1
    x = lf.expmap0(torch.randn(2, 5, 4), curvature())
    for name in POINTS:
        (gradient,) = torch.autograd.grad(call(name, parts[name], x.detach()).sum(), curvature.raw)
        assert gradient.abs() > 0, name
