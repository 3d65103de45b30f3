"""Padded rows that take part: the mean of the fusion, the poolings and the score's maximum of the released code."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.models.layers import AttentionPooling

__all__ = ["PadAfterEncoding", "PadToLength", "UnmaskedPooling", "unmasked_mean"]


def unmasked_mean(x: Float[Tensor, "v l d"], mask: Bool[Tensor, "v l"] | None) -> Float[Tensor, "v d"]:
    """Mean over all rows, padded ones included."""
    return x.mean(1)


class UnmaskedPooling(nn.Module):
    """Attention pooling in which padded rows have a say (as zero rows, with logit 0)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pool = AttentionPooling(dim)

    def forward(self, x: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"] | None = None) -> Float[Tensor, "b d"]:
        return self.pool(x)


class PadToLength(nn.Module):
    """Frames zero-padded to a fixed length before encoding; their rows set to exactly 0 and counted after it.

    A video shorter than the length therefore never scores below 0 on the frame branch.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def before(
        self, frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v m f"], Bool[Tensor, "v m"]]:
        missing = self.length - frames.shape[1]
        kept = frames * mask[..., None]
        return F.pad(kept, (0, 0, 0, missing)), F.pad(mask, (0, missing))

    def after(self, encoded: Float[Tensor, "v m d"], mask: Bool[Tensor, "v m"]) -> tuple[Float[Tensor, "v m d"], None]:
        return encoded * mask[..., None], None


class PadAfterEncoding(nn.Module):
    """Frames past a video's end are not encoded; their rows are exactly 0 and counted, as `PadToLength` leaves them."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def before(
        self, frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v l f"], Bool[Tensor, "v l"]]:
        return frames, mask

    def after(self, encoded: Float[Tensor, "v l d"], mask: Bool[Tensor, "v l"]) -> tuple[Float[Tensor, "v m d"], None]:
        return F.pad(encoded * mask[..., None], (0, 0, 0, self.length - encoded.shape[1])), None
