"""Losses of the embeddings of queries, which know the video of each."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.config.losses import DiversitySettings, QueryStructureSettings
from prvr.losses.term import LossInputs, Scalar, Term


def _same_video(query_to_video: Int[Tensor, " q"]) -> Bool[Tensor, "q q"]:
    """Pairs of different queries of one video."""
    same = query_to_video[:, None] == query_to_video
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)


def diversity_loss(
    text: Float[Tensor, "q d"],
    query_to_video: Int[Tensor, " q"],
    margin: float,
    scale: float,
    power: float = 1.0,
    form: Literal["focal", "log_sum", "pairs"] = "focal",
) -> Scalar:
    r"""Pushes the queries of one video apart, since they describe different moments (GMMFormer eq. 12).

    focal: $\frac1Q \sum_{p \ne q,\, y_p = y_q} (1 + c_{pq})^\gamma \log(1 + e^{\omega (c_{pq} + \delta)})$;
    log_sum: $\frac1Q \sum_q \log(1 + \sum_{p \ne q,\, y_p = y_q} e^{\omega (c_{pq} + \delta)})$, c cosines;
    pairs: the terms of focal, those of a video with M queries times $\frac{2}{M (M - 1)}$, and the mean over the videos
    that have two or more (DreamPRVR supplement eq. 34).

    Args:
        text: query embeddings.
        query_to_video: y.
        margin: delta.
        scale: omega.
        power: gamma, of the focal factor.
        form: which of the three.
    """
    unit = F.normalize(text, dim=-1)
    cosine = unit @ unit.mT
    pairs = _same_video(query_to_video)
    logits = scale * (cosine + margin)
    if form == "log_sum":
        row = logits.masked_fill(~pairs, -torch.inf)
        return torch.cat([row, row.new_zeros(len(row), 1)], 1).logsumexp(1).mean()
    # The diagonal is not a pair; its cosine is fixed at 0 so that neither value nor gradient of it can overflow.
    focal = (1 + cosine.masked_fill(~pairs, 0.0)) ** power
    terms = focal * torch.logaddexp(logits, torch.zeros_like(logits))
    if form == "focal":
        return (terms * pairs).sum() / len(text)
    siblings = pairs.sum(1).to(text.dtype)  # M - 1 for each query
    videos = ((siblings > 0) / (siblings + 1)).sum()  # each of M queries counts as 1 / M of its video
    share = 2 / (siblings * (siblings + 1)).clamp_min(1)
    return ((terms * pairs).sum(1) * share).sum() / videos.clamp_min(1)


def query_structure_loss(text: Float[Tensor, "q d"], query_to_video: Int[Tensor, " q"], temperature: float) -> Scalar:
    r"""Supervised contrast of queries by video (QSP of DreamPRVR; Khosla et al. 2020).

    Mean over queries with a sibling of $-\frac{1}{|P_q|} \sum_{p \in P_q} \log \frac{e^{c_{qp}/\tau}}
    {\sum_{k \ne q} e^{c_{qk}/\tau}}$.

    Args:
        text: query embeddings.
        query_to_video: which queries are siblings.
        temperature: tau.
    """
    unit = F.normalize(text, dim=-1)
    pairs = _same_video(query_to_video)
    itself = torch.eye(len(pairs), dtype=torch.bool, device=pairs.device)
    logits = unit @ unit.mT / temperature
    log_share = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    siblings = pairs.sum(1)
    per_query = (log_share * pairs).sum(1) / siblings.clamp_min(1)
    return -per_query.sum() / (siblings > 0).sum().clamp_min(1)


class Diversity(Term[DiversitySettings]):
    """`diversity_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """The diversity loss of the queries of each video."""
        c, owner = self.settings, inputs.labels.query_to_video
        return diversity_loss(inputs.text, owner, c.margin, c.scale, c.power, c.form)


class QueryStructure(Term[QueryStructureSettings]):
    """`query_structure_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """The query structure loss."""
        return query_structure_loss(inputs.text, inputs.labels.query_to_video, self.settings.temperature)
