"""Laws of all layers: on the manifold, dtypes, gradients near and far, one curvature; and of each simple one."""

import copy
import io

import pytest
import torch
from layers import EXAMPLES, OTHERS, POINTS, build, call
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lorentz
import lorentz.functional as lf
from lorentz.nn import Curvature, LorentzActivation, LorentzDropout, LorentzLayerNorm, LorentzResidual


def test_every_layer_has_an_example() -> None:
    modules = {name for name in lorentz.nn.__all__ if issubclass(getattr(lorentz.nn, name), nn.Module)}
    assert {name.split()[0] for name in EXAMPLES} == modules - OTHERS.keys(), "add an example of it to layers.py"


@pytest.mark.parametrize("layer", EXAMPLES)
@pytest.mark.parametrize("radius", [0.0, 1e-20, 1e-4, 3.0, 15.0])
def test_values_and_gradients_are_finite_near_and_far(layer: str, radius: float) -> None:
    curvature = Curvature(0.7)
    module = build(layer, curvature)
    v = (torch.nn.functional.normalize(torch.randn(2, 5, 4), dim=-1) * radius).requires_grad_()
    y = call(layer, module, lf.expmap0(v, curvature()))
    assert torch.isfinite(y).all()
    (lf.dist0(y, curvature()) ** 2 if layer in POINTS and layer != "LorentzDropout" else y).sum().backward()
    for name, leaf in (("v", v), *module.named_parameters()):
        assert leaf.grad is None or torch.isfinite(leaf.grad).all(), name


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("layer", [name for name in EXAMPLES if name != "LorentzEmbedding"])
def test_first_and_second_derivatives_are_right_at_the_origin_too(layer: str) -> None:
    """By points, curvature and all weights; forward over reverse and reverse over reverse."""
    curvature = Curvature(0.7)
    module = build(layer, curvature).double().train(layer == "LorentzBatchNorm")  # through mean and variance
    v = torch.randn(1, 3, 4, dtype=torch.float64)
    if layer not in ("LorentzLayerNorm", "LorentzLinear bounded"):  # steep (1/sqrt(eps)) or undefined there
        v[0, 0] = 0.0
    names = [name for name, parameter in module.named_parameters() if parameter is not curvature.raw]
    raw = next((name for name, parameter in module.named_parameters() if parameter is curvature.raw), "")
    weights = [module.get_parameter(name).detach().requires_grad_() for name in names]
    mask = EXAMPLES[layer].arguments(lf.project(v, 0.7))[1:]

    def loss(v: Tensor, c: Tensor, *weights: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same is dropped in every call
        x, *rest = EXAMPLES[layer].arguments(lf.project(v, 0.7))
        rest = mask if "masked" in layer else rest
        return torch.func.functional_call(module, {raw: c} | dict(zip(names, weights, strict=True)), (x, *rest))

    both = layer not in ("LogMap0", "LorentzPool2d")  # torch: "Nested forward mode AD is not supported"
    leaves = (v.requires_grad_(), curvature.raw.detach().requires_grad_(), *weights)
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused attention has no second derivative
        assert torch.autograd.gradcheck(lambda v, c: loss(v, c, *weights), leaves[:2])
        assert torch.autograd.gradcheck(loss, leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda v, c: loss(v, c, *weights), leaves[:2], check_fwd_over_rev=both)
        assert torch.autograd.gradgradcheck(loss, leaves, fast_mode=True)


def test_layers_share_one_learned_curvature() -> None:
    curvature = Curvature(1.5)
    parts = {name: build(name, curvature) for name in EXAMPLES}
    assert sum(p is curvature.raw for p in nn.ModuleList(parts.values()).parameters()) == 1
    x = lf.expmap0(torch.randn(2, 5, 4), curvature())
    for name in POINTS:
        (gradient,) = torch.autograd.grad(call(name, parts[name], x.detach()).sum(), curvature.raw)
        assert gradient.abs() > 0, name


@pytest.mark.parametrize("layer", EXAMPLES)
def test_copies_and_checkpoints_give_the_same_outputs(layer: str) -> None:
    module, other, file = build(layer, Curvature(0.8)).eval(), build(layer, Curvature(0.8)).eval(), io.BytesIO()
    arguments = EXAMPLES[layer].arguments(lf.expmap0(torch.randn(2, 5, 4), 0.8))
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    twin = copy.deepcopy(module)
    assert len([*twin.parameters()]) == len([*module.parameters()])  # a shared curvature is shared in the copy
    for same in (twin, other):
        assert torch.equal(same(*arguments), module(*arguments))


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("layer", EXAMPLES)
@pytest.mark.parametrize("points", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_the_weights_decide_and_autocast_gives_float32(
    layer: str, points: torch.dtype, weights: torch.dtype, device: str
) -> None:
    module, x = build(layer, 0.8).eval().to(weights), lf.expmap0(torch.randn(2, 5, 4), 0.8).to(points)
    weightless = all(p.ndim == 0 for p in module.parameters())  # a scalar is no weight: it decides nothing
    assert call(layer, module, x).dtype == (points if weightless else weights)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert call(layer, module, x).dtype == torch.float32


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("layer", ["LorentzLayerNorm", "LorentzLinear bounded"])
@pytest.mark.parametrize("radius", [1e-6, 1.0, 8.0, 30.0, 60.0])
def test_native_layers_are_accurate_near_and_far(layer: str, radius: float) -> None:
    """Against float64: a few roundings of the coordinates, also where squares of float32 overflow or vanish."""
    module = build(layer, 1.0)
    x = lf.expmap0(radius * torch.nn.functional.normalize(torch.randn(2, 50, 4), dim=-1))
    if layer == "LorentzLinear bounded":  # the direction, with lengths that do not vanish
        for parameter in (module.linear.bias, module.gate.weight):  # type: ignore[union-attr]
            torch.nn.init.zeros_(parameter)  # type: ignore[arg-type]
    got, wide = call(layer, module, x), call(layer, copy.deepcopy(module).double(), x.double())
    error = (got.double() - wide)[..., 1:].norm(dim=-1) / wide[..., 1:].norm(dim=-1)
    # Both cancel before they normalise: the mean in one, a product in the other.
    assert error.median() < 4e-7
    assert error.max() < 1e-4


def test_layer_norm_is_torchs_on_the_space_part() -> None:
    norm, plain = LorentzLayerNorm(6, c=0.5), nn.LayerNorm(6)
    with torch.no_grad():
        for ours, theirs in ((norm.weight, plain.weight), (norm.bias, plain.bias)):
            ours.copy_(theirs.copy_(torch.randn(6)))  # type: ignore[union-attr]
    x = lf.expmap0(torch.randn(7, 6), 0.5)
    torch.testing.assert_close(norm(x), lf.project(plain(x[..., 1:]), 0.5))
    assert dict(LorentzLayerNorm(6, affine=False).named_parameters()) == {}
    assert list(dict(LorentzLayerNorm(6, bias=False).named_parameters())) == ["weight"]


def test_activation_acts_on_the_space_part_and_registers_its_parameters() -> None:
    layer, x = LorentzActivation(nn.PReLU(), c=2.0), lf.expmap0(torch.randn(5, 4), 2.0)
    assert torch.equal(layer(x), lf.project(layer.activation(x[..., 1:]), 2.0))
    assert "activation.weight" in layer.state_dict()
    assert LorentzActivation(nn.GLU(), c=2.0)(x).shape == (5, 3)


def test_dropout_is_the_identity_in_eval_and_keeps_the_mean_in_training() -> None:
    layer = LorentzDropout(0.4)
    x = lf.expmap0(torch.randn(6)).expand(20_000, 7)
    y = layer(x)
    kept = y[:, 1:] != 0
    assert 0.58 < float(kept.float().mean()) < 0.62
    torch.testing.assert_close(y[:, 1:][kept], (x[:, 1:] / 0.6)[kept])
    for same in (layer.eval(), LorentzDropout(0.0)):
        assert torch.equal(same(x), lf.project(x[:, 1:]))


@pytest.mark.parametrize("c", [0.2, 5.0])
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
