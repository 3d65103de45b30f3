"""A second stream of rows of each video: its branch, and how its best row joins the best frame."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import STREAMS, ModelConfig, RegisterConfig
from prvr.errors import InputError
from prvr.models.encoders import BranchEncoder
from prvr.models.rows import Sequences
from prvr.scoring import max_scores
from prvr.types import VideoEmbedding


def mean_of_streams(config: ModelConfig) -> Callable[..., Tensor]:
    """(1 - weight) frames + weight stream."""
    stream: Any = config.stream
    return lambda text, frames, best: frames.lerp(best, stream.weight)


class SecondStream(nn.Module):
    """The branch of `config.stream`, and its part of the score.

    Args:
        config: the configuration of the retriever, whose blocks, fusion and sizes this branch has too.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        stream: Any = config.stream
        self.name, self.width = stream.feature, stream.dim
        sizes = {"video_dim": stream.dim, "max_frames": stream.max_rows}
        alone = replace(config, **sizes, clip_construction="equal", motion="none", registers=RegisterConfig())
        self.branch = BranchEncoder(alone, stream.max_rows)
        self.join = STREAMS[stream.fusion].part(config)

    def forward(self, rows: Float[Tensor, "v s g"] | None, mask: Bool[Tensor, "v s"] | None) -> VideoEmbedding:
        """The rows as encoded, as frames; the mask of a video without any has no True.

        Raises:
            InputError: there is no stream, or it has another width.
        """
        if rows is None or mask is None or rows.shape[2] != self.width:
            raise InputError(f"model.stream reads rows of {self.name!r}, {self.width} wide: these videos have none")
        read = mask.clone()
        read[:, 0] |= ~mask.any(1)  # of a video without rows one of zeros, so that attention has a key; none counts
        sequences = (Sequences.padded if read.is_meta else Sequences.packed)(read)  # shapes do not say what is valid
        encoded = self.branch(self.branch.embed(rows, sequences), sequences)
        return VideoEmbedding(frames=encoded.masked_fill(~read[..., None], 0), frame_mask=mask)

    def score(
        self, text: Float[Tensor, "q d"], stream: Any, frames: Float[Tensor, "q v"], dots: Float[Tensor, "q v"] | None
    ) -> tuple[Float[Tensor, "q v"], Float[Tensor, "q v"] | None]:
        """Cosines and products with frames, joined with those of the stream where a video has one."""
        there = stream.frame_mask.any(1)
        mask = stream.frame_mask | ~there[:, None]  # those without it are left out below
        cosines, products = max_scores(text, stream.frames, mask, dots is not None, unit=stream.unit)
        joined = torch.where(there, self.join(text, frames, cosines), frames)
        return joined, None if dots is None else torch.where(there, self.join(text, dots, products), dots)
