"""What HLFormer prints and does not use: the Gaussian window of eq. 10 to the letter, and the fusion beside its own."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.blocks import GaussianWindows
from prvr.models.layers import initialise


def printed_window(length: int, width: float | None) -> Float[Tensor, "l l"]:
    r"""Window $G_{ij} = \frac{1}{2\pi} \exp(-(j - i)^2 / \sigma^2)$ on positions, as printed in HLFormer eq. 10.

    Args:
        length: number of positions.
        width: sigma, in positions; None is infinite and gives 1 / 2 pi everywhere.

    Returns:
        The window in float64.

    Examples:
        >>> (printed_window(3, 2.0)[0] * 2 * torch.pi).log()
        tensor([ 0.0000, -0.2500, -1.0000], dtype=torch.float64)
    """
    position = torch.arange(length, dtype=torch.float64)
    sigma = torch.inf if width is None else width
    return torch.exp(-(((position[None] - position[:, None]) / sigma) ** 2)) / (2 * torch.pi)


def printed_windows(model: ModelConfig, widths: Sequence[float | None], length: int) -> GaussianWindows:
    """`printed_window` of each block."""
    return GaussianWindows(widths, length, model.window == "add", printed_window)


class ConcatFusion(nn.Module):
    """One linear map of the concatenated blocks (the "CL" row of HLFormer's table 2)."""

    def __init__(self, model: ModelConfig, length: int) -> None:
        super().__init__()
        self.linear = nn.Linear(len(model.blocks) * model.hidden, model.hidden)
        initialise(self.linear)

    def forward(
        self, blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None = None
    ) -> Float[Tensor, "v l d"]:
        """A linear map of the blocks `(k, v, l, d)`, joined along the width; the mask is not read."""
        return self.linear(blocks.permute(1, 2, 0, 3).flatten(-2))
