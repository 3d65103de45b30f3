"""The steps of a layer that bring their own gradients: against autograd's of the same formulas, in every mode."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import lorentz.functional as lf
from lorentz.nn import Curvature, LorentzMultiheadAttention


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_second_derivatives_agree_forward_over_reverse_and_reverse_over_reverse(dropout: float) -> None:
    curvature = Curvature(0.7)
    module = LorentzMultiheadAttention(3, 2, head_dim=2, out_features=2, dropout=dropout, c=curvature).double()
    v = 0.5 * torch.randn(2, 3, dtype=torch.float64)

    def loss(v: Tensor, raw: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same weights are dropped in every call
        x = lf.project(v, 0.7)
        points = torch.func.functional_call(module, {"curvature.raw": raw}, (x, x, x))
        return points.square().sum()

    arguments = (v, curvature.raw.detach())
    with sdpa_kernel(SDPBackend.MATH):
        mixed = torch.func.jacfwd(torch.func.jacrev(loss, (0, 1)), (0, 1), randomness="same")(*arguments)
        twice = torch.autograd.functional.hessian(loss, arguments)
    torch.testing.assert_close(mixed, twice)
