"""The losses, each a pure function of scores or embeddings and a boolean `positives` matrix `(q, v)`.

No loop over videos or queries. Symbols: S cosine scores, U unnormalised scores, y_q the video query q was written for.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Negatives", "contrastive_loss", "diversity_loss", "info_nce_loss", "query_structure_loss", "triplet_loss"]

Negatives = Literal["random", "hard", "hardest"]


def _pick(candidates: Bool[Tensor, "r n"], generator: torch.Generator | None) -> Int[Tensor, " r"]:
    """One candidate of each row, uniformly; column 0 where a row has none."""
    draw = torch.rand(candidates.shape, device=candidates.device, generator=generator)
    return draw.masked_fill(~candidates, -1.0).argmax(1)


def _pool(scores: Float[Tensor, "r n"], candidates: Bool[Tensor, "r n"], size: int) -> Bool[Tensor, "r n"]:
    """The `size` highest-scored candidates of each row."""
    ranked = scores.masked_fill(~candidates, -torch.inf)
    size = min(size, scores.shape[1])
    chosen = torch.zeros_like(candidates).scatter_(1, ranked.topk(size, dim=1).indices, True)
    return chosen & candidates


def _select(
    scores: Float[Tensor, "r n"],
    candidates: Bool[Tensor, "r n"],
    pool: int | None,
    generator: torch.Generator | None,
) -> Float[Tensor, "r"]:
    """Score of one negative per row: the highest if `pool` is 1, else drawn from the `pool` highest (None: all)."""
    fixed = scores.detach()
    if pool == 1:
        index = fixed.masked_fill(~candidates, -torch.inf).argmax(1)
    else:
        index = _pick(candidates if pool is None else _pool(fixed, candidates, pool), generator)
    return scores.gather(1, index[:, None])[:, 0]


def triplet_loss(
    scores: Float[Tensor, "q v"],
    own: Bool[Tensor, "q v"],
    positives: Bool[Tensor, "q v"],
    margin: float,
    negatives: Negatives = "random",
    hard_pool: int = 20,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    r"""Margin ranking in both directions (HLFormer eq. 21; the normalisation is the released one).

    $\frac1Q \sum_q [m + S_{q,n(q)} - S_{q,y_q}]_+ + \frac1V \sum_v [m + S_{n(v),v} - \overline{S}_{\cdot v}]_+$,
    where the second positive is the mean score of the video's own queries.

    Args:
        scores: cosine scores.
        own: the video each query was written for.
        positives: every video that answers a query; never drawn as a negative.
        margin: m.
        negatives: "random": any; "hard": a query's from the `hard_pool` highest-scored wrong videos, a video's the
            highest-scored wrong query; "hardest": the highest-scored, both ways.
        hard_pool: see above.
        generator: source of the draws; None = the global one.

    Example:
        >>> own = torch.eye(2, dtype=torch.bool)
        >>> triplet_loss(torch.tensor([[0.9, 0.0], [0.0, 0.9]]), own, own, margin=0.2).item()
        0.0
    """
    candidates = ~positives
    mean = (scores * own).sum(0) / own.sum(0).clamp_min(1)
    video_pool = None if negatives == "random" else 1
    query_pool = {"random": None, "hard": hard_pool, "hardest": 1}[negatives]
    video_negative = _select(scores.mT, candidates.mT, video_pool, generator)
    query_negative = _select(scores, candidates, query_pool, generator)
    per_video = F.relu(margin + video_negative - mean) * (candidates.any(0) & own.any(0))
    per_query = F.relu(margin + query_negative - (scores * own).sum(1)) * candidates.any(1)
    return per_video.mean() + per_query.mean()


def info_nce_loss(scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"]) -> Float[Tensor, ""]:
    r"""Contrastive loss in both directions, every positive in the numerator, no temperature.

    $\frac1Q \sum_q (\mathrm{lse}_v U_{qv} - \mathrm{lse}_{v \in P_q} U_{qv})
    + \frac1V \sum_v (\mathrm{lse}_q U_{qv} - \mathrm{lse}_{q \in P_v} U_{qv})$ on unnormalised scores U
    (Miech et al. 2020; DreamPRVR supplement eq. 32).

    Example:
        >>> info_nce_loss(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)).item()
        0.0
    """
    answered = positives.any(0)
    kept = scores.masked_fill(~positives, -torch.inf)
    per_query = scores.logsumexp(1) - kept.logsumexp(1)
    # A video without a query has no positive: leave it out instead of taking the log of nothing.
    column = torch.where(answered, kept, scores)
    per_video = (scores.logsumexp(0) - column.logsumexp(0)) * answered
    return per_query.mean() + per_video.mean()


def contrastive_loss(
    scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"], temperature: float | Float[Tensor, ""]
) -> Float[Tensor, ""]:
    r"""Symmetric cross-entropy of bounded scores at a temperature (DiffusionRet eq. 11).

    $-\frac12 \left(\frac1Q \sum_q \log \frac{e^{S_{q y_q} / \tau}}{\sum_v e^{S_{qv} / \tau}}
    + \frac1V \sum_v \log \frac{e^{S_{y_v v} / \tau}}{\sum_q e^{S_{qv} / \tau}}\right)$. Where several are right the
    target is shared out evenly among them; a video without a query is left out of its mean.

    Args:
        scores: S, for example of `prvr.scoring.token_alignment`.
        positives: which videos answer a query, at least one in each row.
        temperature: tau, above 0.

    Example:
        >>> round(contrastive_loss(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool), 0.01).item(), 4)
        0.6931
    """
    logits = scores / temperature
    return (_cross_entropy(logits, positives) + _cross_entropy(logits.mT, positives.mT)) / 2


def _cross_entropy(logits: Float[Tensor, "r n"], right: Bool[Tensor, "r n"]) -> Float[Tensor, ""]:
    """Of each row with an even target over the right entries; the mean over rows that have one."""
    counts = right.sum(1)
    per_row = -(logits.log_softmax(1) * right).sum(1) / counts.clamp_min(1)
    return per_row.sum() / (counts > 0).sum().clamp_min(1)


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
    form: Literal["focal", "log_sum"] = "focal",
) -> Float[Tensor, ""]:
    r"""Pushes the queries of one video apart, since they describe different moments (GMMFormer eq. 12).

    focal: $\frac1Q \sum_{p \ne q,\, y_p = y_q} (1 + c_{pq})^\gamma \log(1 + e^{\omega (c_{pq} + \delta)})$;
    log_sum: $\frac1Q \sum_q \log(1 + \sum_{p \ne q,\, y_p = y_q} e^{\omega (c_{pq} + \delta)})$, c cosines.

    Args:
        text: query embeddings.
        query_to_video: y.
        margin: delta.
        scale: omega.
        power: gamma, of the focal factor.
        form: which of the two.
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
    return (terms * pairs).sum() / len(text)


def query_structure_loss(
    text: Float[Tensor, "q d"], query_to_video: Int[Tensor, " q"], temperature: float
) -> Float[Tensor, ""]:
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
