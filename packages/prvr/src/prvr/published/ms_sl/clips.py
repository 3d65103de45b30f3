"""The parts of MS-SL: clip proposals, what each of them reads of the frames, and the losses of what key clips read."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.errors import InputError
from prvr.losses.matching import pool_size, select_negatives
from prvr.losses.term import LossInputs, Negatives, Scalar, Term
from prvr.models.clips import Encode, EncodedFrames
from prvr.models.layers import initialise
from prvr.published.ms_sl import KeyClipSettings, KeyClipTripletSettings
from prvr.scoring import at_least_float32, full_precision, unit_rows

Rows = Float[Tensor, "v p d"]
"""Rows of the clip branch of each video, or what each of them reads of the frames."""
PairScores = Float[Tensor, "q v"]
"""A score of each query with each video."""


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
    ) -> tuple[Rows, Float[Tensor, "v p 2"]]:
        """The rows, see `ClipConstruction`; those of shorter runs come first."""
        encoded, (first, last) = encode(clips), self.edges.mT[..., None]
        place = torch.arange(self.clips, device=encoded.device)
        shares = ((first <= place) & (place < last)).to(encoded.dtype) / (last - first)
        return shares @ encoded, (self.edges / self.clips).to(encoded.dtype).expand(len(clips), -1, -1)


def key_clip_scores(
    text: Float[Tensor, "q d"],
    clips: Rows,
    frames: Rows,
    dots: bool = True,
    *,
    unit: bool = False,
) -> tuple[
    PairScores,
    PairScores | None,
    PairScores,
    PairScores | None,
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
        rows = (clips, frames) if unit else (unit_rows(clips), unit_rows(frames))
        by_clip, by_frame = ((unit_rows(text) @ x.flatten(0, 1).mT).unflatten(1, x.shape[:2]) for x in rows)
        best, key = by_clip.max(-1)
        by_key = by_frame.gather(-1, key[..., None]).squeeze(-1)
        if not dots:
            return best, None, by_key, None, key
        of_text, of_clips, of_frames = (x.norm(dim=-1) for x in (text, clips, frames))
        of_key = of_frames[torch.arange(len(frames), device=key.device), key]
        clip_dot, frame_dot = (by_clip * of_clips).amax(-1), by_key * of_key
        return best, of_text[:, None] * clip_dot, by_key, of_text[:, None] * frame_dot, key


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

    def forward(self, frames: EncodedFrames) -> tuple[Rows, None]:
        """A row for each clip, see `FramePooling`."""
        assert frames.clips is not None  # the configuration sees to it
        logits = (frames.clips @ self.key(frames.rows).mT).masked_fill(~frames.valid[:, None], -torch.inf)
        return logits.softmax(-1) @ self.value(frames.rows), None

    scores = staticmethod(key_clip_scores)


def key_clip_triplet_loss(
    scores: Float[Tensor, "q q"],
    positives: Bool[Tensor, "q q"],
    margin: float,
    negatives: Negatives = "random",
    hard_pool: int = 20,
    generator: torch.Generator | None = None,
) -> Scalar:
    r"""Margin ranking in both directions of a matrix whose diagonal is right.

    $\frac1Q \sum_q [m + S_{q,n(q)} - S_{qq}]_+ + [m + S_{n(q),q} - S_{qq}]_+$.

    Args:
        scores: S, cosine of query i with what the key clip of query j reads of its video.
        positives: what is never a negative; the diagonal among it.
        margin: m.
        negatives: "random": any; "hard": from the `hard_pool` highest-scored, both ways; "hardest": the highest-scored.
        hard_pool: number of hard negatives to draw from.
        generator: source of the draws; None = the global one.

    Examples:
        >>> right = torch.eye(2, dtype=torch.bool)
        >>> round(key_clip_triplet_loss(torch.tensor([[0.9, 0.8], [0.0, 0.9]]), right, 0.2).item(), 3)
        0.1
    """
    own, pool, terms = scores.diagonal(), pool_size(negatives, hard_pool), []
    for rows, candidates in ((scores, ~positives), (scores.mT, ~positives.mT)):
        negative = select_negatives(rows, candidates, pool, generator)
        terms.append(F.relu(margin + negative - own) * candidates.any(1))
    return (terms[0] + terms[1]).mean()


def key_clip_nce_loss(scores: Float[Tensor, "q q"], positives: Bool[Tensor, "q q"]) -> Scalar:
    r"""Contrast of the diagonal with its row and its column at once (Miech et al. 2020).

    $\frac1Q \sum_q \log \left(\sum_p e^{S_{qp}} + \sum_p e^{S_{pq}}\right) - S_{qq}$ over all p that are not right by
    `positives`, and q itself, which counts in both sums.

    Args:
        scores: S, dot product of query i with what the key clip of query j reads of its video.
        positives: what is never a negative; the diagonal among it.

    Examples:
        >>> key_clip_nce_loss(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)).exp().item()
        2.0
    """
    right = positives.clone().fill_diagonal_(False)
    rows = scores.masked_fill(right, -torch.inf)
    columns = scores.mT.masked_fill(right.mT, -torch.inf)
    return F.cross_entropy(torch.cat([rows, columns], 1), torch.arange(len(scores), device=scores.device))


def _read(inputs: LossInputs, settings: KeyClipSettings) -> tuple[Float[Tensor, "q d"], Bool[Tensor, "q q"]]:
    """What the key clip of each query reads of its video, and the pairs of queries that are not negatives."""
    video, owner, key = inputs.output.video, inputs.labels.query_to_video, inputs.output.scores.key_clip
    if video.frames is None or key is None:
        raise InputError("these scores are without key clips: pass the output of a model with frame_pooling='key_clip'")
    positives = inputs.labels.positives[:, owner]
    if settings.siblings == "negatives":
        positives = torch.eye(len(owner), dtype=torch.bool, device=owner.device)
    return video.frames[owner, key.gather(1, owner[:, None]).squeeze(1)], positives


class KeyClipTriplet(Term[KeyClipTripletSettings]):
    """`key_clip_triplet_loss` of cosines."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """The margin ranking of a batch."""
        c, (readings, positives) = self.settings, _read(inputs, self.settings)
        cosines = F.normalize(inputs.text, dim=-1) @ F.normalize(readings, dim=-1).mT
        return key_clip_triplet_loss(cosines, positives, c.margin, inputs.negatives, c.hard_pool, inputs.generator)


class KeyClipNCE(Term[KeyClipSettings]):
    """`key_clip_nce_loss` of dot products."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """The contrast of a batch."""
        readings, positives = _read(inputs, self.settings)
        return key_clip_nce_loss(inputs.text @ readings.mT, positives)
