"""The Gaussian window as printed in HLFormer's eq. 10."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from prvr.config import ModelConfig
from prvr.models.blocks import GaussianWindows


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
