"""Where random draws come from: one place, so that every draw obeys the same generator rules."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def standard_normal(
    shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None
) -> Float[Tensor, "..."]:
    """Draw N(0, 1) with the dtype and device of `like`.

    The draw happens on the generator's own device and is then moved, so that a CPU generator gives the same numbers
    whatever the model runs on.

    Args:
        shape: Shape of the result.
        like: Tensor whose dtype and device the result takes.
        generator: Source of randomness; None takes torch's global one of that device.

    Example:
        >>> import torch
        >>> a = standard_normal((2, 3), torch.zeros(1), torch.Generator().manual_seed(0))
        >>> b = standard_normal((2, 3), torch.zeros(1), torch.Generator().manual_seed(0))
        >>> torch.equal(a, b)
        True
    """
    device = like.device if generator is None else generator.device
    return torch.randn(tuple(shape), generator=generator, device=device, dtype=like.dtype).to(like.device)
