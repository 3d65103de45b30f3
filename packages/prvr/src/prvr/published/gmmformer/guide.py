"""Parts of GMMFormer, one vector of all frames, and of GMMFormer v2, one learned vector that guides the fusion."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.clips import EncodedFrames
from prvr.models.fusion import GuidedFusion
from prvr.models.layers import AttentionPooling


class PooledFrames(AttentionPooling):
    """One vector of all frames by attention pooling (GMMFormer); a `prvr.models.clips.FramePooling`."""

    by_clip = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model.hidden)

    def forward(self, frames: EncodedFrames) -> tuple[Float[Tensor, "v 1 d"], None]:
        """One row per video, see `prvr.models.clips.FramePooling`."""
        return super().forward(frames.rows, frames.valid)[:, None], None


class GuideToken(nn.Module):
    """A learned vector that guides the fusion of every video (GMMFormer v2); it starts at N(0, 1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, dim))

    def forward(
        self, blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None = None
    ) -> Float[Tensor, "v d"]:
        """The vector, for each video."""
        return self.token[0].expand(blocks.shape[1], -1)


def token_guided(model: ModelConfig, length: int, first: GuidedFusion | None = None) -> GuidedFusion:
    """Fusion by weights for which a learned vector asks each block (GMMFormer v2).

    As `GuidedFusion`, with a `GuideToken` in the place of the mean. The branches of a retriever share the vector: with
    the fusion of the `first` one the other asks with its vector.
    """
    token = GuideToken(model.hidden)  # drawn for each branch, so that a seed gives the weights it always gave
    return GuidedFusion(model, length, token if first is None else first.guide.forward)
