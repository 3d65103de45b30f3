"""Where the noise of registers comes from: in eval mode fixed numbers, so that a row depends on itself alone."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from regdiff.noise import Generators
from regdiff.schedulers import Capabilities

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
