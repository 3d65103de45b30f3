"""Losses of what the key clip of each query reads of the frames of its video (MS-SL)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from prvr.errors import InputError
from prvr.losses.matching import pool_size, select_negatives
from prvr.losses.term import LossInputs, Negatives, Scalar, Term
from prvr.published.ms_sl import KeyClipSettings, KeyClipTripletSettings


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
    itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    right = positives & ~itself
    rows = scores.masked_fill(right, -torch.inf)
    columns = scores.mT.masked_fill(right.mT, -torch.inf)
    return (torch.cat([rows, columns], 1).logsumexp(1) - scores.diagonal()).mean()


def _read(inputs: LossInputs, settings: KeyClipSettings) -> tuple[Float[Tensor, "q d"], Bool[Tensor, "q q"]]:
    """What the key clip of each query reads of its video, and the pairs of queries that are not negatives."""
    video, owner, key = inputs.output.video, inputs.labels.query_to_video, inputs.output.scores.key_clip
    if video.frames is None or key is None:
        raise InputError("these scores are without key clips: pass the output of a model with frame_pooling='key_clip'")
    itself = torch.eye(len(owner), dtype=torch.bool, device=owner.device)
    positives = itself if settings.siblings == "negatives" else inputs.labels.positives[:, owner] | itself
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
