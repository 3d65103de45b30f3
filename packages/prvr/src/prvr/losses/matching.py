"""Losses of a matrix of scores: margin ranking and contrast of right and wrong pairs of query and video.

They take a boolean `positives` matrix `(q, v)` and have no loop over videos or queries. Symbols: S cosine scores, U
unnormalised scores, y_q the video that query q was written for.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import AnyModelConfig
from prvr.config.losses import ContrastiveSettings, DistillationSettings, InfoNCESettings, TripletSettings
from prvr.errors import InputError
from prvr.losses.term import LossInputs, Negatives, Scalar, Term


def select_negatives(
    scores: Float[Tensor, "r n"],
    candidates: Bool[Tensor, "r n"],
    pool: int | None,
    generator: torch.Generator | None,
) -> Float[Tensor, "r"]:
    """Score of one negative per row: the highest if `pool` is 1, else drawn from the `pool` highest (None: all)."""
    ranked = scores.detach().masked_fill(~candidates, -torch.inf)
    if pool == 1:
        index = ranked.argmax(1)
    else:
        if pool is not None:
            highest = ranked.topk(min(pool, scores.shape[1]), dim=1).indices
            candidates = torch.zeros_like(candidates).scatter_(1, highest, True) & candidates
        draw = torch.rand(candidates.shape, device=candidates.device, generator=generator)
        index = draw.masked_fill(~candidates, -1.0).argmax(1)
    return scores.gather(1, index[:, None])[:, 0]


def pool_size(negatives: Negatives, hard_pool: int) -> int | None:
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
) -> Scalar:
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
    video_negative = select_negatives(scores.mT, candidates.mT, video_pool, generator)
    query_negative = select_negatives(scores, candidates, pool_size(negatives, hard_pool), generator)
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
) -> Scalar:
    r"""Margin ranking of each query and its video, with a negative of either kind (DreamPRVR supplement eq. 31).

    $\frac1Q \sum_q [m + S_{n(y_q),y_q} - S_{q,y_q}]_+ + [m + S_{q,n(q)} - S_{q,y_q}]_+$, where $n(y_q)$ is drawn again
    for each query. Arguments as of `triplet_loss`.

    Examples:
        >>> truth = torch.eye(2, dtype=torch.bool)
        >>> triplet_pairs_loss(torch.tensor([[0.9, 0.0], [0.0, 0.9]]), truth, truth, margin=0.2).item()
        0.0
    """
    candidates, own = ~positives, (scores * ground_truth).sum(1)
    video = ground_truth.int().argmax(1)
    of_video = candidates.mT[video]
    text_negative = select_negatives(scores.mT[video], of_video, None if negatives == "random" else 1, generator)
    video_negative = select_negatives(scores, candidates, pool_size(negatives, hard_pool), generator)
    by_text = F.relu(margin + text_negative - own) * of_video.any(1)
    by_video = F.relu(margin + video_negative - own) * candidates.any(1)
    return (by_text + by_video).mean()


def info_nce_loss(scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"]) -> Scalar:
    r"""Contrastive loss in both directions, every positive in the numerator, no temperature.

    $\frac1Q \sum_q (\mathrm{lse}_v U_{qv} - \mathrm{lse}_{v \in P_q} U_{qv})
    + \frac1V \sum_v (\mathrm{lse}_q U_{qv} - \mathrm{lse}_{q \in P_v} U_{qv})$ on unnormalised scores U
    (Miech et al. 2020; as released, see `info_nce_pairs_loss` for DreamPRVR supplement eq. 32).

    Examples:
        >>> info_nce_loss(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)).item()
        0.0
    """
    answered = positives.any(0)
    right = scores.masked_fill(~positives, -torch.inf)
    per_query = scores.logsumexp(1) - right.logsumexp(1)
    # A video without a query has no positive: leave it out instead of taking the log of nothing.
    column = torch.where(answered, right, scores)
    per_video = (scores.logsumexp(0) - column.logsumexp(0)) * answered
    return per_query.mean() + per_video.mean()


def info_nce_pairs_loss(scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"]) -> Scalar:
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


def contrastive_loss(
    scores: Float[Tensor, "q v"],
    positives: Bool[Tensor, "q v"],
    temperature: float | Scalar,
) -> Scalar:
    r"""Symmetric cross-entropy of bounded scores at a temperature (DiffusionRet eq. 11).

    $-\frac12 \left(\frac1Q \sum_q \log \frac{e^{S_{q y_q} / \tau}}{\sum_v e^{S_{qv} / \tau}}
    + \frac1V \sum_v \log \frac{e^{S_{y_v v} / \tau}}{\sum_q e^{S_{qv} / \tau}}\right)$. Where several are right, the
    target is shared evenly among them; a video without a query is left out of its mean.

    Args:
        scores: S, for example of `prvr.scoring.word_scores`.
        positives: which videos answer a query, at least one in each row.
        temperature: tau, above 0.

    Examples:
        >>> round(contrastive_loss(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool), 0.01).item(), 4)
        0.6931
    """
    logits = scores / temperature
    return (_cross_entropy(logits, positives) + _cross_entropy(logits.mT, positives.mT)) / 2


def _cross_entropy(logits: Float[Tensor, "r n"], positives: Bool[Tensor, "r n"]) -> Scalar:
    """Mean cross-entropy of the rows that have a positive; targets are even over the positives of a row."""
    counts = positives.sum(1)
    per_row = -(logits.log_softmax(1) * positives).sum(1) / counts.clamp_min(1)
    return per_row.sum() / (counts > 0).sum().clamp_min(1)


def distillation_loss(scores: Float[Tensor, "q v"], teacher: Float[Tensor, "q v"], temperature: float) -> Scalar:
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
    target = (teacher.detach().to(scores) / temperature).log_softmax(1)
    return F.kl_div((scores / temperature).log_softmax(1), target, reduction="batchmean", log_target=True)


class Triplet(Term[TripletSettings]):
    """`triplet_loss` of the cosines of clips, of frames, or of both, or `triplet_pairs_loss`."""

    def forward(self, inputs: LossInputs) -> dict[str, Tensor]:
        """The triplet losses by branch, "triplet_clips" and "triplet_frames"."""
        c, labels, scores = self.settings, inputs.labels, inputs.output.scores
        truth, positives = labels.ground_truth, labels.positives
        loss = triplet_loss if c.form == "videos" else triplet_pairs_loss
        return {
            f"triplet_{branch}": loss(
                cosines, truth, positives, c.margin, inputs.negatives, c.hard_pool, inputs.generator
            )
            for branch, cosines in (("clips", scores.clips), ("frames", scores.frames))
            if cosines is not None and c.branches in ("both", branch)
        }


class InfoNCE(Term[InfoNCESettings]):
    """`info_nce_loss` of the dot products of one branch, or another form of it."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """The InfoNCE loss of the branch."""
        form, branch, scores = self.settings.form, self.settings.branch, inputs.output.scores
        loss = info_nce_loss if form == "log_sum" else info_nce_pairs_loss
        return loss(getattr(scores, f"{branch}_dot" if form == "log_sum" else branch), inputs.labels.positives)


class Temperature(nn.Module):
    """A learned temperature, kept positive as the exponential of a parameter, as in CLIP.

    Args:
        initial: initial value, above 0.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.tensor(initial).log().neg())

    def forward(self) -> Scalar:
        """The temperature."""
        return self.logarithm.neg().exp()


class Contrastive(Term[ContrastiveSettings]):
    """`contrastive_loss` of the total scores, at a fixed or a learned temperature."""

    def __init__(self, settings: ContrastiveSettings, model: AnyModelConfig) -> None:
        super().__init__(settings, model)
        self.temperature = Temperature(settings.temperature) if settings.learned else None

    def forward(self, inputs: LossInputs) -> Scalar:
        """The contrastive loss of the total scores."""
        temperature = self.settings.temperature if self.temperature is None else self.temperature()
        return contrastive_loss(inputs.output.scores.total, inputs.labels.positives, temperature)


class Distillation(Term[DistillationSettings]):
    """`distillation_loss` of the total scores, with the scores of the teacher for the videos of the batch."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """How far the scores are from the teacher's.

        Raises:
            InputError: the labels are without the teacher's scores.
        """
        if inputs.labels.teacher is None:
            raise InputError(
                "loss.distillation needs the scores of a teacher, and this batch has none. Pass them as Batch.teacher, "
                "as prvr.training.train does, or set it to 0"
            )
        return distillation_loss(inputs.output.scores.total, inputs.labels.teacher, self.settings.temperature)
