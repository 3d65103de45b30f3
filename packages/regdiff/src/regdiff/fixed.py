"""What stands in for every random draw in eval mode, so that a result depends on its own row alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from regdiff.schedulers import Capabilities

#: Seed of all of it.
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


def expect_own_noise(can: Capabilities) -> None:
    """Refuse a scheduler whose steps add noise that nobody else can supply.

    Raises:
        ValueError: It is one.
    """
    if can.stochastic and not can.own_noise:
        raise ValueError(
            f"noise: got 'start', but {can.scheduler} draws the noise of its steps itself; "
            "expected noise='gaussian', or another scheduler such as 'ddim'"
        )


def step_noise(
    can: Capabilities,
    start: Float[Tensor, "b n d"],
    fixed: Float[Tensor, "k n d"] | None,
    generator: torch.Generator | None,
    reuse_start: bool,
) -> tuple[Float[Tensor, "..."] | None, torch.Generator | list[torch.Generator] | None]:
    """The `noise` and the `generator` for `ConditionalDiffusion.sample`.

    Args:
        can: Of the scheduler.
        start: Where the diffusion starts.
        fixed: In eval mode, the tables of start and steps.
        generator: The caller's.
        reuse_start: The start is the noise of every step, too.

    Raises:
        ValueError: The start is to be reused, but the scheduler draws its own noise.
    """
    if reuse_start:
        expect_own_noise(can)
    if not can.stochastic:
        return None, None
    if reuse_start:
        return start, None
    if fixed is None:
        return None, generator
    if can.own_noise:
        return fixed[1:].unsqueeze(1).expand(-1, len(start), -1, -1), None
    # diffusers takes one generator per row: with one seed for all, a row's noise does not depend on the batch.
    return None, [torch.Generator("cpu").manual_seed(EVAL_SEED + 2) for _ in range(len(start))] or None
