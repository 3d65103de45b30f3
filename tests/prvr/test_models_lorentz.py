"""Lorentz blocks against HLFormer eq. 11-16 written out, with every magnitude, activation and curvature."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.rows import Sequences
from prvr.published.hlformer.lorentz_mixer import LorentzMixer
from prvr.published.hlformer.parts import printed_window

N, DIM, HEADS, LENGTH = 7, 6, 2, 5
WHOLE = Sequences.padded(torch.ones(1, LENGTH, dtype=torch.bool))


def make(**changes: Any) -> LorentzMixer:
    torch.manual_seed(0)
    sizes = {"video_dim": 1, "query_dim": 1, "hidden": DIM, "heads": HEADS, "lorentz_dim": N, "dropout": 0.0}
    mixer = LorentzMixer(ModelConfig(**(sizes | changes)), 1).double()
    for parameter in mixer.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.4)
    return mixer


def point(space: Tensor, c: float) -> Tensor:
    return torch.cat([(1 / c + space.square().sum(-1, keepdim=True)).sqrt(), space], -1)


def space_part(mixer: Any, part: int, x: Tensor, magnitude: str, activation: str) -> Tensor:
    """Eq. 14 for one point of n + 1 coordinates."""
    h = torch.relu(x) if activation == "relu" else x
    direction = mixer.qkv.weight[0, part] @ h + mixer.qkv.bias[0, part]
    if magnitude == "free":
        return direction
    gate = mixer.magnitude.gate.weight[0, part, 0] @ x + mixer.magnitude.gate.bias[0, part, 0]
    gate = torch.sigmoid(gate) if magnitude == "bounded" else gate
    return mixer.magnitude.log_length[0, part, 0].exp() * gate * direction / direction.norm()


@pytest.mark.parametrize("window", ["multiply", "add"])
@pytest.mark.parametrize("magnitude", ["free", "printed", "bounded"])
@pytest.mark.parametrize(
    ("activation", "c", "learned"), [("none", 1.0, False), ("relu", 0.3, False), ("none", 2.0, True)]
)
def test_a_block_is_the_equations(window: str, magnitude: str, activation: str, c: float, learned: bool) -> None:
    forms = {"lorentz_magnitude": magnitude, "lorentz_activation": activation}
    mixer = make(window=window, lorentz_curvature=c, lorentz_curvature_learned=learned, **forms)
    x = torch.randn(1, LENGTH, DIM, dtype=torch.float64)
    g = printed_window(LENGTH, 2.0)
    found = mixer(x, WHOLE, (g if window == "multiply" else g.log())[None], None)[0, 0]
    beta = torch.sigmoid(mixer.scale[0])
    u = beta * mixer.enter(x[None])[0, 0]
    r = math.sqrt(c) * u.norm(dim=-1, keepdim=True)
    points = point(torch.sinh(r) / r * u, c)  # eq. 11
    q, k, v = (torch.stack([space_part(mixer, p, y, magnitude, activation) for y in points]) for p in range(3))
    heads = []
    for part in range(HEADS):
        own = slice(part * q.shape[-1] // HEADS, (part + 1) * q.shape[-1] // HEADS)
        hq, hk, hv = (point(t[:, own], c) for t in (q, k, v))
        inner = hq[:, 1:] @ hk[:, 1:].T - hq[:, :1] * hk[:, 0]
        minus_d2 = (2 / c + 2 * inner) / mixer.log_temperature[0].exp()
        weights = (minus_d2 * g if window == "multiply" else minus_d2 + g.log()).softmax(-1)  # eq. 15
        total = weights @ hv
        length = (total[:, :1].square() - total[:, 1:].square().sum(-1, keepdim=True)).sqrt()
        heads.append(total[:, 1:] / (math.sqrt(c) * length))
    joined = torch.cat(heads, -1)
    r = math.sqrt(c) * joined.norm(dim=-1, keepdim=True)
    expected = mixer.leave((torch.asinh(r) / r * joined)[None, None])[0, 0] / beta  # eq. 16
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("magnitude", ["printed", "bounded"])
def test_a_point_without_a_direction_is_the_origin(magnitude: str) -> None:
    mixer: Any = make(lorentz_magnitude=magnitude)
    space = torch.zeros(3, 1, 1, LENGTH, 6, dtype=torch.float64, requires_grad=True)
    found = mixer.magnitude(space, point(torch.randn(1, 1, LENGTH, N, dtype=torch.float64), 1.0))
    assert not bool(found.any())
    found.sum().backward()
    assert not bool(space.grad.any())


@pytest.mark.parametrize("window", ["multiply", "add"])
def test_dropout_in_a_sharp_block_keeps_gradients_finite(window: str) -> None:
    """Weights that dropout leaves of a sharp softmax are so small that their squares vanish."""
    for seed in range(5):
        mixer = make(window=window, dropout=0.5).float()
        torch.manual_seed(seed)
        with torch.no_grad():
            mixer.log_temperature.fill_(math.log(3e-3))
        x = torch.randn(1, LENGTH, DIM, requires_grad=True)
        out = mixer(x, WHOLE, None if window == "add" else printed_window(LENGTH, 2.0)[None].float(), None)
        out.sin().sum().backward()
        gradients = [x.grad, *(parameter.grad for parameter in mixer.parameters())]
        assert all(gradient is None or bool(gradient.isfinite().all()) for gradient in gradients)
