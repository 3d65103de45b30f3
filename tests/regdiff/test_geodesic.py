"""Flows on manifolds: laws of the divergence and of the density, on spheres, hyperboloids and in flat space."""

import math

import pytest
import torch
from torch import Tensor

from lorentz.manifold import Lorentz
from regdiff.divergence import directions, with_divergence
from regdiff.geodesic import GeodesicFlow


class Flat:
    @staticmethod
    def expmap(x: Tensor, u: Tensor) -> Tensor:
        return x + u

    @staticmethod
    def logmap(x: Tensor, y: Tensor) -> Tensor:
        return y - x

    @staticmethod
    def inner(x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return (u * v).sum(-1)

    @staticmethod
    def proju(x: Tensor, u: Tensor) -> Tensor:
        return u


class Sphere(Flat):
    @staticmethod
    def proju(x: Tensor, u: Tensor) -> Tensor:
        return u - (x * u).sum(-1, keepdim=True) * x

    @staticmethod
    def expmap(x: Tensor, u: Tensor) -> Tensor:
        length = (u.square().sum(-1, keepdim=True) + 1e-300).sqrt()
        return length.cos() * x + length.sin() / length * u

    @staticmethod
    def logmap(x: Tensor, y: Tensor) -> Tensor:
        along = Sphere.proju(x, y)
        length = along.norm(dim=-1, keepdim=True)
        return torch.atan2(length, (x * y).sum(-1, keepdim=True)) * along / length


MANIFOLDS = {"flat": Flat(), "sphere": Sphere(), "hyperboloid": Lorentz()}


def points(name: str, count: int) -> Tensor:
    space = torch.randn(count, 2, dtype=torch.float64)
    if name == "sphere":
        return torch.nn.functional.normalize(torch.randn(count, 3, dtype=torch.float64), dim=-1)
    if name == "hyperboloid":
        return torch.cat([(1 + space.square().sum(-1, keepdim=True)).sqrt(), space], dim=-1)
    return space


def frame(name: str, x: Tensor) -> Tensor:
    """An orthonormal basis (2, n) of the tangent space at one point."""
    basis: list[Tensor] = []
    manifold = MANIFOLDS[name]
    for axis in torch.eye(len(x), dtype=x.dtype).flip(0):
        u = manifold.proju(x, axis)
        for other in basis:
            u = u - manifold.inner(x, u, other) * other
        if manifold.inner(x, u, u) > 1e-6 and len(basis) < 2:
            basis.append(u / manifold.inner(x, u, u).sqrt())
    return torch.stack(basis)


@pytest.mark.parametrize(("name", "sign"), [("sphere", -2.0), ("hyperboloid", 2.0)])
def test_the_divergence_of_the_gradient_of_a_height(name: str, sign: float) -> None:
    """The Laplacian of a coordinate h: -2 h on the sphere, 2 h on the hyperboloid of two dimensions."""
    manifold, x = MANIFOLDS[name], points(name, 7)
    height = torch.zeros(3, dtype=torch.float64)
    height[0] = 1.0 if name == "sphere" else -1.0  # the metric of time is negative
    axes = directions(x, 0)
    _, divergence = with_divergence(lambda y: manifold.proju(y, height.expand_as(y)), x, axes, manifold.proju(x, axes))
    torch.testing.assert_close(divergence, sign * x[:, 0])


def field(x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
    """Smooth, curved, of time and condition; not tangent."""
    turned = x.roll(1, -1) * (1 + time[:, None]) + condition
    size = 1 + x.square().sum(-1, keepdim=True)  # which no projection onto the hyperboloid outgrows
    return (torch.tanh(turned) + torch.sin(2 * x)) / size


@pytest.mark.parametrize("name", MANIFOLDS)
def test_the_density_is_that_of_the_sampler(name: str) -> None:
    """log p(sample(x)) = log p_0(x) - log |det of the sampler's differential|, in orthonormal frames."""
    manifold, flow = MANIFOLDS[name], GeodesicFlow(field, MANIFOLDS[name])
    starts, condition = points(name, 4), torch.randn(4, 1, dtype=torch.float64)
    with torch.no_grad():
        ends = flow.sample(starts, condition, 60)
        ours = flow.log_likelihood(ends, condition, lambda x: x.square().sum(-1), 60)
    for start, end, row, value in zip(starts, ends, condition, ours, strict=True):
        inwards, outwards = frame(name, start), frame(name, end)
        jacobian = torch.func.jacrev(
            lambda v, start=start, row=row, inwards=inwards: flow.sample(
                manifold.expmap(start, v @ inwards)[None], row[None], 60
            )[0]
        )(torch.full((2,), 1e-9, dtype=torch.float64))
        matrix = torch.stack([manifold.inner(end, jacobian[:, i], e) for i in range(2) for e in outwards]).view(2, 2)
        expected = start.square().sum() - matrix.det().abs().log()
        assert value.item() == pytest.approx(expected.item(), abs=1e-3)


@pytest.mark.parametrize("name", MANIFOLDS)
def test_the_loss_asks_for_the_velocity_of_the_geodesic(name: str) -> None:
    """A field that knows the end has a loss of 0, at all times, and arrives."""
    manifold = MANIFOLDS[name]
    initial, target = points(name, 50), points(name, 50)

    def knows(x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        return manifold.logmap(x, condition) / (1 - time[:, None])

    flow = GeodesicFlow(knows, manifold)
    assert flow.loss(target, target, initial) < 1e-12
    other = flow.loss(target, points(name, 50), initial)
    assert other > 0.1
    torch.testing.assert_close(flow.sample(initial, target, 400), target, rtol=0.02, atol=0.02)


def test_steps_are_of_second_order() -> None:
    flow, x = GeodesicFlow(field, Lorentz()), points("hyperboloid", 6)
    condition = torch.randn(6, 1, dtype=torch.float64)
    exact = flow.sample(x, condition, 640)
    coarse, fine = ((flow.sample(x, condition, n) - exact).norm() for n in (20, 40))
    assert math.log2(coarse / fine) == pytest.approx(2.0, abs=0.15)


def test_random_probes_are_without_bias() -> None:
    flow, x = GeodesicFlow(field, Lorentz()), points("hyperboloid", 1).expand(4000, -1)
    condition = torch.zeros(4000, 1, dtype=torch.float64)

    def value(probes: int) -> Tensor:
        return flow.log_likelihood(x, condition, lambda y: y[:, 0], 4, probes=probes)

    with torch.no_grad():
        drawn = value(1)
        apart = drawn.mean() - value(0)[0]
    assert drawn.std() > 0.01
    assert abs(apart) < 5 * drawn.std() / 4000**0.5


def test_gradients_reach_field_and_points() -> None:
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    flow = GeodesicFlow(lambda x, time, condition: weight * field(x, time, condition), Lorentz())
    x = points("hyperboloid", 3)
    flow.log_likelihood(x, torch.zeros(3, 1).double(), lambda y: -y[:, 0], 5).sum().backward()
    first = weight.grad
    step = 1e-6
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * step
            ends.append(flow.log_likelihood(x, torch.zeros(3, 1).double(), lambda y: -y[:, 0], 5).sum())
            weight -= sign * step
    assert first.item() == pytest.approx(((ends[0] - ends[1]) / (2 * step)).item(), rel=1e-5)


def test_numbers_of_steps_and_probes_are_checked() -> None:
    flow, x = GeodesicFlow(field, Flat()), points("flat", 2)
    with pytest.raises(ValueError, match="num_steps: got 0, expected at least 1"):
        flow.sample(x, torch.zeros(2, 1), 0)
    with pytest.raises(ValueError, match="probes: got -1, expected a number of at least 0"):
        flow.log_likelihood(x, torch.zeros(2, 1), lambda y: y[:, 0], probes=-1)


def test_one_step_is_the_midpoint_rule_written_out():
    flow = GeodesicFlow(lambda x, time, condition: 2 * time[:, None] * x, Flat())
    x = points("flat", 3)
    torch.testing.assert_close(flow.sample(x, None, 1), 2 * x)  # nothing moves at time 0; the middle has velocity x
    # Backwards the half step has the velocity of time 1 and ends at 0, where nothing moves; the divergence is 2.
    density = flow.log_likelihood(x, None, lambda y: y.square().sum(-1), 1)
    torch.testing.assert_close(density, x.square().sum(-1) - 2)
