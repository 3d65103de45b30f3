"""The losses: pure functions of scores or embeddings, and the terms that apply them to the output of a retriever.

The functions take a boolean `positives` matrix `(q, v)` and have no loop over videos or queries. Symbols: S cosine
scores, U unnormalised scores, y_q the video that query q was written for. A term is registered in
`prvr.config.losses`, beside its weight and settings.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from prvr.config import AnyModelConfig, LossConfig
from prvr.errors import InputError
from prvr.types import Batch, Labels, RetrieverOutput
from regdiff import RegisterGenerator, TextualPerturbation

__all__ = [
    "LossInputs",
    "Negatives",
    "Temperature",
    "Term",
    "contrastive_loss",
    "diversity_loss",
    "info_nce_loss",
    "query_structure_loss",
    "triplet_loss",
]

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
    ground_truth: Bool[Tensor, "q v"],
    positives: Bool[Tensor, "q v"],
    margin: float,
    negatives: Negatives = "random",
    hard_pool: int = 20,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    r"""Margin ranking in both directions (HLFormer eq. 21; the normalisation is the released one).

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
    query_pool = {"random": None, "hard": hard_pool, "hardest": 1}[negatives]
    video_negative = _select(scores.mT, candidates.mT, video_pool, generator)
    query_negative = _select(scores, candidates, query_pool, generator)
    per_video = F.relu(margin + video_negative - mean) * (candidates.any(0) & ground_truth.any(0))
    per_query = F.relu(margin + query_negative - (scores * ground_truth).sum(1)) * candidates.any(1)
    return per_video.mean() + per_query.mean()


def info_nce_loss(scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"]) -> Float[Tensor, ""]:
    r"""Contrastive loss in both directions, every positive in the numerator, no temperature.

    $\frac1Q \sum_q (\mathrm{lse}_v U_{qv} - \mathrm{lse}_{v \in P_q} U_{qv})
    + \frac1V \sum_v (\mathrm{lse}_q U_{qv} - \mathrm{lse}_{q \in P_v} U_{qv})$ on unnormalised scores U
    (Miech et al. 2020; DreamPRVR supplement eq. 32).

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


def contrastive_loss(
    scores: Float[Tensor, "q v"], positives: Bool[Tensor, "q v"], temperature: float | Float[Tensor, ""]
) -> Float[Tensor, ""]:
    r"""Symmetric cross-entropy of bounded scores at a temperature (DiffusionRet eq. 11).

    $-\frac12 \left(\frac1Q \sum_q \log \frac{e^{S_{q y_q} / \tau}}{\sum_v e^{S_{qv} / \tau}}
    + \frac1V \sum_v \log \frac{e^{S_{y_v v} / \tau}}{\sum_q e^{S_{qv} / \tau}}\right)$. Where several are right, the
    target is shared evenly among them; a video without a query is left out of its mean.

    Args:
        scores: S, for example of `prvr.scoring.token_alignment`.
        positives: which videos answer a query, at least one in each row.
        temperature: tau, above 0.

    Examples:
        >>> round(contrastive_loss(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool), 0.01).item(), 4)
        0.6931
    """
    logits = scores / temperature
    return (_cross_entropy(logits, positives) + _cross_entropy(logits.mT, positives.mT)) / 2


def _cross_entropy(logits: Float[Tensor, "r n"], right: Bool[Tensor, "r n"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the rows that have a right entry; their target is shared evenly among right entries."""
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


@dataclass(frozen=True)
class LossInputs:
    """The arguments of one call of the objective, as each term receives them; see `prvr.objective.Objective`."""

    output: RetrieverOutput
    labels: Batch | Labels
    negatives: Negatives
    register_targets: Float[Tensor, "v n d"] | None
    warm_up: bool
    generator: torch.Generator | None

    @cached_property
    def ground_truth(self) -> Bool[Tensor, "q v"]:
        """`(q, v)` boolean: the one video each query was written for."""
        return self.labels.ground_truth

    @cached_property
    def positives(self) -> Bool[Tensor, "q v"]:
        """`(q, v)` boolean: every video that answers the query."""
        return self.labels.positives


class Term(nn.Module, ABC):
    """A loss term before it is weighted.

    Args:
        config: weights and settings of all losses.
        model: configuration of the retriever that is trained.
        registers: the register generator of that retriever, if it has one.
    """

    def __init__(self, config: LossConfig, model: AnyModelConfig, registers: RegisterGenerator | None = None) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The unweighted loss of one step."""


class ClipTriplet(Term):
    """`triplet_loss` of the cosines of clips."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The triplet loss of clips."""
        return _triplet(inputs.output.scores.clips, inputs, self.config)


class FrameTriplet(Term):
    """`triplet_loss` of the cosines of frames."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The triplet loss of frames."""
        return _triplet(inputs.output.scores.frames, inputs, self.config)


def _triplet(cosines: Tensor | None, inputs: LossInputs, config: LossConfig) -> Tensor:
    return triplet_loss(
        cast(Tensor, cosines),
        inputs.ground_truth,
        inputs.positives,
        config.margin,
        inputs.negatives,
        config.hard_pool,
        inputs.generator,
    )


class ClipInfoNCE(Term):
    """`info_nce_loss` of the dot products of clips."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The InfoNCE loss of clips."""
        return info_nce_loss(cast(Tensor, inputs.output.scores.clips_dot), inputs.positives)


class FrameInfoNCE(Term):
    """`info_nce_loss` of the dot products of frames."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The InfoNCE loss of frames."""
        return info_nce_loss(cast(Tensor, inputs.output.scores.frames_dot), inputs.positives)


class Temperature(nn.Module):
    """A learned temperature, kept positive as the exponential of a parameter, as in CLIP.

    Args:
        initial: initial value, above 0.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.tensor(initial).log().neg())

    def forward(self) -> Float[Tensor, ""]:
        """The temperature."""
        return self.logarithm.neg().exp()


class Contrastive(Term):
    """`contrastive_loss` of the total scores, at a fixed or a learned temperature."""

    def __init__(self, config: LossConfig, model: AnyModelConfig, registers: RegisterGenerator | None = None) -> None:
        super().__init__(config, model)
        self.temperature = Temperature(config.contrastive_temperature) if config.contrastive_learned else None

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The symmetric cross-entropy of the total scores."""
        temperature = self.config.contrastive_temperature if self.temperature is None else self.temperature()
        return contrastive_loss(inputs.output.scores.total, inputs.positives, temperature)


class Diversity(Term):
    """`diversity_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The diversity loss of the queries of each video."""
        c = self.config
        return diversity_loss(
            inputs.output.text,
            inputs.labels.query_to_video,
            c.diversity_margin,
            c.diversity_scale,
            c.diversity_power,
            c.diversity_form,
        )


class QueryStructure(Term):
    """`query_structure_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The query structure loss."""
        temperature = self.config.query_structure_temperature
        return query_structure_loss(inputs.output.text, inputs.labels.query_to_video, temperature)


class PriorKL(Term):
    """KL divergence of the prior of the registers from N(0, I)."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The divergence of the prior of the registers."""
        registers = inputs.output.registers
        assert registers is not None
        assert registers.prior is not None
        return registers.prior.kl()


class Diffusion(Term):
    """Error of the denoiser of the registers, whose targets are by default the perturbed mean queries of each video.

    Raises:
        InputError: the register generator is missing.
    """

    def __init__(self, config: LossConfig, model: AnyModelConfig, registers: RegisterGenerator | None = None) -> None:
        super().__init__(config, model)
        if registers is None:
            raise InputError(
                f"loss.diffusion={config.diffusion} trains the register generator of the retriever: give it to the "
                "objective, Objective(config.loss, config.model, retriever.registers)"
            )
        self.perturb = TextualPerturbation(config.perturbation)
        self._generator = (registers,)  # in a tuple, because its parameters belong to the retriever

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The diffusion loss of the registers."""
        registers, targets = inputs.output.registers, inputs.register_targets
        assert registers is not None
        if targets is None:
            weights = inputs.ground_truth.to(inputs.output.text.dtype)
            mean_queries = weights.mT @ inputs.output.text / weights.sum(0)[:, None].clamp_min(1)
            targets = self.perturb(mean_queries, registers.tokens.shape[1], inputs.generator)
        return self._generator[0].loss(targets, registers, inputs.generator)["diffusion"]
