"""Padded rows that take part in the released code: in means, poolings, the maximum of the score, and windows."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.blocks import GaussianWindows
from prvr.models.layers import AttentionPooling
from prvr.models.rows import Padding
from prvr.types import pad_to

_MOST_QUERIES = 26  # of a video of ActivityNet Captions, in the released code of RAL for every data set


def unmasked_guide(blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None) -> Float[Tensor, "v d"]:
    """The mean of each video over blocks and all positions, padded ones included; the mask is not read."""
    return blocks.mean((0, 2))


class UnmaskedPooling(nn.Module):
    """Attention pooling in which padded rows have a say (as zero rows, with logit 0)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pool = AttentionPooling(dim)

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b d"]:
        """One vector `(b, d)` of each sequence `(b, l, d)`; the mask is not read."""
        return self.pool(x)


def pad_to_length(
    frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"], length: int
) -> tuple[Float[Tensor, "v m f"], Bool[Tensor, "v m"], None]:
    """Zero-pads frames to a fixed length; after encoding, padded rows are exactly 0 and take part in the maximum.

    A video shorter than the length therefore never scores below 0 on the frame branch.
    """
    frames = frames.masked_fill(~mask[..., None], 0)
    return pad_to(frames, length), pad_to(mask, length), None


def pad_support(
    words: Float[Tensor, "v m d"], mask: Bool[Tensor, "v m"], length: int
) -> tuple[Float[Tensor, "v n d"], None]:
    """The words of all queries of a video, padded to 26 queries of a length, of which every row is read (RAL)."""
    return pad_to(words, _MOST_QUERIES * length), None


TO_LENGTH = Padding(pad_to_length, unmasked_guide, pad_support)
"""Rows of padding, to a fixed length, take part."""


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
