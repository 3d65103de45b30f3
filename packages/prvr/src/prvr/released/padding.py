"""Padded rows that take part: the mean of the fusion, the poolings and the score's maximum of the released code."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.models.layers import AttentionPooling
from prvr.models.rows import Padding

_MOST_QUERIES = 26  # of a video of ActivityNet Captions, in the released code of RAL for every data set


def unmasked_guide(blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None) -> Float[Tensor, "v d"]:
    """The mean of each video over blocks and all positions, padded ones included; the mask is not read."""
    return blocks.mean(0).mean(1)


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
    missing = length - frames.shape[1]
    frames = frames.masked_fill(~mask[..., None], 0)
    return F.pad(frames, (0, 0, 0, missing)), F.pad(mask, (0, missing)), None


def pad_support(
    words: Float[Tensor, "v m d"], mask: Bool[Tensor, "v m"], length: int
) -> tuple[Float[Tensor, "v n d"], None]:
    """The words of all queries of a video, padded to 26 queries of a length, of which every row is read (RAL)."""
    return F.pad(words, (0, 0, 0, max(0, _MOST_QUERIES * length - words.shape[1]))), None


TO_LENGTH = Padding(pad_to_length, unmasked_guide, pad_support)
"""Rows of padding, to a fixed length, take part."""
