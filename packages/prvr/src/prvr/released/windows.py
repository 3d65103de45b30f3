"""The released Gaussian window: its peak lies beside the diagonal, and each row is divided by its maximum."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.blocks import GaussianWindows


def released_window(length: int, width: float | None) -> Float[Tensor, "l l"]:
    """g_ij = exp(-(j/(L-1) - i/L)^2 / 2s^2), s = max(w, 0.01)/9; G = g / max over j. In float64.

    The centres are i/L but the keys lie on linspace(0, 1, L), hence the division by the row's maximum.
    """
    if width is None:
        return torch.ones(length, length, dtype=torch.float64)
    keys = torch.linspace(0, 1, length, dtype=torch.float64)
    centres = torch.arange(length, dtype=torch.float64)[:, None] / length
    window = torch.exp(-((keys - centres) ** 2) / (2 * (max(width, 0.01) / 9) ** 2))
    # The clamp only touches rows that are all zero, of a narrow window over few frames: they stay zero.
    return window / window.amax(-1, keepdim=True).clamp_min(torch.finfo(window.dtype).tiny)


class BatchWindows(nn.Module):
    """Windows as long as the batch (GMMFormer): a video's encoding depends on the longest video beside it.

    Each length is computed once and cached on the device of the model: copying it in every step would block.
    """

    like: Tensor

    def __init__(self, widths: Sequence[float | None]) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.register_buffer("like", torch.zeros(()), persistent=False)
        self._made: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}

    def forward(self, length: int) -> Float[Tensor, "k l l"]:
        """The windows `(k, l, l)` of a batch of this length."""
        key = (length, self.like.dtype, self.like.device)
        if key not in self._made:
            with torch.inference_mode(False):  # an evaluation may be the first to ask, and training comes after it
                windows = [released_window(length, width) for width in self.widths]
                self._made[key] = torch.stack(windows).to(self.like)
        return self._made[key]


def released_windows(model: ModelConfig, widths: Sequence[float | None], length: int) -> BatchWindows | GaussianWindows:
    """`released_window` of each block, as long as the batch with `compat.padding='to_batch'`."""
    if model.compat.padding == "to_batch":
        return BatchWindows(widths)
    return GaussianWindows(widths, length, model.window == "add", released_window)
