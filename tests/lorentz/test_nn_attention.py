"""Laws of the attention module: what masks hide, what order does not matter, and what the heads are."""

import pytest
import torch
from nightly import crossed
from torch.autograd import forward_ad

import lorentz.functional as lf
from lorentz.nn import Curvature, LorentzMultiheadAttention
from lorentz.nn._heads import joined


def attention(**options: object) -> LorentzMultiheadAttention:
    return LorentzMultiheadAttention(6, 2, out_features=4, c=Curvature(0.8), **options).double().eval()  # type: ignore[arg-type]


def points(*shape: int) -> torch.Tensor:
    return lf.expmap0(torch.randn(*shape, 6, dtype=torch.float64), 0.8)


def test_dropout_acts_in_training_only() -> None:
    module, x = attention(dropout=0.5), points(2, 9)
    assert torch.equal(module(x, x, x), module(x, x, x))
    module.train()
    one, other = module(x, x, x), module(x, x, x)
    assert not torch.equal(one, other)
    torch.testing.assert_close(lf.lorentz_inner(one, one), -1 / module.c.double().expand(2, 9))  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(5))
def test_far_points_keep_to_the_largest_of_them(seed: int) -> None:
    """Rounding of <s, s>_L far out may not throw the centroid beyond the points it is of."""
    torch.manual_seed(seed)
    module, u = LorentzMultiheadAttention(6, 1), torch.nn.functional.normalize(torch.randn(3, 1, 6), dim=-1)
    for radius in (2.0, 4.0, 12.0, 20.0):
        x = lf.expmap0(radius * u).expand(3, 5, 7)
        got, value = lf.dist0(module(x, x, x)), lf.dist0(lf.project(module.value.space(x)))
        assert (got <= 1.0001 * value).all()
        if radius < 6.0:  # beyond, float32 has not the digits of <s, s>_L
            torch.testing.assert_close(got, value, rtol=1e-4, atol=0.0)


def test_key_padding_mask_has_the_meaning_of_torch() -> None:
    attention, x = LorentzMultiheadAttention(6, 2, out_features=6), lf.expmap0(torch.randn(3, 4, 6))
    padding = torch.tensor([[False, False, True, True], [False] * 4, [False, True, False, True]])
    masked = attention(x, x, x, key_padding_mask=padding)
    assert torch.equal(masked, attention(x, x, x, mask=~padding[:, None, None]))
    moved = torch.where(padding[..., None], x.flip(0), x)  # what is padding has no influence
    torch.testing.assert_close(attention(x, moved, moved, key_padding_mask=padding), masked)
    torch.testing.assert_close(attention(x[0], x[0], x[0], key_padding_mask=padding[0]), masked[0])
    # With both masks a key counts where both let it.
    mask = torch.tensor([True, True, False, True])
    both = attention(x, x, x, mask=mask, key_padding_mask=padding)
    assert torch.equal(both, attention(x, x, x, mask=mask & ~padding[:, None, None]))
    assert not torch.equal(both, masked)


@pytest.mark.parametrize(
    ("dim", "heads", "c", "magnitude"), crossed(3, [8, 32, 128, 512], [1, 4, 8], [0.1, 1.0, 10.0], ["free", "bounded"])
)
def test_logits_start_with_a_deviation_of_about_1_over_keys(dim: int, heads: int, c: float, magnitude: str) -> None:
    spreads = []
    for seed in range(4):
        torch.manual_seed(seed)
        module = LorentzMultiheadAttention(dim, heads, magnitude=magnitude, c=Curvature(c, bounds=(0.01, 100.0)))  # type: ignore[arg-type]
        x = torch.nn.functional.layer_norm(torch.randn(2, 64, dim), (dim,))
        points = lf.expmap0(x / dim**0.5, c)
        q, k = (lf.split_heads(part.space(points), heads, c) for part in (module.query, module.key))
        logits = (2 / c + 2 * lf.pairwise_inner(q, k, c, precision="float64")) / module.log_temperature.exp()
        spreads.append(logits.std(-1).mean().item())
    assert 0.5 < sum(spreads) / 4 < 2


@pytest.mark.parametrize("heads", [(1,), (2,)])
def test_causal_attention_is_the_mask_below_the_diagonal(heads: tuple[int]) -> None:
    module, x = attention(), points(*heads, 7)
    below = torch.ones(7, 7, dtype=torch.bool).tril()
    out = module(x, x, x, is_causal=True)
    assert torch.equal(out, module(x, x, x, mask=below))
    shown = torch.arange(7) % 3 != 1  # a key counts where both let it
    assert torch.equal(module(x, x, x, is_causal=True, mask=shown), module(x, x, x, mask=shown & below))
    last = module(x[:, 4:], x, x, is_causal=True)  # the last queries see what comes before them
    torch.testing.assert_close(last, out[:, 4:])


@pytest.mark.parametrize("parts", [[1] * 6, [4, 1, 1], [2, 3, 1]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cache_of_keys_and_values_decodes_as_the_whole_sequence(parts: list[int], dtype: torch.dtype) -> None:
    module, x = attention().to(dtype), points(3, 6).to(dtype)
    padding = torch.arange(6) < torch.tensor([0, 1, 2])[:, None]
    whole = module(x, x, x, is_causal=True, key_padding_mask=padding)
    cache: dict[str, torch.Tensor] = {}
    outs, seen = [], 0
    for part in x.split(parts, 1):
        seen += part.shape[1]
        outs.append(module(part, part, part, is_causal=True, cache=cache, key_padding_mask=padding[:, :seen]))
    assert cache["keys"].shape[1] == cache["values"].shape[1] == 6
    tolerance = 2e-6 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(torch.cat(outs, 1), whole, rtol=tolerance, atol=tolerance)


def test_forward_mode_of_joined_heads_with_and_without_the_bound() -> None:
    space = torch.randn(2, 3, 3, dtype=torch.float64)
    time = space.norm(dim=-1, keepdim=True) + torch.tensor([1e-3, 1.0, 5.0], dtype=torch.float64)[:, None]
    largest = torch.tensor([[[0.5], [2.0], [3.0]]], dtype=torch.float64)
    c = torch.tensor(0.7, dtype=torch.float64)
    inputs, along = (torch.cat([time, space], -1), largest, c), []
    bounded = (time / largest).square() > c * (time.square() - space.square().sum(-1, keepdim=True))
    assert 0 < bounded.sum() < bounded.numel()
    for learned in (True, False):  # with a formula of its own, and by torch's
        with forward_ad.dual_level():
            total, most, number = (
                forward_ad.make_dual(
                    x.clone().requires_grad_(learned), torch.linspace(0.5, 1.0, x.numel()).to(x).view(x.shape)
                )
                for x in inputs
            )
            along.append(forward_ad.unpack_dual(joined(total, number, 1, most)).tangent)
    torch.testing.assert_close(*along)


def test_gradients_of_joined_heads_with_and_without_the_bound() -> None:
    def plain(total: torch.Tensor, largest: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        time, space = total[..., :1], total[..., 1:]
        free = c * (time.square() - space.square().sum(-1, keepdim=True))
        joint = (space / torch.maximum(free, (time / largest).square()).sqrt()).flatten(-2)
        return torch.cat([(joint.square().sum(-1, keepdim=True) + 1 / c).sqrt(), joint], -1)

    space = torch.randn(2, 3, 3, dtype=torch.float64)
    time = space.norm(dim=-1, keepdim=True) + torch.tensor([1e-3, 1.0, 5.0], dtype=torch.float64)[:, None]
    largest = torch.tensor([[[0.5], [2.0], [3.0]]], dtype=torch.float64)
    inputs = torch.cat([time, space], -1), largest, torch.tensor(0.7, dtype=torch.float64)
    gradients = []
    for join in (plain, lambda total, largest, c: joined(total, c, 1, largest)):
        operands = [x.clone().requires_grad_() for x in inputs]
        out = join(*operands)
        gradients.append(torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), operands))
    torch.testing.assert_close(*gradients)
