"""The modules: parameters, bounds, and agreement with the functions."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import lorentz.functional as lf
from lorentz.nn import Curvature, ExpMap0, LorentzEmbedding, LorentzLinear, LorentzMultiheadAttention


def test_curvature_never_leaves_its_bounds_and_has_the_gradient_of_the_bounded_value() -> None:
    curvature = Curvature(1.0, bounds=(0.5, 2.0)).double()
    assert torch.autograd.gradcheck(lambda raw: torch.func.functional_call(curvature, {"raw": raw}), curvature.raw)
    for target in (1e3, -1e3):
        optimiser = torch.optim.SGD(curvature.parameters(), lr=10.0)
        for _ in range(30):
            optimiser.zero_grad()
            (-target * curvature()).backward()
            optimiser.step()
        assert 0.5 <= curvature().item() <= 2.0
    assert Curvature(1.0)().item() == 1.0


@pytest.mark.parametrize("activation", [None, torch.relu])
def test_free_linear_is_w_h_x_plus_b(activation: object) -> None:
    layer = LorentzLinear(4, 3, c=0.5, activation=activation)  # type: ignore[arg-type]
    x = lf.expmap0(torch.randn(2, 6, 4), 0.5)
    h = x if activation is None else torch.relu(x)
    expected = lf.project(h @ layer.linear.weight.mT + layer.linear.bias, 0.5)
    torch.testing.assert_close(layer(x), expected)


def test_bounded_linear_has_length_lambda_sigmoid() -> None:
    layer = LorentzLinear(4, 3, magnitude="bounded", max_length=1.5, activation=torch.tanh)
    x = lf.expmap0(torch.randn(50, 4))
    y = layer(x)
    length = y[:, 1:].norm(dim=-1)
    torch.testing.assert_close(length, 1.5 * torch.sigmoid(x @ layer.gate.weight[0] + layer.gate.bias))
    torch.testing.assert_close(
        torch.nn.functional.cosine_similarity(y[:, 1:], layer.linear(x.tanh())), torch.ones(50), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(lf.lorentz_inner(y, y), -torch.ones(50), rtol=1e-4, atol=1e-4)


def test_bounded_linear_is_the_origin_where_the_direction_vanishes() -> None:
    layer = LorentzLinear(4, 3, bias=False, magnitude="bounded")
    torch.nn.init.zeros_(layer.linear.weight)
    x = lf.expmap0(torch.randn(5, 4)).requires_grad_()
    y = layer(x)
    assert torch.equal(y, lf.project(torch.zeros(5, 3)))
    y.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("magnitude", ["free", "bounded"])
def test_multihead_attention_is_its_parts(magnitude: str) -> None:
    module = LorentzMultiheadAttention(7, 4, out_features=5, magnitude=magnitude, c=Curvature(0.7))  # type: ignore[arg-type]
    assert module.head_dim == 1  # 8 ambient coordinates over 4 heads
    c = module.c
    q, k = lf.expmap0(torch.randn(2, 3, 7), c), lf.expmap0(torch.randn(2, 6, 7), c)
    window, mask = torch.randn(3, 6), torch.rand(2, 1, 1, 6) > 0.3
    mask[0] = False
    heads = (lf.split_heads(part.space(x), 4, c) for part, x in ((module.query, q), (module.key, k), (module.value, k)))
    scale = module.log_temperature.exp()
    joined = lf.join_heads(lf.lorentz_attention(*heads, c, temperature=scale, attn_bias=window, mask=mask), c)
    assert module.out is not None
    torch.testing.assert_close(module(q, k, k, attn_bias=window, mask=mask), module.out(joined))


@pytest.mark.parametrize("make", [lambda: LorentzLinear(6, 7), lambda: LorentzMultiheadAttention(6, 2, out_features=4)])
def test_what_watches_or_replaces_the_inner_linear_is_obeyed(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks, adapters and offloading work on the nn.Linear inside, whose product is otherwise formed in another way."""
    module, x = make(), lf.expmap0(torch.randn(2, 5, 6))
    inner = [part for part in module.modules() if type(part) is nn.Linear]
    arguments = (x, x, x) if isinstance(module, LorentzMultiheadAttention) else (x,)
    expected, seen = module(*arguments), []
    handles = [part.register_forward_hook(lambda *_: seen.append(1)) for part in inner]
    torch.testing.assert_close(module(*arguments), expected)
    assert len(seen) == len(inner)
    for handle in handles:
        handle.remove()
    for part in inner:
        monkeypatch.setattr(part, "forward", partial(nn.functional.linear, weight=2 * part.weight, bias=part.bias))
    assert not torch.allclose(module(*arguments), expected, rtol=1e-2)


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


def test_an_embedding_is_the_exponential_map_of_torchs() -> None:
    table, plain = LorentzEmbedding(7, 4, c=0.5), nn.Embedding(7, 4)
    plain.weight.data.copy_(table.weight.data)
    numbers = torch.randint(7, (2, 3))
    torch.testing.assert_close(table(numbers), lf.expmap0(plain(numbers), 0.5))
    assert torch.equal(table.points()[numbers], table(numbers))
    assert table(torch.empty(0, dtype=torch.int64)).shape == (0, 5)


@pytest.mark.parametrize("padding", [3, -4])
def test_padding_of_an_embedding_is_the_origin_and_is_not_trained(padding: int) -> None:
    c = Curvature(2.0)
    table = LorentzEmbedding(7, 4, padding, c=c)
    x = table(torch.tensor([3, 1]))
    torch.testing.assert_close(x[0], lf.project(torch.zeros(4), c()))
    lf.pairwise_dist(x, lf.project(torch.ones(1, 4), c()), c()).sum().backward()
    assert table.weight.grad is not None
    assert (table.weight.grad[3] == 0).all()
    assert (table.weight.grad[1] != 0).all()
