"""Losses of a matrix of scores: margin ranking and contrast of right and wrong pairs of query and video.

They take a boolean `positives` matrix `(q, v)` and have no loop over videos or queries. Symbols: S cosine scores, U
unnormalised scores, y_q the video that query q was written for.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

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


def _query_pool(negatives: Negatives, hard_pool: int) -> int | None:
    """From how many of the highest-scored wrong videos a query draws; None: from all."""
    return {"random": None, "hard": hard_pool, "hardest": 1}[negatives]


def triplet_loss(
    scores: Float[Tensor, "q v"],
    ground_truth: Bool[Tensor, "q v"],
    positives: Bool[Tensor, "q v"],
    margin: float,
    negatives: Negatives = "random",
    hard_pool: int = 20,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    r"""Margin ranking in both directions (DreamPRVR supplement eq. 31, averaged as in the released code).

    $\frac1Q \sum_q [m + S_{q,n(q)} - S_{q,y_q}]_+ + \frac1V \sum_v [m + S_{n(v),v} - \overline{S}_{\cdot v}]_+$,
    where the second positive is the mean score of the queries written for the video.

    Args:
        scores: cosine scores.
        ground_truth: the video each query was written for.
        positives: every video that answers a query; never drawn as a negative.
        margin: m.
        negatives: "random": any; "hard": a query's from the `hard_pool` highest-scored wrong videos, a video's the
            highest-scored wrong query; "hardest": the highest-scored, both ways.
        hard_pool: number of hard negatives that a query draws from.
        generator: source of the draws; None = the global one.

    Examples:
        >>> truth = torch.eye(2, dtype=torch.bool)
        >>> triplet_loss(torch.tensor([[0.9, 0.0], [0.0, 0.9]]), truth, truth, margin=0.2).item()
        0.0
    """
    candidates = ~positives
    mean = (scores * ground_truth).sum(0) / ground_truth.sum(0).clamp_min(1)
    video_pool = None if negatives == "random" else 1
    video_negative = _select(scores.mT, candidates.mT, video_pool, generator)
    query_negative = _select(scores, candidates, _query_pool(negatives, hard_pool), generator)
    per_video = F.relu(margin + video_negative - mean) * (candidates.any(0) & ground_truth.any(0))
    per_query = F.relu(margin + query_negative - (scores * ground_truth).sum(1)) * candidates.any(1)
    return per_video.mean() + per_query.mean()


def triplet_pairs_loss(
    scores: Float[Tensor, "q v"],
    ground_truth: Bool[Tensor, "q v"],
    positives: Bool[Tensor, "q v"],
    margin: float,
    negatives: Negatives = "random",
    hard_pool: int = 20,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    r"""Margin ranking of each query and its video, with a negative of either kind (DreamPRVR supplement eq. 31).

    $\frac1Q \sum_q [m + S_{n(y_q),y_q} - S_{q,y_q}]_+ + [m + S_{q,n(q)} - S_{q,y_q}]_+$, where $n(y_q)$ is drawn anew
    for each query. Arguments as of `triplet_loss`.

    Examples:
        >>> truth = torch.eye(2, dtype=torch.bool)
        >>> triplet_pairs_loss(torch.tensor([[0.9, 0.0], [0.0, 0.9]]), truth, truth, margin=0.2).item()
        0.0
    """
    candidates, own = ~positives, (scores * ground_truth).sum(1)
    video = ground_truth.int().argmax(1)
    of_video = candidates.mT[video]
    text_negative = _select(scores.mT[video], of_video, None if negatives == "random" else 1, generator)
    video_negative = _select(scores, candidates, _query_pool(negatives, hard_pool), generator)
    by_text = F.relu(margin + text_negative - own) * of_video.any(1)
    by_video = F.relu(margin + video_negative - own) * candidates.any(1)
    return (by_text + by_video).mean()


def info_nce_loss(scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"]) -> Float[Tensor, ""]:
    r"""Contrastive loss in both directions, every positive in the numerator, no temperature.

    $\frac1Q \sum_q (\mathrm{lse}_v U_{qv} - \mathrm{lse}_{v \in P_q} U_{qv})
    + \frac1V \sum_v (\mathrm{lse}_q U_{qv} - \mathrm{lse}_{q \in P_v} U_{qv})$ on unnormalised scores U
    (Miech et al. 2020; as released, see `info_nce_pairs_loss` for DreamPRVR supplement eq. 32).

    Examples:
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


def info_nce_pairs_loss(scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"]) -> Float[Tensor, ""]:
    r"""Contrastive loss of each right pair against the wrong ones (DreamPRVR supplement eq. 32, with the exponentials).

    $-\frac1n \sum_{(q,v)} \log \frac{e^{S_{qv}}}{e^{S_{qv}} + \sum_{p \notin P_v} e^{S_{pv}}}
    + \log \frac{e^{S_{qv}}}{e^{S_{qv}} + \sum_{u \notin P_q} e^{S_{qu}}}$ over the n right pairs, S cosines.

    Examples:
        >>> round(info_nce_pairs_loss(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool)).item(), 4)
        1.3863
    """
    wrong = scores.masked_fill(positives, -torch.inf)
    texts = torch.logaddexp(scores, wrong.logsumexp(0, keepdim=True))
    videos = torch.logaddexp(scores, wrong.logsumexp(1, keepdim=True))
    return ((texts + videos - 2 * scores) * positives).sum() / positives.sum()


def info_nce_ratio_loss(scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"]) -> Float[Tensor, ""]:
    r"""DreamPRVR supplement eq. 32 to the letter: `info_nce_pairs_loss` of the scores themselves, not of exponentials.

    It is meant for scores above 0, and not finite where that of a right pair, or a sum below it, is 0 or less.

    Examples:
        >>> round(info_nce_ratio_loss(torch.ones(2, 2), torch.eye(2, dtype=torch.bool)).item(), 4)
        1.3863
    """
    wrong = scores.masked_fill(positives, 0.0)
    share = torch.where(positives, scores, 1.0)
    texts = torch.where(positives, scores + wrong.sum(0, keepdim=True), 1.0)
    videos = torch.where(positives, scores + wrong.sum(1, keepdim=True), 1.0)
    return (texts.log() + videos.log() - 2 * share.log()).sum() / positives.sum()


def contrastive_loss(
    scores: Float[Tensor, "q v"],
    positives: Bool[Tensor, "q v"],
    temperature: float | Float[Tensor, ""],
    targets: Float[Tensor, "q v"] | None = None,
    ignored: Bool[Tensor, "q v"] | None = None,
) -> Float[Tensor, ""]:
    r"""Symmetric cross-entropy of bounded scores at a temperature (DiffusionRet eq. 11).

    $-\frac12 \left(\frac1Q \sum_q \log \frac{e^{S_{q y_q} / \tau}}{\sum_v e^{S_{qv} / \tau}}
    + \frac1V \sum_v \log \frac{e^{S_{y_v v} / \tau}}{\sum_q e^{S_{qv} / \tau}}\right)$. Where several are right, the
    target is shared evenly among them; a video without a query is left out of its mean.

    Args:
        scores: S, for example of `prvr.scoring.token_alignment`.
        positives: which videos answer a query, at least one in each row.
        temperature: tau, above 0.
        targets: other targets, see `soft_targets`; for the videos, columns are scaled to a sum of 1.
        ignored: pairs that count neither as right nor as wrong; their targets must be 0.

    Examples:
        >>> round(contrastive_loss(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool), 0.01).item(), 4)
        0.6931
    """
    logits, weights = _without(scores / temperature, ignored), positives if targets is None else targets
    return (
        _cross_entropy(logits, weights, positives.any(1)) + _cross_entropy(logits.mT, weights.mT, positives.any(0))
    ) / 2


def brier_loss(
    scores: Float[Tensor, "q v"],
    targets: Float[Tensor, "q v"],
    temperature: float | Float[Tensor, ""],
    ignored: Bool[Tensor, "q v"] | None = None,
) -> Float[Tensor, ""]:
    r"""Squared error of the probabilities of videos, query to video (Brier 1950): $\frac1Q \sum_q
    \lVert \mathrm{softmax}(S_q / \tau) - y_q \rVert^2$, which unlike the cross-entropy never exceeds 2.

    Args:
        scores: S.
        targets: y, whose rows add up to 1, see `soft_targets`.
        temperature: tau, above 0.
        ignored: pairs that count neither as right nor as wrong; their targets must be 0.

    Examples:
        >>> brier_loss(torch.zeros(2, 2), torch.eye(2), 0.05).item()
        0.5
    """
    return (_without(scores / temperature, ignored).softmax(1) - targets).square().sum(1).mean()


def distillation_loss(
    scores: Float[Tensor, "q v"], teacher: Float[Tensor, "q v"], temperature: float
) -> Float[Tensor, ""]:
    r"""How far the ranking of videos is from a teacher's (Hinton et al. 2015, arXiv:1503.02531): $\frac1Q \sum_q
    \mathrm{KL}(\mathrm{softmax}(T_q / \tau) \,\Vert\, \mathrm{softmax}(S_q / \tau))$.

    Args:
        scores: S.
        teacher: T, finite scores of the same pairs on a scale like that of S; no gradient reaches them.
        temperature: tau, above 0. The higher it is, the more the order of wrong videos counts.

    Returns:
        at least 0; 0 if and only if the scores of each query differ from the teacher's by a constant.

    Examples:
        >>> distillation_loss(torch.tensor([[0.1, 0.7]]), torch.tensor([[0.3, 0.9]]), 0.1).item() < 1e-6
        True
    """
    wanted, found = (teacher.detach().to(scores) / temperature).log_softmax(1), (scores / temperature).log_softmax(1)
    return F.kl_div(found, wanted, reduction="batchmean", log_target=True)


def soft_targets(
    positives: Bool[Tensor, "q v"],
    smoothing: float = 0.0,
    similarity: Float[Tensor, "q v"] | None = None,
    share: float = 0.0,
    temperature: float = 0.1,
    ignored: Bool[Tensor, "q v"] | None = None,
) -> Float[Tensor, "q v"]:
    r"""Targets of a contrastive loss that know of videos which may be right as well.

    $y_q = (1 - b) ((1 - s)\, p_q + s\, u_q) + b\, \mathrm{softmax}(m_q / \tau)$: p is even over the videos that answer
    the query, u over all that are not ignored (label smoothing, which knows nothing and is the control of the other).

    Args:
        positives: which videos answer a query, at least one in each row.
        smoothing: s, in [0, 1].
        similarity: m, of the query with the captions of each video, see `caption_similarity`; needed if b is above 0.
        share: b, in [0, 1].
        temperature: tau, above 0.
        ignored: pairs whose target is 0; never a right one.

    Returns:
        `(q, v)`, rows add up to 1.

    Examples:
        >>> soft_targets(torch.tensor([[True, False]]), smoothing=0.5).tolist()
        [[0.75, 0.25]]
        >>> soft_targets(torch.tensor([[True, False]]), similarity=torch.tensor([[1.0, 1.0]]), share=0.5).tolist()
        [[0.75, 0.25]]
    """
    kept = torch.ones_like(positives) if ignored is None else ~ignored
    targets = positives / positives.sum(1, keepdim=True)
    if smoothing:
        targets = (1 - smoothing) * targets + smoothing * kept / kept.sum(1, keepdim=True)
    if share and similarity is not None:
        targets = (1 - share) * targets + share * _without(similarity / temperature, ~kept).softmax(1)
    return targets


def caption_similarity(
    sentences: Float[Tensor, "q e"], query_to_video: Int[Tensor, " q"], videos: int
) -> Float[Tensor, "q v"]:
    """The highest cosine of each query with a caption of each video, itself among those of its own.

    Args:
        sentences: unit vectors of the queries that training does not change, such as the mean of their word features.
        query_to_video: the video that each was written for.
        videos: number of videos v; one without a caption has the lowest cosine there is, -1.

    Examples:
        >>> caption_similarity(torch.eye(2), torch.tensor([0, 1]), 3).tolist()
        [[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]]
    """
    cosine = sentences @ sentences.mT
    lowest = cosine.new_full((len(sentences), videos), -1.0)
    return lowest.scatter_reduce(1, query_to_video.expand_as(cosine), cosine, "amax")


def _without(logits: Float[Tensor, "q v"], ignored: Bool[Tensor, "q v"] | None) -> Float[Tensor, "q v"]:
    """Logits of which some have no probability."""
    return logits if ignored is None else logits.masked_fill(ignored, -torch.inf)


def _cross_entropy(
    logits: Float[Tensor, "r n"], weights: Shaped[Tensor, "r n"], answered: Bool[Tensor, " r"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the answered rows with targets that are proportional to the weights."""
    logarithms = logits.log_softmax(1).masked_fill(weights == 0, 0.0)  # not -inf times 0
    per_row = -(logarithms * weights).sum(1) / torch.where(answered, weights.sum(1), 1)
    return (per_row * answered).sum() / answered.sum().clamp_min(1)
