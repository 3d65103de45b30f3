"""Flow matching on manifolds, of which only their maps are known; `lorentz.Lorentz` is one, and those of geoopt."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regdiff.divergence import directions, with_divergence
from regdiff.noise import uniform


@runtime_checkable
class Manifold(Protocol):
    """A submanifold of a flat space whose metric is that of the space: sphere, hyperboloid, the flat space itself.

    A ball or half-space with a metric of its own is none: the divergence here knows no factor of volume.
    """

    def expmap(self, x: Tensor, u: Tensor, /) -> Tensor:
        """Where the geodesic from x with velocity u is after a time of one."""
        ...

    def logmap(self, x: Tensor, y: Tensor, /) -> Tensor:
        """The velocity at x of the geodesic that is at y after a time of one."""
        ...

    def inner(self, x: Tensor, u: Tensor, v: Tensor, /) -> Tensor:
        """Of tangent vectors at x, over the last axis."""
        ...

    def proju(self, x: Tensor, u: Tensor, /) -> Tensor:
        """The orthogonal projection of an ambient vector onto the tangent space at x."""
        ...


class GeodesicFlow(nn.Module):
    r"""Riemannian flow matching (Chen and Lipman, ICLR 2024) given a condition, along geodesics.

    x_0 of a base distribution and x_1 of the data are joined by x_t = exp_{x_0}(t log_{x_0} x_1); the field learns its
    velocity there, log_{x_t}(x_1) / (1 - t) (eq. 14 with the geodesic distance), and is followed from t = 0 to 1.
    Steps are geodesics with the velocity at their middle, whose error is of second order in their number. Points are
    ambient, (b, *m, n), with the manifold on the last axis.

    Args:
        field: (x, time (b,) in [0, 1], condition) -> an ambient vector like x; its tangent part is taken.
        manifold: See `Manifold`.

    Examples:
        >>> import torch
        >>> class Plane:
        ...     expmap = staticmethod(torch.add)
        ...     logmap = staticmethod(lambda x, y: y - x)
        ...     inner = staticmethod(lambda x, u, v: (u * v).sum(-1))
        ...     proju = staticmethod(lambda x, u: u)
        >>> flow = GeodesicFlow(lambda x, time, condition: condition - x, Plane())
        >>> flow.sample(torch.zeros(1, 2), torch.ones(1, 2), 100)  # 1 - 1/e
        tensor([[0.6321, 0.6321]])
    """

    def __init__(self, field: Callable[[Tensor, Tensor, Any], Tensor], manifold: Manifold) -> None:
        super().__init__()
        self.field, self.manifold = field, manifold

    def velocity(
        self, x: Float[Tensor, "b *m n"], time: float | Float[Tensor, "b"], condition: Any
    ) -> Float[Tensor, "b *m n"]:
        """The field, tangent at x; `time` is in [0, 1], one for all rows or one for each."""
        return self.manifold.proju(x, self.field(x, torch.as_tensor(time).to(x).expand(len(x)), condition))

    def loss(
        self,
        target: Float[Tensor, "b *m n"],
        condition: Any,
        initial: Float[Tensor, "b *m n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The mean squared length of what the field is off by, at one random time per row.

        Args:
            target: x_1, points of the data.
            condition: As `field` takes it.
            initial: x_0, as many points of the base distribution.
            generator: Source of the times.
        """
        time = uniform(len(target), target.device, generator).to(target.dtype)
        t = time.view(-1, *(1,) * (target.ndim - 1))
        x = self.manifold.expmap(initial, t * self.manifold.logmap(initial, target))
        # The velocity is asked of the end that is farther away: close by, rounding is divided by next to nothing.
        ahead = self.manifold.logmap(x, target) / (1 - t).clamp(min=0.5)
        behind = self.manifold.logmap(x, initial) / t.clamp(min=0.5)
        error = self.velocity(x, time, condition) - torch.where(t < 0.5, ahead, -behind)
        return self.manifold.inner(x, error, error).mean()

    def sample(self, initial: Float[Tensor, "b *m n"], condition: Any, num_steps: int = 50) -> Float[Tensor, "b *m n"]:
        """Follow the field from points of the base distribution; gradients flow through every step.

        Args:
            initial: x_0.
            condition: As `field` takes it.
            num_steps: Number of steps, of two calls each.

        Raises:
            ValueError: Fewer steps than one.
        """
        x = initial
        for time, step in _steps(num_steps):
            middle = self.manifold.expmap(x, step / 2 * self.velocity(x, time, condition))
            x = self._moved(x, step, self.velocity(middle, time + step / 2, condition))
        return x

    def log_likelihood(
        self,
        target: Float[Tensor, "b *m n"],
        condition: Any,
        base: Callable[[Tensor], Tensor],
        num_steps: int = 50,
        *,
        probes: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b"]:
        """log p(x_1 | condition) of each row by volume of the manifold, in nats (Chen and Lipman, appendix D).

        It is log p_0(x_0) - integral of div u dt along the path that ends at x_1, followed backwards.

        Args:
            target: x_1.
            condition: As `field` takes it.
            base: Log density of the base distribution at points like x_1, one for each row.
            num_steps: As of `sample`.
            probes: Of the divergence, see `regdiff.likelihood.log_likelihood`.
            generator: Source of the probes.

        Raises:
            ValueError: Fewer steps than one, or a number of probes below 0.
        """
        x, axes = target, directions(target, probes, generator)
        total = x.new_zeros(len(x))
        for time, step in reversed(_steps(num_steps)):
            middle = self.manifold.expmap(x, -step / 2 * self.velocity(x, time + step, condition))
            velocity = partial(self.velocity, time=time + step / 2, condition=condition)
            u, divergence = with_divergence(velocity, middle, axes, self.manifold.proju(middle, axes))
            x, total = self._moved(x, -step, u), total - step * divergence
        return total + base(x)

    def _moved(self, x: Tensor, step: float, velocity: Tensor) -> Tensor:
        """x after a step with a velocity that was found close by: to first order, projection is parallel transport."""
        return self.manifold.expmap(x, step * self.manifold.proju(x, velocity))


def _steps(count: int) -> list[tuple[float, float]]:
    """Begin and length of each step of [0, 1]."""
    if count < 1:
        raise ValueError(f"num_steps: got {count}, expected at least 1")
    return [(i / count, 1 / count) for i in range(count)]
