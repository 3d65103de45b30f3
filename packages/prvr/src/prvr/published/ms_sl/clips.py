"""The parts of MS-SL's retriever: clip proposals, and what each of them reads of the frames."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.clips import Encode
from prvr.models.layers import initialise


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

    def forward(
        self,
        frames: Float[Tensor, "v l d"],
        valid: Bool[Tensor, "v l"],
        scored: Bool[Tensor, "v l"] | None,
        clips: Float[Tensor, "v p d"] | None,
    ) -> tuple[Float[Tensor, "v p d"], None]:
        """A row for each clip, see `FramePooling`."""
        assert clips is not None  # the configuration sees to it
        logits = (clips @ self.key(frames).mT).masked_fill(~valid[:, None], -torch.inf)
        return logits.softmax(-1) @ self.value(frames), None
