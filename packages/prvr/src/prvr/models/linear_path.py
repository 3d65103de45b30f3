"""A map of frames on sentences that is fitted in closed form, `prvr.training.closed_form`, and never trained."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.errors import InputError
from prvr.scoring import max_scores
from prvr.types import VideoEmbedding


def window_means(
    frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"], windows: Sequence[int]
) -> tuple[Float[Tensor, "v r f"], Bool[Tensor, "v r"]]:
    """Means of windows of frames around each frame, for one length after the other, and which of them are valid.

    A window of w frames around frame i begins at frame i - w // 2; what lies outside of the video is left out.

    Args:
        frames: `(v, l, f)`; padded rows may hold anything.
        mask: `(v, l)` True = valid, the valid frames first.
        windows: lengths w.

    Returns:
        r = l times the number of lengths.

    Examples:
        >>> frames, mask = torch.tensor([[[1.0], [3.0], [5.0]]]), torch.tensor([[True, True, True]])
        >>> window_means(frames, mask, [1, 2])[0].flatten().tolist()
        [1.0, 3.0, 5.0, 1.0, 2.0, 4.0]
    """
    frames, place = frames.masked_fill(~mask[..., None], 0), torch.arange(frames.shape[1], device=frames.device)
    starts = torch.cat([place - window // 2 for window in windows])[:, None]
    stops = starts + torch.tensor(windows, device=place.device).repeat_interleave(len(place))[:, None]
    inside = ((starts <= place) & (place < stops) & mask[:, None]).to(frames.dtype)  # (v, r, l)
    return inside / inside.sum(2, keepdim=True).clamp(min=1) @ frames, mask.repeat(1, len(windows))


def sentences(words: Float[Tensor, "q w e"], mask: Bool[Tensor, "q w"]) -> Float[Tensor, "q e"]:
    """The mean of the unit vectors of the words of each query, of unit length.

    Examples:
        >>> words, mask = torch.tensor([[[2.0, 0.0], [9.0, 9.0]]]), torch.tensor([[True, False]])
        >>> sentences(words, mask).tolist()
        [[1.0, 0.0]]
    """
    return F.normalize(F.normalize(words, dim=-1).masked_fill(~mask[..., None], 0).sum(1), dim=-1)


class LinearPath(nn.Module):
    r"""Means of windows of frames, mapped into the space of the words: $W \phi(x) + b$.

    $\phi$ is the identity, or random Fourier features $\cos(\Omega x + p)$ (Rahimi and Recht, 2007). A new path maps
    everything to 0; nothing in it has a gradient.

    Args:
        config: of the retriever, with the windows and the number of features.

    Attributes:
        gate: the share of the blocks in the score of a retriever that has both.
    """

    gate: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.windows, features = config.path.windows, config.path.features

        def fixed(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(shape), requires_grad=False)

        self.frequencies = fixed(features, config.video_dim) if features else None
        self.phases = fixed(features) if features else None
        self.weight = fixed(config.query_dim, features or config.video_dim)
        self.bias = fixed(config.query_dim)
        self.register_buffer("gate", torch.zeros(()))

    def encode_text(self, words: Float[Tensor, "q w e"], mask: Bool[Tensor, "q w"]) -> Float[Tensor, "q e"]:
        """Queries as `sentences` gives them."""
        return sentences(words, mask)

    def encode_video(self, frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]) -> VideoEmbedding:
        """A row of width e for each window; those of the first length share the time of the video evenly."""
        if self.frequencies is None:  # means of mapped frames are mapped means, of fewer numbers
            mapped, valid = window_means(F.linear(frames, self.weight, self.bias), mask, self.windows)
        else:
            rows, valid = window_means(F.linear(frames, self.frequencies, self.phases), mask, self.windows)
            mapped = F.linear(rows.cos(), self.weight, self.bias)
        return VideoEmbedding(frames=mapped.masked_fill(~valid[..., None], 0), frame_mask=valid)

    def score(self, text: Float[Tensor, "q e"] | None, video: VideoEmbedding) -> Float[Tensor, "q v"]:
        """The maximum cosine over the rows of each video.

        Raises:
            InputError: one of the two was not encoded by a retriever with a path.
        """
        if text is None or video.frames is None:
            raise InputError("these texts or videos have nothing for the linear path: encode them with this retriever")
        return max_scores(text, video.frames, video.frame_mask, dots=False, unit=video.unit)[0]
