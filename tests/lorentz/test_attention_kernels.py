"""What reaches torch's attention: rows and masks that its fused kernels take, so that no n x n logits are formed.

A GPU is not needed: the conditions are those of torch's kernel choice (sdp_utils), checked on the meta device, where
shapes, strides and dtypes are as on a GPU. On the CPU the kernel itself is seen.
"""

import pytest
import torch
from functions import Operators
from torch.overrides import TorchFunctionMode

import lorentz.functional as lf
from lorentz.nn import LorentzMultiheadAttention


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
