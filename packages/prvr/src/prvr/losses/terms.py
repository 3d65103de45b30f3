"""The terms: what applies a loss to the output of a retriever, each under the name of its entry in the registry."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import AnyModelConfig, LossConfig, ModelConfig, released_part
from prvr.errors import InputError
from prvr.losses.evidence import (
    dirichlet_loss,
    dissent_loss,
    doubtful_queries,
    evidence_of,
    evidential_loss,
    fuse_evidence,
    mixed_targets,
    query_groups,
    shared_targets,
)
from prvr.losses.queries import (
    angle_geometry_loss,
    distance_geometry_loss,
    diversity_loss,
    query_structure_loss,
)
from prvr.losses.scores import (
    Negatives,
    brier_loss,
    caption_similarity,
    contrastive_loss,
    distillation_loss,
    info_nce_loss,
    info_nce_pairs_loss,
    info_nce_ratio_loss,
    soft_targets,
    triplet_loss,
    triplet_pairs_loss,
)
from prvr.losses.transport import (
    block_cosines,
    intra_video_loss,
    queries_of_videos,
    softmax_targets,
    transport_targets,
    unit_interval,
)
from prvr.text import sentences
from prvr.types import Batch, Labels, RetrieverOutput
from regdiff import RegisterGenerator, TextualPerturbation

_TRIPLET: Mapping[str, Callable[..., Tensor]] = MappingProxyType({"videos": triplet_loss, "pairs": triplet_pairs_loss})
_INFO_NCE: Mapping[str, tuple[Callable[..., Tensor], bool]] = MappingProxyType(
    {"log_sum": (info_nce_loss, True), "pairs": (info_nce_pairs_loss, False), "ratio": (info_nce_ratio_loss, False)}
)
"""The losses by `info_nce_form`, and whether they compare dot products; the others compare cosines."""

_MOST_ANGLES = 64  # queries whose angles are compared


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
    def text(self) -> Float[Tensor, "q d"]:
        """`(q, d)`: one vector per query."""
        return sentences(self.output.text)

    @cached_property
    def ground_truth(self) -> Bool[Tensor, "q v"]:
        """`(q, v)` boolean: the one video each query was written for."""
        return self.labels.ground_truth

    @cached_property
    def positives(self) -> Bool[Tensor, "q v"]:
        """`(q, v)` boolean: every video that answers the query."""
        return self.labels.positives

    @cached_property
    def similarity(self) -> Float[Tensor, "q v"]:
        """`caption_similarity` of the queries by the features of their words."""
        return caption_similarity(self.sentences, self.labels.query_to_video, self.positives.shape[1])

    @property
    def sentences(self) -> Float[Tensor, "q e"]:
        """`(q, e)` unit vectors of the queries, the mean features of their words.

        Raises:
            InputError: the labels are without them, as in training by several processes.
        """
        if self.labels.sentences is None:
            raise InputError(
                "the loss compares the words of all queries of a batch, and these labels have none, as when several "
                "processes train: train with one, or set loss.contrastive_similarity, .text_distances and .text_angles "
                "to 0 and loss.twin_threshold to null"
            )
        return self.labels.sentences

    def twins(self, threshold: float | None) -> Bool[Tensor, "q v"] | None:
        """Wrong videos with a caption that is as similar to the query as `threshold`, or more; None without one."""
        return None if threshold is None else (self.similarity >= threshold) & ~self.positives


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
    """`triplet_loss` of the cosines of clips, or `triplet_pairs_loss`."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The triplet loss of clips."""
        return _triplet(inputs.output.scores.clips, inputs, self.config)


class FrameTriplet(Term):
    """`triplet_loss` of the cosines of frames, or `triplet_pairs_loss`."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The triplet loss of frames."""
        return _triplet(inputs.output.scores.frames, inputs, self.config)


def _triplet(cosines: Tensor | None, inputs: LossInputs, config: LossConfig) -> Tensor:
    twins = inputs.twins(config.twin_threshold)
    return _TRIPLET[config.triplet_form](
        cast(Tensor, cosines),
        inputs.ground_truth,
        inputs.positives if twins is None else inputs.positives | twins,
        config.margin,
        inputs.negatives,
        config.hard_pool,
        inputs.generator,
    )


class ClipInfoNCE(Term):
    """`info_nce_loss` of the dot products of clips, or another form of it."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The InfoNCE loss of clips."""
        return _info_nce(inputs.output.scores.clips, inputs.output.scores.clips_dot, inputs, self.config)


class FrameInfoNCE(Term):
    """`info_nce_loss` of the dot products of frames, or another form of it."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The InfoNCE loss of frames."""
        return _info_nce(inputs.output.scores.frames, inputs.output.scores.frames_dot, inputs, self.config)


def _info_nce(cosines: Tensor | None, dots: Tensor | None, inputs: LossInputs, config: LossConfig) -> Tensor:
    loss, of_dots = _INFO_NCE[config.info_nce_form]
    return loss(cast(Tensor, dots if of_dots else cosines), inputs.positives)


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
    """`contrastive_loss` of the total scores, or `brier_loss`, at a fixed or a learned temperature."""

    def __init__(self, config: LossConfig, model: AnyModelConfig, registers: RegisterGenerator | None = None) -> None:
        super().__init__(config, model)
        self.temperature = Temperature(config.contrastive_temperature) if config.contrastive_learned else None

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The contrastive loss of the total scores."""
        c, scores, positives = self.config, inputs.output.scores.total, inputs.positives
        temperature = c.contrastive_temperature if self.temperature is None else self.temperature()
        twins, share, targets = inputs.twins(c.twin_threshold), c.contrastive_similarity, None
        if c.contrastive_form == "brier" or c.contrastive_smoothing or share:
            similarity = inputs.similarity if share else None
            targets = soft_targets(
                positives, c.contrastive_smoothing, similarity, share, c.similarity_temperature, twins
            ).to(scores)
        if targets is not None and c.contrastive_form == "brier":
            return brier_loss(scores, targets, temperature, twins)
        return contrastive_loss(scores, positives, temperature, targets, twins)


class Diversity(Term):
    """`diversity_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The diversity loss of the queries of each video."""
        c = self.config
        return diversity_loss(
            inputs.text,
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
        return query_structure_loss(inputs.text, inputs.labels.query_to_video, temperature)


class Evidence(Term):
    """`evidential_loss` of each branch and of the fusion of both (Holmes); doubtful queries get softer targets.

    In the warm-up all targets are the videos that the queries were written for.
    """

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The sum of the losses of clips, of frames and of both."""
        scores = [s for s in (inputs.output.scores.clips, inputs.output.scores.frames) if s is not None]
        target, temperature = self.targets(inputs, scores), self.config.evidence_temperature
        losses = [evidential_loss(s, target, temperature) for s in scores]
        if len(scores) == 2:
            losses.append(dirichlet_loss(fuse_evidence(*(evidence_of(s, temperature) for s in scores)), target).mean())
        return torch.stack(losses).sum()

    @torch.no_grad()
    def targets(self, inputs: LossInputs, scores: Sequence[Float[Tensor, "q v"]]) -> Float[Tensor, "q v"]:
        """`(q, v)` rows that add up to 1, for the scores of one branch or two."""
        c, own = self.config, shared_targets(inputs.positives, scores[0].dtype)
        if inputs.warm_up or c.evidence_relabelling == "none":
            return own
        truth, right = inputs.ground_truth, inputs.positives
        groups = [
            query_groups(s, evidence_of(s, c.evidence_temperature), truth, right, c.evidence_division) for s in scores
        ]
        likely = torch.stack([s.softmax(1) for s in scores]).mean(0)
        return mixed_targets(own, likely, c.evidence_smoothing, doubtful_queries(groups))


class Dissent(Term):
    """`dissent_loss` of clips and frames (Holmes)."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How much the branches disagree where both are certain."""
        scores = (inputs.output.scores.clips, inputs.output.scores.frames)
        return dissent_loss(*(evidence_of(cast(Tensor, s), self.config.evidence_temperature) for s in scores))


class Transport(Term):
    """`intra_video_loss` of queries and clips with targets by optimal transport, or without (Holmes); 0 in the warm-up.

    The similarities are targets and logits at once: gradients pass through the logits, and through their range.
    """

    def __init__(self, config: LossConfig, model: AnyModelConfig, registers: RegisterGenerator | None = None) -> None:
        super().__init__(config, model)
        assert isinstance(model, ModelConfig)
        self.scale, targets = unit_interval, transport_targets
        if model.compat.transport == "released":
            choice = "model.compat.transport='released'"
            self.scale = released_part("transport:released_unit_interval", choice)
            targets = released_part("transport:released_transport_targets", choice)
        self.targets = {"transport": targets, "softmax": softmax_targets}[config.transport_targets]

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The intra-video loss."""
        clips = inputs.output.video.clips
        assert clips is not None
        if inputs.warm_up:
            return 0 * clips[0, 0, 0]  # part of the graph: it may be the only term
        labels = inputs.labels
        queries, mask = queries_of_videos(labels.query_to_video, len(clips), labels.most_queries)
        similarity = self.scale(block_cosines(inputs.text[queries], clips), mask)
        target = self.targets(similarity, mask, self.config.transport_epsilon)
        return intra_video_loss(similarity, target, mask, self.config.transport_temperature)


class Distillation(Term):
    """`distillation_loss` of the total scores, with the scores of the teacher for the videos of the batch."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How far the scores are from the teacher's.

        Raises:
            InputError: the labels are without the teacher's scores.
        """
        if inputs.labels.teacher is None:
            raise InputError(
                "loss.distillation learns from the scores of a teacher, and this batch has none: give them as "
                "Batch.teacher, as prvr.training.train does, or set it to 0"
            )
        scores, temperature = inputs.output.scores.total, self.config.distillation_temperature
        return distillation_loss(scores, inputs.labels.teacher, temperature)


class TextDistances(Term):
    """`distance_geometry_loss` of the queries and the mean features of their words."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How far the distances of the queries are from those of their sentences."""
        return distance_geometry_loss(inputs.text, inputs.sentences)


class TextAngles(Term):
    """`angle_geometry_loss` of the queries and the mean features of their words; of 64 queries, drawn from more."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How far the angles of the queries are from those of their sentences."""
        text, fixed = inputs.text, inputs.sentences
        if len(text) > _MOST_ANGLES:
            draw = torch.rand(len(text), device=text.device, generator=inputs.generator)
            some = draw.topk(_MOST_ANGLES).indices
            text, fixed = text[some], fixed[some]
        return angle_geometry_loss(text, fixed)


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
            weights = inputs.ground_truth.to(inputs.text.dtype)
            mean_queries = weights.mT @ inputs.text / weights.sum(0)[:, None].clamp_min(1)
            targets = self.perturb(mean_queries, registers.tokens.shape[1], inputs.generator)
        return self._generator[0].loss(targets, registers, inputs.generator)["diffusion"]
