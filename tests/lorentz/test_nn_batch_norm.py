"""Batch normalisation of points: what it makes of mean and variance, isometries, masks, running statistics."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import LAW, curvatures, seeds
from torch import Tensor

import lorentz.functional as lf
from lorentz.nn import LorentzBatchNorm

DOUBLE = torch.float64


def points(count: int, c: float, seed: int, dim: int = 3) -> Tensor:
    """Points around another than the origin, of different spread in every direction."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(count + 2, dim, generator=generator, dtype=DOUBLE)
    at_origin = lf.expmap0(draw[2:] * draw[0].exp() / c**0.5, c)
    return lf.gyro_add(lf.expmap0(1.5 * draw[1] / c**0.5, c), at_origin, c)


def mean_of(x: Tensor, c: float) -> Tensor:
    return lf.centroid(x, torch.ones(1, len(x), dtype=x.dtype), c)[0]


@LAW
@given(curvatures, seeds, st.integers(2, 9))
def test_mean_goes_to_the_learned_point_and_the_variance_to_the_learned_one(c: float, seed: int, count: int) -> None:
    x, norm = points(count, c, seed), LorentzBatchNorm(3, eps=0.0, c=c).double()
    with torch.no_grad():
        norm.bias.copy_(0.7 * torch.randn(3) / c**0.5)  # type: ignore[union-attr]
        norm.weight.fill_(1.3)  # type: ignore[union-attr]
    y = norm(x)
    # By the definition: tangent vectors at the mean, scaled, transported through the origin to the bias.
    o, m, b = lf.origin(4, c=c, dtype=DOUBLE), mean_of(x, c), lf.expmap0(norm.bias, c)
    v = lf.logmap(m.expand_as(x), x, c)
    scale = 1.3 / lf.dist(m, x, c).square().mean().sqrt()
    at_origin = lf.parallel_transport(m.expand_as(x), o.expand_as(x), scale * v, c)
    plain = LorentzBatchNorm(3, eps=0.0, affine=False, c=c).double()
    torch.testing.assert_close(plain(x), lf.expmap0(at_origin[:, 1:] / 1.3, c), rtol=1e-8, atol=1e-8)
    carried = lf.parallel_transport(o.expand_as(x), b.expand_as(x), at_origin, c)
    torch.testing.assert_close(y, lf.expmap(b.expand_as(x), carried, c), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(lf.dist(b, y, c).square().mean(), torch.tensor(1.69, dtype=DOUBLE))


def test_masked_points_do_not_count_and_are_normalised() -> None:
    x = points(8, 0.7, 0)
    mask = torch.tensor([True, True, False, True, True, False, False, True])
    first, second = (LorentzBatchNorm(3, c=0.7).double() for _ in range(2))
    torch.testing.assert_close(first(x, mask)[mask], second(x[mask]))
    torch.testing.assert_close(first.running_mean, second.running_mean)
    torch.testing.assert_close(first.running_var, second.running_var)
    before = first.running_mean.clone(), first.running_var.clone()
    empty = first(x, torch.zeros(8, dtype=torch.bool))  # nothing to learn from
    torch.testing.assert_close((first.running_mean, first.running_var), before)
    torch.testing.assert_close(empty, first.eval()(x))


def test_running_statistics_come_to_those_of_the_data_and_are_used_in_eval() -> None:
    c = 0.5
    x = points(256, c, 1)
    norm = LorentzBatchNorm(3, c=c).double()
    for _ in range(200):
        expected = norm(x)
    norm.eval()
    torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm(x[:1]), expected[:1], rtol=1e-5, atol=1e-5)  # one point is enough
    once = LorentzBatchNorm(3, momentum=0.25, c=c).double()
    once(x)
    halfway = lf.geodesic(lf.origin(4, c=c, dtype=DOUBLE), mean_of(x, c), 0.25, c)
    torch.testing.assert_close(lf.expmap0(once.running_mean, c), halfway)
    variance = lf.dist(mean_of(x, c), x, c).square().mean()
    torch.testing.assert_close(once.running_var, 0.75 + 0.25 * variance)


def test_without_running_statistics_it_runs_under_vmap_in_training() -> None:
    norm, x = LorentzBatchNorm(3, track_running_stats=False), lf.expmap0(torch.randn(2, 6, 3))
    assert sorted(dict(norm.named_buffers())) == []
    tracked = LorentzBatchNorm(3)
    expected = torch.stack([tracked(part) for part in x])
    torch.testing.assert_close(torch.vmap(norm)(x), expected)
    torch.testing.assert_close(norm.eval()(x[0]), expected[0])  # of the batch, too
    with pytest.raises(ValueError, match="got one point"):
        norm(x[0, :1])
