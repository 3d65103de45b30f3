"""Kernel regression of sentences on windows of frames: fitted by `prvr.training.closed_form`, and never trained."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.errors import InputError
from prvr.scoring import max_scores
from prvr.types import VideoEmbedding


def parts_of(frames: int, windows: Sequence[int]) -> int:
    """The number of equal parts of a video: each as long as half of the shortest window, or a little shorter."""
    return -(-frames // max(min(windows) // 2, 1))


def window_means(
    frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"], windows: Sequence[int]
) -> tuple[Float[Tensor, "v r w f"], Bool[Tensor, "v r"]]:
    """Means of windows of each length around the middle of each of the equal parts of a video.

    Windows lie within the video; one that is longer is the whole video.

    Args:
        frames: `(v, l, f)`; padded rows may hold anything.
        mask: `(v, l)` True = valid, the valid frames first; at least one for each video.
        windows: w lengths, in frames.

    Returns:
        The means, and which of the r parts each video has: `parts_of` its number of frames.

    Examples:
        >>> frames, mask = torch.arange(8.0).reshape(1, 8, 1), torch.ones(1, 8, dtype=torch.bool)
        >>> window_means(frames, mask, [4, 6])[0][0, ..., 0].tolist()
        [[1.5, 2.5], [2.5, 2.5], [4.5, 4.5], [5.5, 4.5]]
    """
    step, counts = max(min(windows) // 2, 1), mask.sum(1)
    parts, most = -(-counts // step), parts_of(frames.shape[1], windows)
    number, place = (torch.arange(size, device=frames.device) for size in (most, frames.shape[1]))
    counts, twice = counts[:, None], 2 * parts[:, None]
    frames, means = frames.masked_fill(~mask[..., None], 0), []
    for window in windows:  # in whole numbers, alike on every device
        starts = ((2 * number + 1) * counts - (window - 1) * parts[:, None]) // twice
        starts = torch.minimum(starts, counts - window).clamp(min=0)[..., None]  # (v, r, 1)
        inside = ((starts <= place) & (place < starts + window) & mask[:, None]).to(frames.dtype)  # (v, r, l)
        means.append(inside / inside.sum(2, keepdim=True).clamp(min=1) @ frames)
    return torch.stack(means, 2), number < parts[:, None]


def sentences(words: Float[Tensor, "q w e"], mask: Bool[Tensor, "q w"]) -> Float[Tensor, "q e"]:
    """The mean of the unit vectors of the words of each query, of unit length.

    Examples:
        >>> words, mask = torch.tensor([[[2.0, 0.0], [9.0, 9.0]]]), torch.tensor([[True, False]])
        >>> sentences(words, mask).tolist()
        [[1.0, 0.0]]
    """
    return F.normalize(F.normalize(words, dim=-1).masked_fill(~mask[..., None], 0).sum(1), dim=-1)


def kernel(
    rows: Float[Tensor, "*b w f"],
    landmarks: Float[Tensor, "m w f"],
    widths: Float[Tensor, " w"],
    kind: Literal["gaussian", "linear"],
) -> Float[Tensor, "*b m"]:
    r"""The kernel between rows and landmarks, the mean over the lengths of windows.

    gaussian: $\exp(-|x - z|^2 / 2 \sigma^2)$ with a width $\sigma$ for each length; linear: $x \cdot z$.

    Examples:
        >>> one = torch.ones(1, 1, 4)
        >>> kernel(one, 3 * one, torch.tensor([2.0]), "gaussian"), kernel(one, 3 * one, torch.tensor([2.0]), "linear")
        (tensor([[0.1353]]), tensor([[12.]]))
    """
    flat, total = rows.flatten(0, -3), 0.0
    for length, width in enumerate(widths):
        x, z = flat[:, length], landmarks[:, length]
        if kind == "linear":
            total = total + x @ z.mT
        else:
            total = total + (torch.cdist(x, z).square() / (-2 * width.square())).exp_()
    return (torch.as_tensor(total) / len(widths)).unflatten(0, rows.shape[:-2])


class KernelPath(nn.Module):
    r"""Windows of frames, mapped into the space of the words by kernel regression: $f(x) = A k(x, Z) + b$.

    The landmarks Z are rows of training videos. With `toward: identity` the mean of the windows is added. A new path
    maps everything to 0; nothing in it has a gradient.

    Args:
        config: the configuration of the retriever; its `path` has the windows, the kernel and the number of landmarks.

    Attributes:
        gate: the share of the blocks in the score of a retriever that has both.
    """

    gate: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = path = config.path

        def fixed(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(shape), requires_grad=False)

        self.mean, self.scale = fixed(config.video_dim), fixed(config.video_dim)
        self.landmarks = fixed(path.landmarks, len(path.windows), config.video_dim)
        self.widths = nn.Parameter(torch.ones(len(path.windows)), requires_grad=False)
        self.weight, self.bias = fixed(config.query_dim, path.landmarks), fixed(config.query_dim)
        self.register_buffer("gate", torch.zeros(()))

    def encode_text(self, words: Float[Tensor, "q w e"], mask: Bool[Tensor, "q w"]) -> Float[Tensor, "q e"]:
        """Queries as `sentences` gives them."""
        return sentences(words, mask)

    def encode_video(self, frames: Float[Tensor, "v l f"], mask: Bool[Tensor, "v l"]) -> VideoEmbedding:
        """A row of width e for each of the equal parts of a video, see `window_means`."""
        means, valid = window_means(frames, mask, self.config.windows)
        rows = kernel((means - self.mean) * self.scale, self.landmarks, self.widths, self.config.kernel)
        mapped = F.linear(rows, self.weight, self.bias)
        if self.config.toward == "identity":
            mapped = mapped + means.mean(2)
        return VideoEmbedding(frames=mapped.masked_fill(~valid[..., None], 0), frame_mask=valid)

    def score(self, text: Float[Tensor, "q e"] | None, video: VideoEmbedding) -> Float[Tensor, "q v"]:
        """The maximum cosine over the rows of each video.

        Raises:
            InputError: one of the two was not encoded by a retriever with a path.
        """
        if text is None or video.frames is None:
            raise InputError("these texts or videos have nothing for the kernel path: encode them with this retriever")
        return max_scores(text, video.frames, video.frame_mask, dots=False, unit=video.unit)[0]
