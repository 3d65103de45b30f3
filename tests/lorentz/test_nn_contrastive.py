"""The contrastive and entailment loss against plain loops, its bounds, and what it does to the general."""

import math

import pytest
import torch
from torch import Tensor

import lorentz.functional as lf
from lorentz.nn import Curvature, LorentzContrastiveLoss


def by_loops(loss: LorentzContrastiveLoss, general: Tensor, specific: Tensor, owner: list[int]) -> tuple[float, float]:
    """Both terms pair by pair, in float64, from their definitions."""
    c, t = float(loss.c), loss.temperature.item()
    x = lf.expmap0(general.double() / (1 + math.exp(-loss.general_scale.item())), c)
    y = lf.expmap0(specific.double() / (1 + math.exp(-loss.specific_scale.item())), c)
    similar = [[math.exp(-float(lf.dist(a, b, c)) / t) for b in y] for a in x]
    given_specific = [-math.log(similar[owner[j]][j] / sum(row[j] for row in similar)) for j in range(len(y))]
    given_general = []
    for i in range(len(x)):
        own = [-math.log(similar[i][j] / sum(similar[i])) for j in range(len(y)) if owner[j] == i]
        given_general += [sum(own) / len(own)] if own else []
    contrastive = 0.5 * (sum(given_specific) / len(y) + sum(given_general) / len(given_general))
    outside = []
    for j in range(len(y)):
        a, b = x[owner[j]], y[j]
        inner = float(lf.lorentz_inner(a, b))
        r = math.sqrt(c) * float(a[1:].norm())
        # The law of cosines of hyperbolic triangles, and sinh of the half aperture's cone (Le et al. 2019).
        opposite = math.acos(
            (float(b[0]) + float(a[0]) * c * inner) / (r / math.sqrt(c) * math.sqrt((c * inner) ** 2 - 1))
        )
        outside.append(max(0.0, opposite - math.asin(min(1.0, 2 * loss.min_radius / r))))
    return contrastive, sum(outside) / len(outside)


@pytest.mark.parametrize("c", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("owner", [None, [0, 2, 2, 3, 0, 2]])
def test_is_the_loops(c: float, owner: list[int] | None) -> None:
    loss = LorentzContrastiveLoss(5, c=c, temperature=0.5, entailment_weight=0.7)
    with torch.no_grad():
        loss.specific_scale += 1.0
    general, specific = torch.randn(4 if owner else 6, 5), torch.randn(6, 5)
    got = loss(general, specific, None if owner is None else torch.tensor(owner))
    contrastive, entailment = by_loops(loss, general, specific, owner or list(range(6)))
    torch.testing.assert_close(got.contrastive, torch.tensor(contrastive), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.entailment, torch.tensor(entailment), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.total, got.contrastive + 0.7 * got.entailment)


def test_derivatives_are_right_and_reach_every_parameter() -> None:
    loss = LorentzContrastiveLoss(3, c=Curvature(0.8), temperature=0.4).double()
    general, specific = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b).total, (general, specific))
    loss(general, specific).total.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad) and p.grad != 0 for p in loss.parameters())


def test_temperature_and_scales_are_bounded_whatever_an_optimiser_does() -> None:
    loss = LorentzContrastiveLoss(16)
    torch.testing.assert_close(loss.temperature, torch.tensor(0.07))
    features = torch.full((2, 16), 0.5)
    torch.testing.assert_close(lf.dist0(loss.general(features)), torch.full((2,), 0.5))  # length 2, scale 1/4
    for value in (-1e4, 1e4):
        with torch.no_grad():
            for parameter in (loss.raw_temperature, loss.general_scale):
                parameter.fill_(value)
        assert loss.temperature >= 0.01
        assert (lf.dist0(loss.general(features)) <= 2.0001).all()


def test_autocast_half_precision_and_equal_features_are_finite(device: str) -> None:
    loss, v = LorentzContrastiveLoss(4, c=Curvature(1.0)), torch.randn(6, 4)
    for general, specific in ((v, v), (torch.zeros(6, 4), torch.zeros(6, 4)), (v.bfloat16(), -v.bfloat16())):
        loss.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            found = loss(general.requires_grad_(), specific)
        assert found.total.dtype == torch.float32
        found.total.backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in (general, *loss.parameters()))
    assert loss.bfloat16()(v.bfloat16(), v.bfloat16()).total.dtype == torch.float32
