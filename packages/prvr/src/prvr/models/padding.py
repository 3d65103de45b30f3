"""What happens to frames past a video's end: here, nothing; `prvr.released.padding` has the released habit."""

from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = ["FramePadding", "MaskedFrames"]


@runtime_checkable
class FramePadding(Protocol):
    """What is done to frames before a branch encodes them, and to the result; the mask says which rows then count."""

    def before(
        self, frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v m f"], Bool[Tensor, "v m"]]: ...

    def after(
        self, encoded: Float[Tensor, "v m d"], mask: Bool[Tensor, "v m"]
    ) -> tuple[Float[Tensor, "v m d"], Bool[Tensor, "v m"] | None]: ...


class MaskedFrames(nn.Module):
    """Padded rows are masked wherever positions are reduced, so a video's embedding never depends on its batch."""

    def before(
        self, frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v l f"], Bool[Tensor, "v l"]]:
        return frames, mask

    def after(
        self, encoded: Float[Tensor, "v l d"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v l d"], Bool[Tensor, "v l"]]:
        return encoded * mask[..., None], mask
