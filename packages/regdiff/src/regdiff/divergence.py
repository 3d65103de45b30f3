"""The divergence of a field: exact in few coordinates, by random probes in many."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from regdiff.noise import standard_normal

#: Coordinates up to which the divergence is exact by default: each costs a backward pass of the field.
EXACT = 16


def directions(like: Float[Tensor, "b *s"], probes: int | None, generator: torch.Generator | None = None) -> Tensor:
    """Vectors e whose mean of e J e is the trace of J: all axes, or random signs (Hutchinson 1989), (k, b, *s).

    Args:
        like: A sample.
        probes: How many random ones; 0 takes all axes, None does so in up to 16 coordinates and draws 1 beyond.
        generator: Source of the signs.

    Raises:
        ValueError: A number of probes below 0.
    """
    size = like[0].numel()
    probes = int(size > EXACT) if probes is None else probes
    if probes < 0:
        raise ValueError(f"probes: got {probes}, expected a number of at least 0 (0 is exact)")
    if probes == 0:
        axes = torch.eye(size, dtype=like.dtype, device=like.device) * size**0.5
        return axes.view(size, 1, *like.shape[1:]).expand(-1, *like.shape)
    return standard_normal((probes, *like.shape), like, generator).sign()


def with_divergence(
    field: Callable[[Tensor], Tensor],
    x: Float[Tensor, "b *s"],
    axes: Float[Tensor, "k b *s"],
    along: Float[Tensor, "k b *s"],
) -> tuple[Float[Tensor, "b *s"], Float[Tensor, "b"]]:
    """A field, and its divergence in each row: the mean of e J P e, whose expectation is the trace of J P.

    P projects onto the tangent space at x of a submanifold; in flat space it is the identity.

    Args:
        field: Row by row.
        x: Where.
        axes: What `directions` gives.
        along: P of each of them.
    """
    keep_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        x = x if x.requires_grad else x.detach().requires_grad_()
        value = field(x) + 0 * x  # which depends on x even where the field is constant
        divergence = value.new_zeros(len(x))
        for axis, tangent in zip(axes, along, strict=True):
            (row,) = torch.autograd.grad(value, x, axis, retain_graph=True, create_graph=keep_graph)
            divergence = divergence + (row * tangent).flatten(1).sum(1) / len(axes)
    return (value, divergence) if keep_graph else (value.detach(), divergence.detach())
