"""Lorentz attention against a plain loop, its behaviour at masks and windows, and what its kernels are given."""

import pytest
import torch
import torch.nn.functional as F
from functions import Operators
from torch import Tensor
from torch.overrides import TorchFunctionMode

import lorentz.functional as lf
from lorentz.nn import LorentzMultiheadAttention


def by_loop(q: Tensor, k: Tensor, v: Tensor, c: float, scale: float, bias: Tensor, mask: Tensor) -> Tensor:
    """One head, one query at a time, from the definition."""
    rows = []
    for i in range(len(q)):
        logits = [
            -(-2 / c - 2 * float(lf.lorentz_inner(q[i], k[j]))) / scale + float(bias[i, j]) for j in range(len(k))
        ]
        weights = torch.tensor([float(mask[i, j]) for j in range(len(k))], dtype=q.dtype)
        weights = weights * torch.tensor(logits, dtype=q.dtype).exp()
        rows.append(lf.centroid(v, weights.unsqueeze(0), c)[0])
    return torch.stack(rows)


def example(*lead: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(*lead, *size, dtype=dtype) * 0.5 for size in ((4, 3), (5, 3), (5, 6)))
    return q, k, v


@pytest.mark.parametrize("c", [0.3, 1.0, 4.0])
def test_matches_the_loop(c: float) -> None:
    q, k, v = (lf.project(x, c) for x in example(2, 3))
    bias = torch.randn(2, 1, 4, 5, dtype=torch.float64)
    mask = torch.rand(2, 1, 4, 5) > 0.3
    mask[1, 0, 2] = False
    got = lf.lorentz_attention(q, k, v, c, temperature=1.7, attn_bias=bias, mask=mask)
    for b in range(2):
        for h in range(3):
            expected = by_loop(q[b, h], k[b, h], v[b, h], c, 1.7, bias[b, 0], mask[b, 0])
            torch.testing.assert_close(got[b, h], expected)


@pytest.mark.parametrize("with_bias", [False, True])
def test_rows_without_keys_give_the_origin_and_no_gradient(with_bias: bool) -> None:
    space = [x.requires_grad_() for x in example(2, 3, dtype=torch.float32)]
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[0] = False
    bias = torch.randn(4, 5).requires_grad_() if with_bias else None
    out = lf.lorentz_attention(*(lf.project(x, 0.25) for x in space), 0.25, temperature=1.0, attn_bias=bias, mask=mask)
    assert torch.equal(out[0], lf.project(torch.zeros(3, 4, 6), 0.25))
    for gradient in torch.autograd.grad(out.square().sum(), space):
        assert torch.isfinite(gradient).all()
        assert (gradient[0] == 0).all()
        assert gradient[1].abs().max() > 0


def test_products_of_float32_round_at_the_size_of_the_logits() -> None:
    """With the time part first in a product, later terms are rounded at the size of q0 k0: three times the error."""
    torch.manual_seed(0)
    q, k, v = (lf.expmap0(2.0 * F.normalize(torch.randn(16, 64, 64), dim=-1)) for _ in range(3))
    exact = lf.lorentz_attention(q.double(), k.double(), v.double(), temperature=0.5)
    got = lf.lorentz_attention(q, k, v, temperature=0.5)
    assert lf.dist(got.double(), exact).max() < 9e-6


def test_heads_split_and_join() -> None:
    x = torch.randn(2, 5, 12)
    heads = lf.split_heads(x, 3, 0.5)
    assert heads.shape == (2, 3, 5, 5)
    assert torch.equal(heads[:, 1, :, 1:], x[..., 4:8])
    assert torch.equal(lf.join_heads(heads, 0.5), lf.project(x, 0.5))


@pytest.mark.parametrize("sharpness", [1.0, 10.0, 30.0, 60.0, 90.0, 400.0])
@pytest.mark.parametrize("form", ["fused", "centroid", "layer"])
def test_dropout_of_all_that_is_attended_to_stays_finite(form: str, sharpness: float) -> None:
    """What is left of a sharp softmax is so small that <s, s> underflows."""
    for seed in range(20):
        torch.manual_seed(seed)
        v = torch.randn(1, 2, 6, 4, requires_grad=True)
        x = lf.project(v)
        if form == "fused":
            y = lf.lorentz_attention(x, x, x, temperature=1 / sharpness, dropout_p=0.5)
        elif form == "layer":
            y = LorentzMultiheadAttention(4, 2, dropout=0.5, temperature=0.1 / sharpness)(x, x, x)
        else:
            logits = 2 * sharpness * lf.pairwise_inner(x, x, precision="native")
            weights = torch.nn.functional.dropout(logits.softmax(-1), 0.5)
            y = lf.centroid(x, weights, precision="native")
        (gradient,) = torch.autograd.grad(y.sin().sum(), v)
        assert y.isfinite().all()
        assert gradient.isfinite().all()


# What reaches torch's attention: rows and masks that its fused kernels take, so that no n x n logits are formed. No GPU
# is needed: the conditions are those of torch's kernel choice (sdp_utils), checked on the meta device, where shapes,
# strides and dtypes are as on a GPU. On the CPU the kernel itself is seen.


class Calls(TorchFunctionMode):
    """Notes every scaled_dot_product_attention inside, and that its arguments fit the memory-efficient kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []
        self.masks: list[tuple[int, ...] | None] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.scaled_dot_product_attention:
            for x in args:
                assert (x.ndim, x.dtype, x.shape[:2]) == (4, torch.float32, args[0].shape[:2])
                assert x.stride(-1) == 1
                assert all(stride % 4 == 0 for stride in x.stride()[:-1])
                self.widths.append(x.shape[-1])
            mask = kwargs["attn_mask"]
            self.masks.append(None if mask is None else tuple(mask.shape))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dim", "heads", "width"), [(128, 4, 40), (127, 4, 32), (128, 2, 72), (6, 2, 8), (126, 3, 48)])
def test_rows_of_the_module_fit_the_fused_kernels_of_a_gpu(
    dim: int, heads: int, width: int, dtype: torch.dtype
) -> None:
    with torch.device("meta"):
        module = LorentzMultiheadAttention(dim, heads, out_features=dim).to(dtype)
        x, valid = torch.randn(2, 9, dim + 1, dtype=dtype), torch.ones(2, 1, 1, 9, dtype=torch.bool)
    with Calls() as calls:
        assert module(x, x, x).shape == (2, 9, dim + 1)
        assert module(x, x[:, :5], x[:, :5], mask=valid[..., :5]).dtype == dtype
        module(x, x, x, attn_bias=torch.zeros(9, 9, device="meta"))
    assert calls.masks == [None, (2, 1, 1, 5), (9, 9)]
    assert calls.widths == 9 * [width]  # a multiple of 8: rows of 16 bytes, in half precision too


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("dim", [128, 127])
def test_the_fused_kernel_of_a_cpu_runs_forward_and_backward(dim: int, with_mask: bool) -> None:
    module, n = LorentzMultiheadAttention(dim, 4, out_features=dim), 700
    x = lf.expmap0(0.1 * torch.randn(1, n, dim)).requires_grad_()
    mask = (torch.arange(n) < 600).reshape(1, 1, 1, n) if with_mask else None
    with Operators() as seen:
        module(x, x, x, mask=mask).sum().backward()
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in seen.names
    assert seen.largest < n * n
