"""How a denoiser knows its timestep: a table of sinusoids and two linear maps."""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regdiff.hub import Saveable

#: The longest wavelength of `sincos_table` in units of 2 pi positions (Vaswani et al. 2017).
LONGEST_WAVE = 10_000.0


def sincos_table(length: int, dim: int, dtype: torch.dtype = torch.float64) -> Float[Tensor, "l d"]:
    """Sinusoidal code of Vaswani et al. (2017): table[p, 2i] = sin(p / 10000^(2i/d)), table[p, 2i+1] = cos(same).

    Args:
        length: Number of positions.
        dim: Width of the code.
        dtype: Precision of the whole computation, frequencies included; the result is returned in it.

    Examples:
        >>> sincos_table(2, 4)[0].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    log_base = torch.log(torch.tensor(LONGEST_WAVE, dtype=torch.float64, device="cpu")).item()
    even = torch.arange(0, dim, 2, dtype=dtype, device="cpu")
    angles = torch.arange(length, dtype=dtype, device="cpu")[:, None] * torch.exp(even * -(log_base / dim))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :dim]


class TimedDenoiser(nn.Module, Saveable, ABC):
    """What the denoisers of this package share: e(t) = W silu(W table[t]) and saving.

    The table holds sinusoids; it is a buffer, kept in the state dict and never trained.

    Args:
        dim: Width d of the code.
        steps: T, the number of timesteps in the table.
    """

    time_table: Tensor

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.time_in = nn.Linear(dim, dim)
        self.register_buffer("time_table", sincos_table(steps, dim).to(self.time_in.weight))
        self.time_out = nn.Linear(dim, dim)

    @property
    def steps(self) -> int:
        """T, the number of timesteps in the table."""
        return len(self.time_table)

    def time_code(self, timestep: Int[Tensor, "b"]) -> Float[Tensor, "b d"]:
        """The code of each row's timestep.

        Args:
            timestep: One timestep in [0, T) per row.
        """
        return self.time_out(F.silu(self.time_in(self.time_table[timestep])))

    @abstractmethod
    def forward(self, sample: Tensor, timestep: Tensor, condition: Any, mask: Tensor | None = None) -> Tensor:
        """See `regdiff.Denoiser`."""
