"""Layers beside their Euclidean twins, which they become as c -> 0, beside HypLL's, and in training."""

import pytest
import torch
import torch.nn.functional as F
from hypll.manifolds.poincare_ball import Curvature as Curving
from hypll.manifolds.poincare_ball import PoincareBall
from hypll.nn import HLinear
from hypll.tensors import ManifoldTensor
from torch import Tensor, nn

import lorentz.functional as lf
import lorentz.nn as lnn
from lorentz.models import from_poincare, to_poincare

DOUBLE = torch.float64
FLAT = 1e-10
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def points(*shape: int, c: float = FLAT) -> Tensor:
    return lf.project(torch.randn(*shape, dtype=DOUBLE), c)


@pytest.mark.parametrize("scale", ["distance", "angle"])
def test_the_limit_of_a_plane_linear_is_a_linear_layer(scale: str) -> None:
    layer = lnn.LorentzPlaneLinear(4, 3, activation=torch.tanh, scale=scale, c=FLAT).double()  # type: ignore[arg-type]
    weight = layer.planes.weight
    nn.init.normal_(layer.planes.offset)
    x = points(7, 4)
    expected = torch.tanh(F.linear(x[:, 1:], weight, -weight.norm(dim=-1) * layer.planes.offset))
    torch.testing.assert_close(layer(x)[:, 1:], expected, **CLOSE)


@pytest.mark.parametrize("c", [0.4, 3.0])
def test_a_plane_linear_is_hyplls_linear(c: float) -> None:
    ball = PoincareBall(Curving(torch.tensor(c), constraining_strategy=lambda c: c))
    theirs, ours = HLinear(4, 3, ball), lnn.LorentzPlaneLinear(4, 3, c=c)
    nn.init.normal_(theirs.bias, std=0.3)
    with torch.no_grad():
        ours.planes.weight.copy_(2.0 * theirs.z.tensor.mT)
        ours.planes.offset.copy_(2.0 * theirs.bias)
    x = lf.expmap0(torch.randn(9, 4) / c**0.5, c)
    expected = theirs(ManifoldTensor(to_poincare(x, c), ball)).tensor
    torch.testing.assert_close(ours(x), from_poincare(expected, c), rtol=1e-4, atol=1e-5)


def test_the_scales_of_a_plane_linear() -> None:
    """Equal at |z| = 1; else |z| multiplies the distance from the plane, or its sinh (FGG's x @ V)."""
    c, x = 0.7, points(9, 4, c=0.7)
    layers = [lnn.LorentzPlaneLinear(4, 3, scale=scale, c=c).double() for scale in ("distance", "angle")]
    layers[1].load_state_dict(layers[0].state_dict())
    z, a = layers[0].planes.weight.detach(), layers[0].planes.offset
    nn.init.normal_(a)
    layers[1].planes.offset.data.copy_(a)
    unit = F.normalize(z, dim=-1)
    ambient = torch.cat([-torch.sinh(c**0.5 * a)[:, None], torch.cosh(c**0.5 * a)[:, None] * unit], -1)
    torch.testing.assert_close(layers[1](x)[:, 1:], z.norm(dim=-1) * (x @ ambient.mT))
    distances = torch.asinh(c**0.5 * (x @ ambient.mT)) / c**0.5
    planes = torch.asinh(c**0.5 * layers[0](x)[:, 1:]) / c**0.5
    torch.testing.assert_close(planes, z.norm(dim=-1) * distances)


def test_lengths_are_reached_in_steps_in_proportion() -> None:
    """Van der Klis et al. (2026): with W x + b in the space part they grow with the logarithm of the steps of SGD."""

    def steps(layer: nn.Module, radius: float) -> int:
        x = lf.expmap0(2**0.5 * torch.eye(6, dtype=DOUBLE)[0])
        optimiser = torch.optim.SGD(layer.double().parameters(), lr=0.1)
        for step in range(5000):
            length = lf.dist0(layer(x))
            if length > radius - 0.1:
                return step
            optimiser.zero_grad()
            (length - radius).square().backward()
            nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimiser.step()
        return 5000

    makes = {
        "free": lambda: lnn.LorentzLinear(6, 6),
        "bounded": lambda: lnn.LorentzLinear(6, 6, magnitude="bounded"),
        "distance": lambda: lnn.LorentzPlaneLinear(6, 6),
        "angle": lambda: lnn.LorentzPlaneLinear(6, 6, scale="angle"),
    }
    ratios = {}
    for name, make in makes.items():
        torch.manual_seed(0)
        ratios[name] = steps(make(), 6.0) / steps(make(), 3.0)
    assert ratios["free"] > 10.0, ratios
    assert max(ratios[name] for name in ("bounded", "distance", "angle")) < 6.0, ratios


def test_rms_norm_is_torchs_on_the_space_part() -> None:
    norm, plain, x = lnn.LorentzRMSNorm(6, eps=0.1, c=0.5), nn.RMSNorm(6, eps=0.1), points(7, 6, c=0.5).float()
    nn.init.normal_(norm.weight)  # type: ignore[arg-type]
    plain.weight.data.copy_(norm.weight)  # type: ignore[arg-type]
    torch.testing.assert_close(norm(x), lf.project(plain(x[..., 1:]), 0.5))
    assert [*lnn.LorentzRMSNorm(6, affine=False).parameters()] == []


@pytest.mark.parametrize("c", [0.5, 4.0])
def test_rotary_turns_pairs_and_keeps_what_depends_on_the_difference(c: float) -> None:
    layer, x = lnn.LorentzRotary(6, base=50.0, c=c), points(2, 5, 6, c=c)
    turned = torch.complex(x[..., 1:4], x[..., 4:]) * torch.exp(
        1j * torch.arange(5)[:, None] * 50.0 ** (-torch.arange(3) / 3)
    )
    torch.testing.assert_close(layer(x), torch.cat([x[..., :1], turned.real, turned.imag], -1), **CLOSE)
    there = [layer(x, torch.tensor(p)) for p in (0, 3, 10, 13)]
    torch.testing.assert_close(lf.dist(there[0][0], there[1][1], c), lf.dist(there[2][0], there[3][1], c))
    assert not torch.allclose(lf.dist(there[0][0], there[1][1], c), lf.dist(there[0][0], there[2][1], c))


def test_rotary_heads_of_attention() -> None:
    torch.manual_seed(1)
    c, x = 0.8, lf.expmap0(torch.randn(2, 7, 8, dtype=DOUBLE) / 8**0.5, 0.8)
    layer = lnn.LorentzMultiheadAttention(8, 2, rotary=20.0, c=c).double()
    turn = lnn.LorentzRotary(4, base=20.0, c=c)
    queries, keys, values = (lf.split_heads(part.space(x), 2, c) for part in (layer.query, layer.key, layer.value))
    heads = lf.lorentz_attention(turn(queries), turn(keys), values, c, temperature=layer.log_temperature.exp())
    torch.testing.assert_close(layer(x, x, x), lf.join_heads(heads, c), **CLOSE)
    cache: dict[str, Tensor] = {}
    steps = [layer(one, one, one, is_causal=True, cache=cache) for one in x.split([3, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, x, x, is_causal=True), **CLOSE)
    plain = lnn.LorentzMultiheadAttention(8, 2, c=c).double()
    plain.load_state_dict(layer.state_dict())
    assert not torch.allclose(plain(x, x, x), layer(x, x, x))


@pytest.mark.parametrize("c", [FLAT, 0.6])
def test_linear_attention_is_a_centroid_with_the_weights_of_linear_attention(c: float) -> None:
    torch.manual_seed(2)
    layer, x = lnn.LorentzLinearAttention(6, 2, c=c).double(), points(3, 5, 6, c=c)
    with torch.no_grad():
        for part in (layer.query, layer.key, layer.value):
            part.linear.weight[:, 0] = 0.0  # the time part, 1e5 in flat space
    mask = torch.rand(3, 5) > 0.3
    mask[1] = False
    got = layer(x, x, x, mask=mask)
    q, k, v = (part.space(x).unflatten(-1, (2, 3)).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT) * mask[:, None, None]
    torch.testing.assert_close(got, lf.join_heads(lf.centroid(lf.project(v, c), weights, c), c), **CLOSE)
    assert torch.equal(got[1, :, 1:], torch.zeros(5, 6, dtype=DOUBLE))
    if c == FLAT:
        mean = weights @ v / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(got[0, :, 1:], mean.transpose(1, 2).flatten(-2)[0], **CLOSE)


@pytest.mark.parametrize("stride", [None, (1, 2)])
def test_pooling_is_torchs_in_flat_space(stride: tuple[int, int] | None) -> None:
    image = points(2, 6, 7, 3)
    space = image[..., 1:].movedim(-1, 1)
    for mode, twin in (("mean", F.avg_pool2d), ("max", F.max_pool2d)):
        got = lnn.LorentzPool2d((2, 3), stride, mode=mode, c=FLAT)(image)  # type: ignore[arg-type]
        torch.testing.assert_close(got[..., 1:].movedim(-1, 1), twin(space, (2, 3), stride), **CLOSE)
    curved = lf.expmap0(image[..., 1:], 2.0)
    mean = lf.centroid(curved[:, :2, :3].flatten(1, 2), c=2.0)
    torch.testing.assert_close(lnn.LorentzPool2d((2, 3), c=2.0)(curved)[:, 0, 0], mean)


def test_flatten_is_torchs_on_the_space_part() -> None:
    image = points(2, 3, 4, 5, c=0.5)
    torch.testing.assert_close(lnn.LorentzFlatten(c=0.5)(image), lf.project(image[..., 1:].flatten(1), 0.5))
    assert lnn.LorentzFlatten(1, c=0.5)(image).shape == (2, 3, 21)


def test_a_3d_convolution_is_torchs_on_space_parts() -> None:
    options = {"stride": (1, 2, 1), "padding": (1, 0, 2), "dilation": (1, 1, 2)}
    ours = lnn.LorentzConv3d(3, 4, (2, 3, 2), c=0.5, **options).double()  # type: ignore[arg-type]
    twin = nn.Conv3d(3, 4, (2, 3, 2), **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        ours.linear.linear.weight[:, 0] = 0.0  # the time of a window
        twin.weight.copy_(ours.linear.linear.weight[:, 1:].view_as(twin.weight))
        twin.bias.copy_(ours.linear.linear.bias)  # type: ignore[union-attr]
    x = points(2, 4, 6, 5, 3, c=0.5)
    torch.testing.assert_close(ours(x), lf.project(twin(x[..., 1:].movedim(-1, 1)).movedim(1, -1), 0.5), **CLOSE)


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.curvature = c = lnn.Curvature(0.5)
        self.enter, self.rotary = lnn.ExpMap0(c), lnn.LorentzRotary(8, c=c)
        self.attention, self.join = lnn.LorentzLinearAttention(8, 2, c=c), lnn.LorentzResidual(c=c)
        self.turned = lnn.LorentzMultiheadAttention(8, 2, rotary=100.0, c=c)
        self.branch = nn.Sequential(lnn.LorentzRMSNorm(8, c=c), lnn.LorentzPlaneLinear(8, 8, activation=F.relu, c=c))
        self.leave = nn.Sequential(lnn.LorentzFlatten(1, c=c), lnn.LorentzMLR(48, 3, c=c))

    def forward(self, v: Tensor) -> Tensor:
        x = self.rotary(self.enter(v / 3))
        x = self.join(x, self.attention(x, x, x))
        x = self.join(x, self.turned(x, x, x))
        return self.leave(self.join(x, self.branch(x)))


class Videos(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.curvature = c = lnn.Curvature(0.5)
        self.parts = nn.Sequential(
            lnn.ExpMap0(c),
            lnn.LorentzConv3d(8, 6, (1, 2, 2), c=c),
            lnn.LorentzPool2d((1, 2), mode="mean", c=c),
            lnn.LorentzPool2d(1, mode="max", c=c),
            lnn.LorentzFlatten(3, c=c),
            lnn.LorentzMLR(12, 3, c=c),
        )

    def forward(self, v: Tensor) -> Tensor:
        return self.parts(v.view(-1, 1, 2, 3, 8).expand(-1, 2, -1, -1, -1))


@pytest.mark.parametrize("make", [Sequences, Videos])
def test_they_train(make: type[nn.Module]) -> None:
    """The class is where the large step of a sequence stands: only its position tells."""
    torch.manual_seed(3)
    model, target = make(), torch.randint(3, (96,))
    v = 0.3 * torch.randn(96, 6, 8)
    v[torch.arange(96), 2 * target] += 1.5
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(v), target)
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses
