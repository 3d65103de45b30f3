"""The losses: their weights and settings, what they need of a model, and which part computes each.

A loss is registered here, beside the record of its settings, whose first field is its weight. From this follow the keys
of `loss` in a configuration, what is refused, and what `prvr.objective.Objective` computes.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from prvr.config.registry import Registry
from prvr.config.strict import MANY, STRICT
from prvr.config.token_model import AnyModelConfig
from prvr.errors import InputError

LOSSES: Registry[Callable[..., Any]] = Registry("loss")
"""Every loss term by name, in the order in which terms are computed and added up."""

NEEDS = {
    "pooled": "a model with one vector per query, which model.kind='tokens' is not",
    "diffusion": "model.registers.kind='diffusion'",
    "sentences": "features of words, which model.clip reads as token numbers",
    "prior": "model.registers.kind='diffusion' or 'prior', and its start='prior_mean' or 'prior_sample'",
}
"""What a loss may need of a model, as messages say it. A loss of a branch that is turned off is left out silently."""


def _weight(default: float) -> Any:
    return Field(default=default, ge=0, le=1e6)


@dataclass(frozen=True, config=STRICT)
class TripletSettings:
    """Margin ranking: the right video above a wrong one, and the right queries above a wrong one."""

    triplet: float = _weight(1.0)
    margin: float = Field(default=0.2, ge=0, le=100)
    hard_pool: int = Field(default=20, ge=1, le=MANY)
    """Hard negatives of a query are drawn from this many highest-scored wrong videos."""
    triplet_form: Literal["videos", "pairs"] = "videos"
    """videos: the video side averages over videos, each with the mean of its queries, as released. pairs: both sides
    average over queries (DreamPRVR supplement eq. 31)."""
    twin_threshold: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Wrong videos with a caption whose words are this similar to the query, or more (cosine of mean word features),
    are no negatives of it, in the triplet and in the contrastive loss; null: all wrong videos are."""


@dataclass(frozen=True, config=STRICT)
class ClipInfoNCESettings:
    """InfoNCE over clips."""

    info_nce_clips: float = _weight(0.02)
    info_nce_form: Literal["log_sum", "pairs", "ratio"] = "log_sum"
    """InfoNCE over clips and over frames. log_sum: dot products, all queries of a video in the numerator, as released.
    pairs: cosines, each right pair against the wrong ones (DreamPRVR supplement eq. 32). ratio: the same without the
    exponentials, as the equation is printed, which asks for scores above 0: see train.on_nonfinite."""


@dataclass(frozen=True, config=STRICT)
class FrameInfoNCESettings:
    """InfoNCE over frames."""

    info_nce_frames: float = _weight(0.04)


@dataclass(frozen=True, config=STRICT)
class DiversitySettings:
    """Pushes the queries of one video apart, because they describe different moments."""

    diversity: float = _weight(3e-3)
    diversity_margin: float = Field(default=0.2, ge=-100, le=100)
    """delta of the papers."""
    diversity_scale: float = Field(default=32.0, ge=0, le=1e4)
    """omega of the papers."""
    diversity_form: Literal["focal", "log_sum", "pairs"] = "focal"
    """focal: (1 + cos) log(1 + exp(.)) over pairs, divided by the number of queries; log_sum: log(1 + sum exp(.)) over
    queries (GMMFormer); pairs: as focal, but times 2 / (M (M - 1)) for a video of M queries, and the mean over videos
    (DreamPRVR supplement eq. 34)."""
    diversity_power: float = Field(default=1.0, ge=0, le=100)
    """Exponent of the focal factor."""


@dataclass(frozen=True, config=STRICT)
class QueryStructureSettings:
    """Supervised contrast of queries by video."""

    query_structure: float = _weight(0.0)
    query_structure_temperature: float = Field(default=0.08, ge=1e-6, le=1e6)


@dataclass(frozen=True, config=STRICT)
class EntailmentSettings:
    """The entailment cone of a video should hold its queries."""

    entailment: float = _weight(0.0)
    entailment_curvature: float = Field(default=1.0, ge=1e-4, le=1e4)
    """Initial value of c; learned within a factor of 10 either way."""
    entailment_min_radius: float = Field(default=0.1, ge=1e-6, le=1e3)


@dataclass(frozen=True, config=STRICT)
class PriorKLSettings:
    """Draws the prior of the registers to a standard normal distribution."""

    prior_kl: float = _weight(0.0)


@dataclass(frozen=True, config=STRICT)
class DiffusionSettings:
    """Teaches the denoiser of the registers to end in perturbed text embeddings."""

    diffusion: float = _weight(0.0)
    perturbation: float = Field(default=0.1, ge=0, le=100)
    """gamma of the textual perturbation sampler (TPS), the target of the diffusion term."""


@dataclass(frozen=True, config=STRICT)
class ContrastiveSettings:
    """Contrast of the total scores."""

    contrastive: float = _weight(0.0)
    contrastive_temperature: float = Field(default=0.01, ge=1e-6, le=1e6)
    """tau of eq. 11 of DiffusionRet, or its initial value."""
    contrastive_learned: bool = False
    """True: the temperature is a parameter of the objective, as the released code learns CLIP's logit scale."""
    contrastive_form: Literal["cross_entropy", "brier"] = "cross_entropy"
    """cross_entropy: both directions; brier: squared error of the probabilities of videos, which is bounded."""
    contrastive_smoothing: float = Field(default=0.0, ge=0, le=1)
    """Share of the target that goes to all videos of the batch alike; the control of the next key."""
    contrastive_similarity: float = Field(default=0.0, ge=0, le=1)
    """Share of the target that goes to videos by how similar their captions are to the query (cosine of mean word
    features, softmax at `similarity_temperature`). One word apart is similar: watch captions that differ in one."""
    similarity_temperature: float = Field(default=0.1, ge=1e-6, le=1e6)


@dataclass(frozen=True, config=STRICT)
class TextDistancesSettings:
    """Keeps the distances between queries those of their sentences, which training does not change."""

    text_distances: float = _weight(0.0)


@dataclass(frozen=True, config=STRICT)
class TextAnglesSettings:
    """Keeps the angles between queries those of their sentences."""

    text_angles: float = _weight(0.0)


@dataclass(frozen=True, config=STRICT)
class EvidenceSettings:
    """Scores as evidence for the videos of a batch: each branch and their fusion (Holmes)."""

    evidence: float = _weight(0.0)
    evidence_temperature: float = Field(default=0.05, ge=0.02, le=1e6)
    """tau of exp(tanh(score) / tau), also of `dissent`. Below 0.02 float32 does not hold fused evidence."""
    evidence_relabelling: Literal["doubtful", "none"] = "doubtful"
    """doubtful: after the warm-up (`train.warm_up_epochs`), the targets of queries that the branches do not identify
    clearly are mixed with what the scores say; none: targets are the videos of the queries."""
    evidence_division: float = Field(default=0.3, ge=0, le=1)
    """beta: bounds of the thresholds of relabelling, uncertainty at most 1 - beta and score at least beta."""
    evidence_smoothing: float = Field(default=0.2, ge=0, le=1)
    """Share of the scores' softmax in the target of a relabelled query."""


@dataclass(frozen=True, config=STRICT)
class DissentSettings:
    """Draws the probabilities of both branches together where both are certain (Holmes)."""

    dissent: float = _weight(0.0)


@dataclass(frozen=True, config=STRICT)
class TransportSettings:
    """Each query should find its own clips of its video (Holmes); off in the warm-up, `train.warm_up_epochs`."""

    transport: float = _weight(0.0)
    transport_temperature: float = Field(default=0.06, ge=0.02, le=1e6)
    """tau of exp(tanh(similarity) / tau)."""
    transport_targets: Literal["transport", "softmax"] = "transport"
    """transport: optimal transport between the queries of a video and its clips, which have equal masses; softmax: each
    query alone, softmax(similarity / epsilon)."""
    transport_epsilon: float = Field(default=0.1, ge=1e-3, le=1e6)
    """Entropic regularisation of the transport, or temperature of the softmax."""


@dataclass(frozen=True, config=STRICT)
class DistillationSettings:
    """Draws the total scores to those of a system that teaches, `train.teacher`."""

    distillation: float = _weight(0.0)
    distillation_temperature: float = Field(default=0.1, ge=1e-3, le=1e6)
    """tau of both softmaxes over the videos of a batch."""


def _register(name: str, part: str, description: str, settings: type, *needs: str) -> None:
    LOSSES.register(name, part if ":" in part else f"prvr.losses.terms:{part}", description, settings, needs)


_register("triplet_clips", "ClipTriplet", "Margin ranking by clips.", TripletSettings, "pooled", "clips")
_register("info_nce_clips", "ClipInfoNCE", "InfoNCE of dot products by clips.", ClipInfoNCESettings, "pooled", "clips")
_register("triplet_frames", "FrameTriplet", "Margin ranking by frames.", TripletSettings, "pooled", "frames")
_register("info_nce_frames", "FrameInfoNCE", "InfoNCE by frames.", FrameInfoNCESettings, "pooled", "frames")
_register("contrastive", "Contrastive", "Symmetric cross-entropy of total scores (DiffusionRet).", ContrastiveSettings)
_register("diversity", "Diversity", "Pushes the queries of one video apart (GMMFormer).", DiversitySettings)
_register("query_structure", "QueryStructure", "Contrast of queries by video (DreamPRVR).", QueryStructureSettings)
_register(
    "entailment",
    "prvr.objective:entailment",
    "A video's cone holds its queries (HLFormer).",
    EntailmentSettings,
    "pooled",
)
_register("prior_kl", "PriorKL", "KL of the registers' prior (DreamPRVR).", PriorKLSettings, "prior")
_register("diffusion", "Diffusion", "Denoising of the registers (DreamPRVR).", DiffusionSettings, "diffusion")
_register(
    "text_distances", "TextDistances", "Distances of queries stay (MSC-PRVR).", TextDistancesSettings, "sentences"
)
_register("text_angles", "TextAngles", "Angles between queries stay (MSC-PRVR).", TextAnglesSettings, "sentences")
_register("evidence", "Evidence", "Scores as evidence for videos (Holmes).", EvidenceSettings, "pooled")
_register("dissent", "Dissent", "Agreement of certain branches (Holmes).", DissentSettings, "pooled", "clips", "frames")
_register("transport", "Transport", "Each query has its own clips (Holmes).", TransportSettings, "pooled", "clips")
_register("distillation", "Distillation", "Draws total scores to a teacher's (Hinton et al.).", DistillationSettings)


# In reverse, because fields of the last base come first.
@dataclass(frozen=True, config=STRICT)
class LossConfig(*reversed(dict.fromkeys(loss.settings for loss in LOSSES))):  # type: ignore[misc]
    """The weights of all registered losses (0 = off, the loss is not computed) and their settings.

    Examples:
        >>> LossConfig(diversity=0.0).margin
        0.2
    """

    def weight(self, name: str) -> float:
        """Weight of a loss term, the first field of its settings; 0 for one that was registered after these records."""
        return getattr(self, _weight_key(name), 0.0)

    @property
    def reads_sentences(self) -> bool:
        """Whether a loss compares the sentences as they were given, see `prvr.types.Batch.sentences`."""
        terms = any("sentences" in entry.needs and self.weight(entry.name) > 0 for entry in LOSSES)
        return terms or self.contrastive_similarity > 0 or self.twin_threshold is not None


def _weight_key(name: str) -> str:
    return dataclasses.fields(LOSSES[name].settings)[0].name


def active_losses(loss: LossConfig, model: AnyModelConfig) -> tuple[str, ...]:
    """Names of the terms that are computed: their weight is above 0 and the model has what they need."""
    return tuple(
        entry.name for entry in LOSSES if loss.weight(entry.name) > 0 and model.provides.issuperset(entry.needs)
    )


def expect_losses_fit(loss: LossConfig, model: AnyModelConfig) -> None:
    """Refuses weights of losses that a model cannot be trained with, and weights that leave nothing to train with.

    Raises:
        InputError: the message names the weight, what it needs and what to set instead.
    """
    for entry in LOSSES:
        missing = [need for need in entry.needs if need in NEEDS and need not in model.provides]
        if loss.weight(entry.name) > 0 and missing:
            key = _weight_key(entry.name)
            instead = f": set it to 0{' and loss.contrastive to 1' if missing[0] == 'pooled' else ''}"
            raise InputError(f"loss.{key}={loss.weight(entry.name)} needs {NEEDS[missing[0]]}{instead}")
    for key, off in (("contrastive_similarity", 0), ("twin_threshold", None)):
        if getattr(loss, key) != off and "sentences" not in model.provides:
            raise InputError(f"loss.{key}={getattr(loss, key)} needs {NEEDS['sentences']}: leave it out")
    if "pooled" not in model.provides and not loss.weight("contrastive") > 0:
        raise InputError("model.kind='tokens' needs loss.contrastive above 0: no other term compares it with videos")
    if not active_losses(loss, model):
        raise InputError("every loss weight is 0: turn at least one term on, for example loss.triplet=1")
