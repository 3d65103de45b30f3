"""The text-frame attention encoder, and how those who ask and candidates meet in either direction."""

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

#: Frames gathered at a time, in numbers: 64 MB of float32.
_BLOCK = 2**24
#: Pairs that share the frames of a video; what is not used of it is computed in vain.
_SHARED = 8


class TextFrameAttention(nn.Module):
    r"""One vector of a video's frames for each text, C_v = Softmax(C_t F^T / tau') F (DiffusionRet, eq. 4).

    It has no parameters. Padded frames are left out before the softmax and may hold anything; a video without a valid
    frame gives zeros.

    Args:
        temperature: tau'; the smaller, the more the text chooses.

    Examples:
        >>> import torch
        >>> frames = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
        >>> mask = torch.tensor([[True, True, False]])
        >>> TextFrameAttention(temperature=0.5)(torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), frames, mask)
        tensor([[[0.9820, 0.0180],
                 [0.5000, 0.5000]]])
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def weights(
        self, text: Float[Tensor, "b m d"], frames: Float[Tensor, "b f d"], frame_mask: Bool[Tensor, "b f"]
    ) -> Float[Tensor, "b m f"]:
        """How much of each frame each text takes: the attention map of figure B."""
        return self._weights(text, _blank(frames, frame_mask), frame_mask)

    def _weights(self, text: Tensor, frames: Tensor, frame_mask: Tensor) -> Tensor:
        logits = text @ frames.mT / self.temperature
        # Not -inf: a video without a valid frame would have a gradient of NaN.
        lowest = torch.finfo(logits.dtype).min
        return logits.masked_fill(~frame_mask[:, None], lowest).softmax(-1).masked_fill(~frame_mask[:, None], 0)

    def forward(
        self, text: Float[Tensor, "b m d"], frames: Float[Tensor, "b f d"], frame_mask: Bool[Tensor, "b f"]
    ) -> Float[Tensor, "b m d"]:
        """Pool the frames of b videos, each for its own m texts.

        Args:
            text: `(b, m, d)` text embeddings.
            frames: `(b, f, d)` frame embeddings.
            frame_mask: `(b, f)` True = valid.
        """
        frames = _blank(frames, frame_mask)
        return self._weights(text, frames, frame_mask) @ frames

    def extra_repr(self) -> str:
        """Shown in the module's repr."""
        return f"temperature={self.temperature}"


def _blank(frames: Tensor, frame_mask: Tensor) -> Tensor:
    """Zeros in place of padding: a weight of 0 does not silence a NaN."""
    return frames.masked_fill(~frame_mask[..., None], 0)


@runtime_checkable
class Pool(Protocol):
    """`TextFrameAttention`, or the released one."""

    def __call__(
        self, text: Float[Tensor, "b m d"], frames: Float[Tensor, "b f d"], frame_mask: Bool[Tensor, "b f"], /
    ) -> Float[Tensor, "b m d"]: ...


class Pairs(NamedTuple):
    """Queries `(b, m, d)`, one for all candidates (m = 1) or one for each (m = n), and candidates `(b, n, d)`."""

    queries: Float[Tensor, "b m d"]
    candidates: Float[Tensor, "b n d"]


class TextToVideo:
    """One text and n candidate videos, each pooled as the text sees it."""

    name: Literal["t2v"] = "t2v"
    text_rank, frames_rank = (2,), (4, 3)
    text_shape, frames_shape = "(b, d)", "(b, n, f, d), or (n, f, d) for the same candidates in every row"

    def pair(self, pool: Pool, text: Tensor, frames: Tensor, frame_mask: Tensor) -> Pairs:
        """Candidates of each row, or the same for all rows, which are then pooled without a copy for each."""
        if frames.ndim == 3:
            shared = text.expand(len(frames), *text.shape)
            return Pairs(text[:, None], pool(shared, frames, frame_mask).transpose(0, 1))
        rows, num = frames.shape[:2]
        each = text[:, None].expand(rows, num, -1).reshape(rows * num, 1, -1)
        pooled = pool(each, frames.flatten(0, 1), frame_mask.flatten(0, 1))
        return Pairs(text[:, None], pooled.view(rows, num, -1))

    def gather(
        self,
        pool: Pool,
        text: Tensor,
        frames: Tensor,
        frame_mask: Tensor,
        rows: slice | Tensor,
        chosen: Int[Tensor, "r k"],
    ) -> Pairs:
        """Pairs of the texts `rows` with the videos `chosen` for each, a bounded number of frames at a time."""
        asked, (groups, of_pair) = text[rows], _grouped(chosen.flatten().to(frames.device))
        pooled = asked.new_empty(chosen.numel(), text.shape[-1])
        size = max(1, _BLOCK // (frames.shape[1] * frames.shape[2]))
        for videos, these in zip(groups.split(size), of_pair.split(size), strict=True):
            members = these.clamp_min(0).to(asked.device)
            found = pool(
                asked[members // chosen.shape[1]], frames[videos].to(asked), frame_mask[videos].to(asked.device)
            )
            taken = (these >= 0).to(asked.device)
            pooled[members[taken]] = found[taken]
        return Pairs(asked[:, None], pooled.view(*chosen.shape, -1))


def _grouped(videos: Int[Tensor, " p"]) -> tuple[Int[Tensor, " g"], Int[Tensor, "g m"]]:
    """Pairs that share a video, at most `_SHARED` of them in a group, so that its frames are fetched once for all.

    Gives the video of each group and the pairs in it, -1 where there are fewer.
    """
    order = videos.argsort(stable=True)
    found, member, counts = videos[order].unique_consecutive(return_inverse=True, return_counts=True)
    size = min(_SHARED, int(counts.max()))
    needed = (counts + size - 1) // size
    place = torch.arange(len(videos), device=videos.device) - (counts.cumsum(0) - counts)[member]
    group = (needed.cumsum(0) - needed)[member] + place // size
    pairs = videos.new_full((int(needed.sum()), size), -1)
    pairs[group, place % size] = order
    return found.repeat_interleave(needed), pairs


class VideoToText:
    """One video and n candidate texts; the query is the video as each of them sees it."""

    name: Literal["v2t"] = "v2t"
    text_rank, frames_rank = (3, 2), (3,)
    text_shape, frames_shape = "(b, n, d), or (n, d) for the same candidates in every row", "(b, f, d)"

    def pair(self, pool: Pool, text: Tensor, frames: Tensor, frame_mask: Tensor) -> Pairs:
        """Candidates of each row, or the same for all rows."""
        text = text.expand(len(frames), *text.shape[-2:])
        return Pairs(pool(text, frames, frame_mask), text)

    def gather(
        self,
        pool: Pool,
        text: Tensor,
        frames: Tensor,
        frame_mask: Tensor,
        rows: slice | Tensor,
        chosen: Int[Tensor, "r k"],
    ) -> Pairs:
        """Pairs of the videos `rows` with the texts `chosen` for each, a bounded number of frames at a time."""
        size = max(1, _BLOCK // (frames.shape[1] * frames.shape[2]))
        found, parts = frames[rows], []
        for some, mask, picked in zip(found.split(size), frame_mask[rows].split(size), chosen.split(size), strict=True):
            parts.append(self.pair(pool, text[picked], some.to(text), mask.to(text.device)))
        return Pairs(*(torch.cat(both) for both in zip(*parts, strict=True)))
