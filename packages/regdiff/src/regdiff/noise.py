"""Where random draws come from: one place, so that every draw obeys the same generator rules.

In eval mode fixed numbers stand in for every draw, so that a result depends on its own row alone.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from regdiff.schedulers import Capabilities

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


#: Seed of all fixed numbers.
EVAL_SEED = 0


def fixed_table(rows: int, num: int, dim: int, seed: int = EVAL_SEED) -> Float[Tensor, "k n d"]:
    """Standard normal numbers, the same in every process: one (n, d) table for the start and one per step.

    Args:
        rows: Number of tables.
        num: n.
        dim: d.
        seed: Of the generator, which is on the CPU.
    """
    return torch.randn((rows, num, dim), generator=torch.Generator("cpu").manual_seed(seed), device="cpu")


def extended(table: Float[Tensor, "k n d"], rows: int) -> Float[Tensor, "j n d"]:
    """The first `rows` tables, with more of them drawn (always the same) where the table has too few.

    Args:
        table: What `fixed_table` gave.
        rows: How many are needed.
    """
    missing = rows - len(table)
    if missing > 0:
        table = torch.cat([table, fixed_table(missing, *table.shape[1:], seed=EVAL_SEED + 1).to(table)])
    return table[:rows]


@runtime_checkable
class NoiseSource(Protocol):
    """Where a `RegisterGenerator` takes the noise of its sampling steps and of its loss from."""

    def of_steps(
        self,
        can: Capabilities,
        start: Float[Tensor, "b n d"],
        fixed: Float[Tensor, "k n d"] | None,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "..."] | None, Generators | None]:
        """The `noise` and the `generator` for `ConditionalDiffusion.sample`.

        Args:
            can: What the scheduler can do.
            start: Where the diffusion starts.
            fixed: In eval mode, the fixed numbers of the start and of each step.
            generator: The caller's.

        Raises:
            ValueError: The scheduler does not take this noise.
        """
        ...

    def of_loss(self, start: Float[Tensor, "b n d"] | None) -> Float[Tensor, "b n d"] | None:
        """The `noise` for `ConditionalDiffusion.loss`; None draws it.

        Args:
            start: Where the diffusion of these registers started.
        """
        ...


class FreshNoise:
    """Gaussian noise, drawn for the loss and for each step; fixed numbers in eval mode."""

    def of_steps(
        self,
        can: Capabilities,
        start: Float[Tensor, "b n d"],
        fixed: Float[Tensor, "k n d"] | None,
        generator: torch.Generator | None,
    ) -> tuple[Float[Tensor, "..."] | None, Generators | None]:
        """See `NoiseSource.of_steps`."""
        if not can.stochastic:
            return None, None
        if fixed is None:
            return None, generator
        return fixed[1:].unsqueeze(1).expand(-1, len(start), -1, -1), None

    def of_loss(self, start: Float[Tensor, "b n d"] | None) -> None:
        """See `NoiseSource.of_loss`."""
