"""The terms: each applies a loss to the output of a retriever, under the name of its entry in `prvr.config.LOSSES`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Generic, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lorentz
from prvr.config import AnyModelConfig, LossSettings, ModelConfig, released_part
from prvr.config.losses import (
    ClipInfoNCESettings,
    ContrastiveSettings,
    DiffusionSettings,
    DissentSettings,
    DistillationSettings,
    DiversitySettings,
    EntailmentSettings,
    EvidenceSettings,
    FrameInfoNCESettings,
    QueryStructureSettings,
    TransportSettings,
    TripletSettings,
)
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
    contrastive_loss,
    distillation_loss,
    info_nce_loss,
    info_nce_pairs_loss,
    info_nce_ratio_loss,
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
from prvr.models.layers import AttentionPooling
from prvr.types import Labels, RetrieverOutput, VideoEmbedding, query_vectors
from regdiff import RegisterGenerator, TextualPerturbation

S = TypeVar("S")

_TRIPLET: Mapping[str, Callable[..., Tensor]] = MappingProxyType({"videos": triplet_loss, "pairs": triplet_pairs_loss})
_MOST_ANGLES = 64  # queries whose angles are compared


@dataclass(frozen=True)
class LossInputs:
    """The arguments of one call of the objective, as each term receives them; see `prvr.objective.Objective`."""

    output: RetrieverOutput
    labels: Labels
    negatives: Negatives = "random"
    register_targets: Float[Tensor, "v n d"] | None = None
    warm_up: bool = False
    generator: torch.Generator | None = None

    @cached_property
    def text(self) -> Float[Tensor, "q d"]:
        """`(q, d)`: one vector per query."""
        return query_vectors(self.output.text)

    @property
    def mean_words(self) -> Float[Tensor, "q e"]:
        """`(q, e)` unit vectors of the queries, the mean features of their words.

        Raises:
            InputError: the labels are without them, as in training by several processes.
        """
        if self.labels.mean_words is None:
            raise InputError(
                "loss.text_distances and loss.text_angles compare the words of all queries of a batch, and these "
                "labels have none, as when several processes train: train with one, or set both to 0"
            )
        return self.labels.mean_words


class Term(nn.Module, ABC, Generic[S]):
    """A loss term before it is weighted.

    Args:
        settings: its own settings.
        model: configuration of the retriever that is trained.
        registers: the register generator of that retriever, if it has one.
    """

    def __init__(self, settings: S, model: AnyModelConfig, registers: RegisterGenerator | None = None) -> None:
        super().__init__()
        self.settings = settings

    @abstractmethod
    def forward(self, inputs: LossInputs) -> Float[Tensor, ""] | dict[str, Tensor]:
        """The unweighted loss of one step; of several parts, each by its name."""


class Triplet(Term[TripletSettings]):
    """`triplet_loss` of the cosines of clips and of frames, or `triplet_pairs_loss`."""

    def forward(self, inputs: LossInputs) -> dict[str, Tensor]:
        """The triplet losses by branch, "triplet_clips" and "triplet_frames"."""
        c, labels, scores = self.settings, inputs.labels, inputs.output.scores
        truth, positives = labels.ground_truth, labels.positives
        return {
            f"triplet_{branch}": _TRIPLET[c.form](
                cosines, truth, positives, c.margin, inputs.negatives, c.hard_pool, inputs.generator
            )
            for branch, cosines in (("clips", scores.clips), ("frames", scores.frames))
            if cosines is not None
        }


class ClipInfoNCE(Term[ClipInfoNCESettings]):
    """`info_nce_loss` of the dot products of clips, or another form of it."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The InfoNCE loss of clips."""
        scores = inputs.output.scores
        return _info_nce(self.settings.form, scores.clips, scores.clips_dot, inputs.labels)


class FrameInfoNCE(Term[FrameInfoNCESettings]):
    """`info_nce_loss` of the dot products of frames, or another form of it."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The InfoNCE loss of frames."""
        scores = inputs.output.scores
        return _info_nce(self.settings.form, scores.frames, scores.frames_dot, inputs.labels)


def _info_nce(form: str, cosines: Tensor | None, dots: Tensor | None, labels: Labels) -> Tensor:
    if form == "log_sum":
        return info_nce_loss(cast(Tensor, dots), labels.positives)
    loss = info_nce_pairs_loss if form == "pairs" else info_nce_ratio_loss
    return loss(cast(Tensor, cosines), labels.positives)


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


class Contrastive(Term[ContrastiveSettings]):
    """`contrastive_loss` of the total scores, at a fixed or a learned temperature."""

    def __init__(
        self, settings: ContrastiveSettings, model: AnyModelConfig, registers: RegisterGenerator | None = None
    ) -> None:
        super().__init__(settings, model)
        self.temperature = Temperature(settings.temperature) if settings.learned else None

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The contrastive loss of the total scores."""
        temperature = self.settings.temperature if self.temperature is None else self.temperature()
        return contrastive_loss(inputs.output.scores.total, inputs.labels.positives, temperature)


class Diversity(Term[DiversitySettings]):
    """`diversity_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The diversity loss of the queries of each video."""
        c, owner = self.settings, inputs.labels.query_to_video
        return diversity_loss(inputs.text, owner, c.margin, c.scale, c.power, c.form)


class QueryStructure(Term[QueryStructureSettings]):
    """`query_structure_loss` of the queries."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The query structure loss."""
        return query_structure_loss(inputs.text, inputs.labels.query_to_video, self.settings.temperature)


class Entailment(Term[EntailmentSettings]):
    r"""Partial order preservation (POP, HLFormer eq. 18-20): the cone of a video should hold its queries.

    Pooled video and query are scaled into the ball, lifted by expmap0 and compared: mean over queries of
    max(0, exterior angle at the video - its half-aperture). Curvature and scales are bounded in the expression.
    """

    def __init__(
        self, settings: EntailmentSettings, model: AnyModelConfig, registers: RegisterGenerator | None = None
    ) -> None:
        super().__init__(settings, model)
        curvature = settings.curvature
        self.pool_frames = AttentionPooling(model.hidden)
        self.pool_clips = AttentionPooling(model.hidden)
        self.curvature = lorentz.nn.Curvature(curvature, bounds=(curvature / 10, curvature * 10))
        initial = torch.logit(torch.tensor(model.hidden**-0.5))
        self.text_scale = nn.Parameter(initial.clone())
        self.video_scale = nn.Parameter(initial.clone())

    def pool(self, video: VideoEmbedding) -> Float[Tensor, "v d"]:
        """One vector per video: the mean of its pooled clips and its pooled frames."""
        parts = []
        if video.frames is not None:
            parts.append(self.pool_frames(video.frames, video.frame_mask))
        if video.clips is not None:
            parts.append(self.pool_clips(video.clips))
        return torch.stack(parts).mean(0)

    @property
    def c(self) -> Float[Tensor, ""]:
        """The curvature is -c."""
        return self.curvature()

    def lift_text(self, text: Float[Tensor, "*b d"]) -> Float[Tensor, "*b n"]:
        """Ambient points of texts, `(*b, d + 1)`."""
        return lorentz.expmap0(text * torch.sigmoid(self.text_scale), self.c)

    def lift_video(self, video: Float[Tensor, "*b d"]) -> Float[Tensor, "*b n"]:
        """Ambient points of pooled videos, or of their clips or frames, `(*b, d + 1)`."""
        return lorentz.expmap0(video * torch.sigmoid(self.video_scale), self.c)

    def violation(self, video_points: Float[Tensor, "q n"], query_points: Float[Tensor, "q n"]) -> Float[Tensor, " q"]:
        """By how much the exterior angle exceeds the half-aperture, row by row; 0 inside the cone."""
        return lorentz.entailment_violation(video_points, query_points, self.c, min_radius=self.settings.min_radius)

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The mean violation of the entailment cones."""
        video_points = self.lift_video(self.pool(inputs.output.video))[inputs.labels.query_to_video]
        return self.violation(video_points, self.lift_text(inputs.text)).mean()


def entailment(
    settings: EntailmentSettings, model: ModelConfig, registers: RegisterGenerator | None = None
) -> Term[EntailmentSettings]:
    """The correct or the released entailment loss, as `compat.entailment` says."""
    if model.compat.entailment == "released":
        return released_part("loss_parts:ReleasedEntailment", "model.compat.entailment='released'")(settings, model)
    return Entailment(settings, model)


class Evidence(Term[EvidenceSettings]):
    """`evidential_loss` of each branch and of the fusion of both (Holmes); doubtful queries get softer targets.

    In the warm-up all targets are the videos that the queries were written for.
    """

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The sum of the losses of clips, of frames and of both."""
        scores = [s for s in (inputs.output.scores.clips, inputs.output.scores.frames) if s is not None]
        target, temperature = self.targets(inputs, scores), self.settings.temperature
        losses = [evidential_loss(s, target, temperature) for s in scores]
        if len(scores) == 2:
            losses.append(dirichlet_loss(fuse_evidence(*(evidence_of(s, temperature) for s in scores)), target).mean())
        return torch.stack(losses).sum()

    @torch.no_grad()
    def targets(self, inputs: LossInputs, scores: Sequence[Float[Tensor, "q v"]]) -> Float[Tensor, "q v"]:
        """`(q, v)` rows that add up to 1, for the scores of one branch or two."""
        c, truth, right = self.settings, inputs.labels.ground_truth, inputs.labels.positives
        own = shared_targets(right, scores[0].dtype)
        if inputs.warm_up or c.relabelling == "none":
            return own
        groups = [query_groups(s, evidence_of(s, c.temperature), truth, right, c.division) for s in scores]
        likely = torch.stack([s.softmax(1) for s in scores]).mean(0)
        return mixed_targets(own, likely, c.smoothing, doubtful_queries(groups))


class Dissent(Term[DissentSettings]):
    """`dissent_loss` of clips and frames (Holmes)."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How much the branches disagree where both are certain."""
        scores = (inputs.output.scores.clips, inputs.output.scores.frames)
        return dissent_loss(*(evidence_of(cast(Tensor, s), self.settings.temperature) for s in scores))


class Transport(Term[TransportSettings]):
    """`intra_video_loss` of queries and clips with targets by optimal transport, or without (Holmes); 0 in the warm-up.

    The similarities are targets and logits at once: gradients pass through the logits, and through their range.
    """

    def __init__(
        self, settings: TransportSettings, model: AnyModelConfig, registers: RegisterGenerator | None = None
    ) -> None:
        super().__init__(settings, model)
        assert isinstance(model, ModelConfig)
        self.scale, targets = unit_interval, transport_targets
        if model.compat.transport == "released":
            choice = "model.compat.transport='released'"
            self.scale = released_part("loss_parts:released_unit_interval", choice)
            targets = released_part("loss_parts:released_transport_targets", choice)
        self.targets = {"transport": targets, "softmax": softmax_targets}[settings.targets]

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The intra-video loss."""
        clips = inputs.output.video.clips
        assert clips is not None
        if inputs.warm_up:
            return 0 * clips[0, 0, 0]  # part of the graph: it may be the only term
        labels = inputs.labels
        queries, mask = queries_of_videos(labels.query_to_video, len(clips), labels.most_queries)
        similarity = self.scale(block_cosines(inputs.text[queries], clips), mask)
        target = self.targets(similarity, mask, self.settings.epsilon)
        return intra_video_loss(similarity, target, mask, self.settings.temperature)


class Distillation(Term[DistillationSettings]):
    """`distillation_loss` of the total scores, with the scores of the teacher for the videos of the batch."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
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


class TextDistances(Term[LossSettings]):
    """`distance_geometry_loss` of the queries and the mean features of their words."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How far the distances of the queries are from those of their words."""
        return distance_geometry_loss(inputs.text, inputs.mean_words)


class TextAngles(Term[LossSettings]):
    """`angle_geometry_loss` of the queries and the mean features of their words; of 64 queries, drawn from more."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """How far the angles of the queries are from those of their words."""
        text, fixed = inputs.text, inputs.mean_words
        if len(text) > _MOST_ANGLES:
            draw = torch.rand(len(text), device=text.device, generator=inputs.generator)
            sample = draw.topk(_MOST_ANGLES).indices
            text, fixed = text[sample], fixed[sample]
        return angle_geometry_loss(text, fixed)


class PriorKL(Term[LossSettings]):
    """KL divergence of the prior of the registers from N(0, I)."""

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The divergence of the prior of the registers."""
        registers = inputs.output.registers
        assert registers is not None
        assert registers.prior is not None
        return registers.prior.kl()


class Diffusion(Term[DiffusionSettings]):
    """Error of the denoiser of the registers, whose targets are by default the perturbed mean queries of each video.

    Raises:
        InputError: the register generator is missing.
    """

    def __init__(
        self, settings: DiffusionSettings, model: AnyModelConfig, registers: RegisterGenerator | None = None
    ) -> None:
        super().__init__(settings, model)
        if registers is None:
            raise InputError(
                f"loss.diffusion={settings.weight} trains the register generator of the retriever: pass it to the "
                "objective, Objective(config.loss, config.model, retriever.registers)"
            )
        self.perturb = TextualPerturbation(settings.perturbation)
        self._generator = (registers,)  # in a tuple, because its parameters belong to the retriever

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The diffusion loss of the registers."""
        registers, targets = inputs.output.registers, inputs.register_targets
        assert registers is not None
        if targets is None:
            weights = inputs.labels.ground_truth.to(inputs.text.dtype)
            mean_queries = weights.mT @ inputs.text / weights.sum(0)[:, None].clamp_min(1)
            targets = self.perturb(mean_queries, registers.tokens.shape[1], inputs.generator)
        return self._generator[0].loss(targets, registers, inputs.generator)["diffusion"]
