"""The linear maps after the branches of DL-DKD, and its second query encoder."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.clips import Encode, EncodedFrames
from prvr.models.encoders import QueryEncoder
from prvr.models.layers import Positions, initialise
from prvr.models.rows import Sequences
from prvr.types import TextEmbedding


class FrameRows(nn.Module):
    """A linear map of each frame as the clip branch encodes it; after the last frame its row is repeated (DL-DKD)."""

    has_spans = True

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.rows = model.max_frames
        self.map = nn.Linear(model.hidden, model.hidden)
        initialise(self.map)

    def forward(
        self, encode: Encode, clips: Float[Tensor, "v c f"], frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]
    ) -> tuple[Float[Tensor, "v p d"], Float[Tensor, "v p 2"]]:
        """The rows, see `ClipConstruction`."""
        encoded = self.map(encode(frames, mask))
        count = mask.sum(1, keepdim=True)
        place = torch.arange(self.rows, device=mask.device).minimum(count - 1)
        spans = torch.stack([place, place + 1], -1).to(encoded.dtype) / count[..., None]
        return encoded.gather(1, place[..., None].expand(-1, -1, encoded.shape[-1])), spans


class MappedFrames(nn.Module):
    """A linear map of frames, one by one (DL-DKD)."""

    by_clip = False

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.map = nn.Linear(model.hidden, model.hidden)
        initialise(self.map)

    def forward(self, frames: EncodedFrames) -> tuple[Float[Tensor, "v l d"], Bool[Tensor, "v l"] | None]:
        """The frames, see `FramePooling`."""
        return self.map(frames.rows), frames.scored


class SecondQuery(nn.Module):
    """A second `QueryEncoder`, whose vector frames are compared with (DL-DKD)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = QueryEncoder(config)

    def weights(self, words: Float[Tensor, "q 1 d"], mask: Bool[Tensor, "q 1"]) -> Float[Tensor, "q 1"]:
        """1 for each vector."""
        return mask.to(words.dtype)

    def forward(
        self,
        sentence: Float[Tensor, "q d"],
        words: Float[Tensor, "q w e"],
        mask: Bool[Tensor, "q w"],
        sequences: Sequences,
        positions: Positions,
    ) -> TextEmbedding:
        """The vector for frames, as the one word, beside the one for clips."""
        vector = self.encoder(words, sequences)[:, None]
        mask = torch.ones_like(mask[:, :1])
        return TextEmbedding(sentence, vector, mask, self.weights(vector, mask))
