"""Evidential learning over the videos of a batch: scores as the evidence of a Dirichlet distribution (Holmes).

Evidence e >= 0 for each of K videos gives the Dirichlet distribution with alpha = e + 1; S is the sum of alpha,
alpha / S the expected probabilities, and u = K / S the uncertainty (Sensoy et al., "Evidential Deep Learning to
Quantify Classification Uncertainty", 2018).
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prvr.losses.term import LossInputs, Scalar, Term
from prvr.published.holmes import DissentSettings, EvidenceSettings

Masses = Float[Tensor, "*q k"]
"""A number for each of k videos, or of k clips."""


def evidence_of(scores: Masses, temperature: float) -> Masses:
    r"""$e = \exp(\tanh(s) / \tau)$, between $e^{-1 / \tau}$ and $e^{1 / \tau}$.

    Args:
        scores: s, cosines.
        temperature: tau, above 0.
    """
    return torch.exp(torch.tanh(scores) / temperature)


def fuse_evidence(first: Masses, second: Masses) -> Masses:
    r"""Dempster's rule for two sources that believe in single videos or do not know: $e_1 + e_2 + e_1 e_2 / K$.

    Beliefs are $b = e / S$, ignorance is $u = K / S$; the combined belief in a video is proportional to
    $b_1 b_2 + b_1 u_2 + b_2 u_1$, combined ignorance to $u_1 u_2$.

    Args:
        first: evidence of the first source for K videos.
        second: evidence of the second.

    Examples:
        >>> fuse_evidence(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 1.0]])).tolist()
        [[8.0, 1.0]]
    """
    return first + second + first * second / first.shape[-1]


def dirichlet_loss(evidence: Masses, target: Masses) -> Float[Tensor, "*q"]:
    r"""Expected squared error of the probabilities that a Dirichlet distribution draws (Sensoy et al., eq. 5).

    $\sum_v (y_v - \alpha_v / S)^2 + \frac{\alpha_v (S - \alpha_v)}{S^2 (S + 1)}$ with $\alpha = e + 1$.

    Args:
        evidence: e, at least 0.
        target: y, rows that add up to 1.

    Examples:
        >>> dirichlet_loss(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])).item()
        0.20000000298023224
    """
    alpha = evidence + 1
    total = alpha.sum(-1, keepdim=True)
    mean = alpha / total
    return ((target - mean).square() + mean * (1 - mean) / (total + 1)).sum(-1)


def uncertainty(evidence: Masses) -> Float[Tensor, " q"]:
    """u = K / S, between 0 and 1. It depends on K: values of different galleries cannot be compared.

    Examples:
        >>> uncertainty(torch.tensor([[0.0, 0.0], [5.0, 1.0]])).tolist()
        [1.0, 0.25]
    """
    return evidence.shape[-1] / (evidence + 1).sum(-1)


def dissent_loss(first: Masses, second: Masses) -> Scalar:
    r"""How much two sources disagree where both are certain.

    Mean over queries of $(1 - u_1)(1 - u_2) \sum_v |p_1 - p_2|$ with $p = \alpha / S$.

    Args:
        first: evidence of the first source.
        second: evidence of the second.

    Examples:
        >>> sure = torch.tensor([[998.0, 0.0]])
        >>> round(dissent_loss(sure, sure.flip(1)).item(), 3), dissent_loss(sure, sure).item()
        (1.988, 0.0)
    """
    p, q = ((e + 1) / (e + 1).sum(-1, keepdim=True) for e in (first, second))
    return ((p - q).abs().sum(-1) * (1 - uncertainty(first)) * (1 - uncertainty(second))).mean()


PRECISE, POLYSEMOUS, UNDETERMINED = 0, 1, 2
"""The groups of `query_groups`."""


@torch.no_grad()
def query_groups(
    scores: Float[Tensor, "q v"],
    evidence: Float[Tensor, "q v"],
    ground_truth: Bool[Tensor, "q v"],
    positives: Bool[Tensor, "q v"],
    division: float,
) -> Int[Tensor, " q"]:
    r"""How well the scores of a batch identify the video of each query: precise, polysemous or under-determined.

    Queries that rank a right video first set two thresholds: the highest uncertainty among them, but at most 1 -
    `division`, and the lowest score with their own video, but at least `division`; without such a query these bounds
    are the thresholds. A query above the first is under-determined. Another one is precise if it reaches the second and
    the expected entropy of its distribution, $\sum_v \frac{\alpha_v}{S} (\psi(S + 1) - \psi(\alpha_v + 1))$, is not
    above the median of all queries, the lower one of two; else polysemous.

    Args:
        scores: cosines of one branch.
        evidence: their evidence.
        ground_truth: the video that each query was written for.
        positives: every video that answers the query.
        division: beta, between 0 and 1.

    Returns:
        `PRECISE`, `POLYSEMOUS` or `UNDETERMINED` for each query.
    """
    alpha, doubt = evidence + 1, uncertainty(evidence)
    own = (scores * ground_truth).sum(1)
    right = positives.gather(1, scores.argmax(1, keepdim=True))[:, 0]
    highest = torch.where(right.any(), doubt.masked_fill(~right, -torch.inf).amax(), torch.inf).clamp_max(1 - division)
    lowest = torch.where(right.any(), own.masked_fill(~right, torch.inf).amin(), -torch.inf).clamp_min(division)
    total = alpha.sum(1, keepdim=True)
    entropy = (alpha / total * (torch.digamma(total + 1) - torch.digamma(alpha + 1))).sum(1)
    precise = (own >= lowest) & (entropy <= entropy.median())
    return torch.where(doubt > highest, UNDETERMINED, torch.where(precise, PRECISE, POLYSEMOUS))


class Evidence(Term[EvidenceSettings]):
    """`dirichlet_loss` of the evidence of each branch and of both, fused (Holmes); doubtful queries get softer targets.

    In the warm-up all targets are the videos that the queries were written for. Where the temperature makes evidence
    large against the number of videos, alpha / S is a softmax and the loss is a Brier score.
    """

    def forward(self, inputs: LossInputs) -> Scalar:
        """The sum of the losses of clips, of frames and of both, each the mean over queries."""
        scores = [s for s in (inputs.output.scores.clips, inputs.output.scores.frames) if s is not None]
        evidence = [evidence_of(s, self.settings.temperature) for s in scores]
        target = self.targets(inputs, scores)
        if len(evidence) == 2:
            evidence.append(fuse_evidence(*evidence))
        return torch.stack([dirichlet_loss(e, target).mean() for e in evidence]).sum()

    @torch.no_grad()
    def targets(self, inputs: LossInputs, scores: Sequence[Float[Tensor, "q v"]]) -> Float[Tensor, "q v"]:
        """`(q, v)` rows that add up to 1, for the scores of one branch or two.

        Those of a query are shared evenly among the videos that answer it. They are softened if the query is
        under-determined in no branch and polysemous in at least one.
        """
        c, truth, right = self.settings, inputs.labels.ground_truth, inputs.labels.positives
        own = right.to(scores[0].dtype) / right.sum(1, keepdim=True)
        if inputs.warm_up or c.relabelling == "none":
            return own
        groups = torch.stack([query_groups(s, evidence_of(s, c.temperature), truth, right, c.division) for s in scores])
        doubtful = (groups != UNDETERMINED).all(0) & (groups == POLYSEMOUS).any(0)
        likely = torch.stack([s.softmax(1) for s in scores]).mean(0)
        return torch.where(doubtful[:, None], (1 - c.smoothing) * own + c.smoothing * likely, own)


class Dissent(Term[DissentSettings]):
    """`dissent_loss` of clips and frames (Holmes)."""

    def forward(self, inputs: LossInputs) -> Scalar:
        """How much the branches disagree where both are certain."""
        scores = (inputs.output.scores.clips, inputs.output.scores.frames)
        return dissent_loss(*(evidence_of(cast(Tensor, s), self.settings.temperature) for s in scores))
