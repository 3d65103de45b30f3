"""The parts of MS-SL's retriever: clip proposals, and what each of them reads of the frames."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.errors import InputError
from prvr.models.clips import Encode, EncodedFrames
from prvr.models.layers import initialise
from prvr.scoring import at_least_float32, full_precision, unit_rows


class Proposals(nn.Module):
    """The mean of every run of neighbouring encoded clips, from runs of one clip to all of them (MS-SL).

    Examples:
        >>> proposals = Proposals(ModelConfig(video_dim=1, query_dim=1, num_clips=2))
        >>> rows, spans = proposals(lambda x, mask=None: x, torch.tensor([[[1.0], [3.0]]]), None, None)
        >>> rows.flatten().tolist(), spans.tolist()
        ([1.0, 3.0, 2.0], [[[0.0, 0.5], [0.5, 1.0], [0.0, 1.0]]])
    """

    has_spans = True
    edges: Tensor

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.clips = model.num_clips
        runs = [(first, first + size) for size in range(1, self.clips + 1) for first in range(self.clips - size + 1)]
        self.rows = len(runs)
        self.register_buffer("edges", torch.tensor(runs), persistent=False)

    def forward(
        self,
        encode: Encode,
        clips: Float[Tensor, "v c f"],
        frames: Float[Tensor, "v l f"] | None,
        mask: Bool[Tensor, "v l"] | None,
    ) -> tuple[Float[Tensor, "v p d"], Float[Tensor, "v p 2"]]:
        """The rows, see `ClipConstruction`; those of shorter runs come first."""
        encoded, (first, last) = encode(clips), self.edges.mT[..., None]
        place = torch.arange(self.clips, device=encoded.device)
        shares = ((first <= place) & (place < last)).to(encoded.dtype) / (last - first)
        return shares @ encoded, (self.edges / self.clips).to(encoded.dtype).expand(len(clips), -1, -1)


def key_clip_scores(
    text: Float[Tensor, "q d"],
    clips: Float[Tensor, "v p d"],
    frames: Float[Tensor, "v p d"],
    dots: bool = True,
    *,
    unit: bool = False,
) -> tuple[
    Float[Tensor, "q v"],
    Float[Tensor, "q v"] | None,
    Float[Tensor, "q v"],
    Float[Tensor, "q v"] | None,
    Int[Tensor, "q v"],
]:
    r"""Scores by clips, and by what the best clip of each query reads of the frames (MS-SL).

    $\max_j \cos(q, c_j)$ and $\cos(q, g_k)$, where $k = \arg\max_j \cos(q, c_j)$ is the key clip.

    Args:
        text: `(q, d)` query embeddings.
        clips: `(v, p, d)` c, rows of the clip branch.
        frames: `(v, p, d)` g, a row for each of them.
        dots: also give $\max_j q \cdot c_j$ and $q \cdot g_k$.
        unit: the rows already have unit length; excludes `dots`.

    Returns:
        Cosines and dot products by clips, those by frames, and the number of the key clip.

    Examples:
        >>> text, clips = torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
        >>> [s.tolist() for s in key_clip_scores(text, clips, clips.flip(1))]
        [[[1.0]], [[2.0]], [[0.0]], [[0.0]], [[0]]]
    """
    if unit and dots:
        raise InputError("key_clip_scores: unit=True with dots=True: dot products need the rows as they were encoded")
    with full_precision(text.device):
        text, clips, frames = (at_least_float32(x) for x in (text, clips, frames))
        if not dots:
            text = unit_rows(text)
            clips, frames = (clips, frames) if unit else (unit_rows(clips), unit_rows(frames))
        clip_dot, frame_dot = ((text @ rows.flatten(0, 1).mT).unflatten(1, rows.shape[:2]) for rows in (clips, frames))
        if not dots:
            best, key = clip_dot.max(-1)
            return best, None, frame_dot.gather(-1, key[..., None]).squeeze(-1), None, key
        lengths = [rows.norm(dim=-1).clamp_min(1e-12) for rows in (text, clips, frames)]
        best, key = (clip_dot / lengths[1]).max(-1)
        by_key = frame_dot.gather(-1, key[..., None]).squeeze(-1)
        scale = lengths[2][torch.arange(len(frames), device=key.device), key]
        return best / lengths[0][:, None], clip_dot.amax(-1), by_key / scale / lengths[0][:, None], by_key, key


class KeyClipFrames(nn.Module):
    r"""What each clip reads of the frames, by key clip guided attention (MS-SL).

    $g_j = \sum_l \mathrm{softmax}_l(c_j \cdot W_1 f_l) \, W_2 f_l$ for the rows c of the clip branch. A query is
    compared with that of its key clip, the row with the highest cosine.
    """

    by_clip = True

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.key, self.value = (nn.Linear(model.hidden, model.hidden, bias=False) for _ in range(2))
        initialise(self.key, self.value)

    def forward(self, frames: EncodedFrames) -> tuple[Float[Tensor, "v p d"], None]:
        """A row for each clip, see `FramePooling`."""
        assert frames.clips is not None  # the configuration sees to it
        logits = (frames.clips @ self.key(frames.rows).mT).masked_fill(~frames.valid[:, None], -torch.inf)
        return logits.softmax(-1) @ self.value(frames.rows), None

    scores = staticmethod(key_clip_scores)
