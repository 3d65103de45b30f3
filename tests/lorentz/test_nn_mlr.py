"""The classifier: its logits are signed distances to hyperplanes, checked by reflection."""

import pytest
import torch
from torch import Tensor

import lorentz.functional as lf
from lorentz.nn import Curvature, LorentzMLR


def classifier(z: Tensor, a: Tensor, c: float | Curvature) -> LorentzMLR:
    layer = LorentzMLR(z.shape[-1], len(z), c=c).to(z.dtype)
    layer.load_state_dict({"weight": z, "offset": a}, strict=not isinstance(c, Curvature))
    return layer


def normal(z: Tensor, a: Tensor, c: float) -> Tensor:
    """Unit normal of the hyperplane <w, x>_L = 0: u carried from the origin to distance a along u."""
    u = torch.nn.functional.normalize(z, dim=-1)
    angle = (c**0.5 * a).unsqueeze(-1)
    return torch.cat([torch.sinh(angle), torch.cosh(angle) * u], -1)


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_logits_are_signed_distances_by_reflection(c: float) -> None:
    x = lf.expmap0(torch.randn(40, 1, 3, dtype=torch.float64) / c**0.5, c)
    z, a = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64) / c**0.5
    w = normal(z, a, c)
    side = lf.lorentz_inner(x, w)
    mirrored = x - 2 * side.unsqueeze(-1) * w  # an isometry that fixes the hyperplane: twice the distance away
    distance = lf.dist(x, mirrored, c) / 2
    expected = z.norm(dim=-1) * distance * side.sign()
    torch.testing.assert_close(classifier(z, a, c)(x.squeeze(1)), expected)


@pytest.mark.usefixtures("any_time")
def test_float32_is_accurate_far_out_and_next_to_the_plane() -> None:
    z, a = torch.randn(5, 3), torch.linspace(-6.0, 6.0, 5)
    u = torch.nn.functional.normalize(z, dim=-1)
    along = lf.expmap0((a + 1e-2).unsqueeze(-1) * u)  # just beyond the foot of each plane, x parallel to u
    x = torch.cat([along, lf.expmap0(torch.nn.functional.normalize(torch.randn(200, 3), dim=-1) * 9.0)])
    exact = classifier(z.double(), a.double(), 1.0)(x.double())
    torch.testing.assert_close(classifier(z, a, 1.0)(x).double(), exact, rtol=1e-6, atol=1e-6)


def test_vanishing_normal_gives_zero_logits_and_finite_gradients() -> None:
    layer = classifier(torch.zeros(2, 3), torch.ones(2), 1.0)
    x = lf.expmap0(torch.randn(4, 3)).requires_grad_()
    y = layer(x)
    assert (y == 0).all()
    y.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())


def test_second_derivatives_on_the_normal_of_a_plane() -> None:
    """There |x|^2 - (u.x)^2 is 0, and grows with the square of a step across."""
    layer, x = LorentzMLR(2, 1).double(), torch.tensor([1.0, 0.0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, 0.0]]))
        layer.offset.fill_(0.7)

    def textbook(x: Tensor) -> Tensor:
        a = layer.offset.detach()
        return 2.0 * torch.asinh(torch.cosh(a) * x[0] - torch.sinh(a) * torch.sqrt(1.0 + x @ x)).squeeze()

    got = torch.func.hessian(lambda x: layer(lf.project(x)).squeeze())(x)
    torch.testing.assert_close(got, torch.func.hessian(textbook)(x))


def test_far_out_on_the_normal_of_a_plane() -> None:
    """There rounding puts |x|^2 - (u.x)^2 below -1."""
    layer = LorentzMLR(6, 50).double()
    torch.nn.init.uniform_(layer.offset, 0.0, 2.0)
    lengths = layer.weight.detach().norm(dim=-1, keepdim=True)
    logits = layer(lf.expmap0(21.0 * layer.weight.detach() / lengths)).diagonal()
    torch.testing.assert_close(logits, lengths.squeeze(-1) * (21.0 - layer.offset), rtol=1e-6, atol=0.0)
