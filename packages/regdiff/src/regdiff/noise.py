"""Where random draws come from: one place, so that every draw obeys the same generator rules."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

#: A source of draws, or one for each row: then a row's noise does not depend on the batch it is in.
Generators = torch.Generator | Sequence[torch.Generator]


def standard_normal(shape: Sequence[int], like: Tensor, generator: Generators | None = None) -> Float[Tensor, "..."]:
    """Draw N(0, 1) with the dtype and device of `like`.

    The draw happens on the generator's own device and is then moved, so that a CPU generator gives the same numbers
    whatever the model runs on.

    Args:
        shape: Shape of the result.
        like: Tensor whose dtype and device the result takes.
        generator: Source of randomness, or one for each row; None takes torch's global one of that device.

    Raises:
        ValueError: Another number of generators than rows.

    Examples:
        >>> import torch
        >>> a = standard_normal((2, 3), torch.zeros(1), torch.Generator().manual_seed(0))
        >>> b = standard_normal((2, 3), torch.zeros(1), torch.Generator().manual_seed(0))
        >>> torch.equal(a, b)
        True
    """
    if isinstance(generator, Sequence):
        if len(generator) != shape[0]:
            raise ValueError(
                f"generator: got {len(generator)} of them, expected one, or one for each of {shape[0]} rows"
            )
        return torch.stack([standard_normal(shape[1:], like, row_generator) for row_generator in generator])
    device = like.device if generator is None else generator.device
    return torch.randn(tuple(shape), generator=generator, device=device, dtype=like.dtype).to(like.device)


def uniform(count: int, device: torch.device, generator: torch.Generator | None = None) -> Float[Tensor, "b"]:
    """Draw from [0, 1) once per row, on the generator's own device, then moved.

    Args:
        count: Number of rows.
        device: Where the result is wanted.
        generator: Source of randomness; None takes torch's global one of that device.
    """
    source = device if generator is None else generator.device
    return torch.rand(count, generator=generator, device=source).to(device)


def noise_of(
    noise: Tensor | None, sample: Tensor, steps: int, generator: torch.Generator | None
) -> Float[Tensor, "k *s"]:
    """Noise of shape (steps, *sample) from any of the three accepted forms.

    Args:
        noise: None draws; the sample's shape is reused in every step; (steps, *sample) is one per step.
        sample: What the noise is for.
        steps: Number of steps.
        generator: Source of the draw.

    Raises:
        ValueError: Noise of another shape.
    """
    full = (steps, *sample.shape)
    if noise is None:
        return standard_normal(full, sample, generator)
    if noise.shape == sample.shape:
        return noise.expand(full)
    if noise.shape == full:
        return noise
    raise ValueError(
        f"noise: got shape {tuple(noise.shape)}, expected {tuple(sample.shape)} (the sample) or {full} (one per step)"
    )
