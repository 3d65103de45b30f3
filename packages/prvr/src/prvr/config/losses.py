"""The losses: their settings, what they need of a model, and which part computes each.

A loss is one registration: a name, which is a key of `loss` in a configuration, the term that computes it, one line of
documentation, a record of settings whose first field is the weight, and its needs. From this follow the keys of `loss`,
their checks, the options of the command line, and what `prvr.objective.Objective` computes. A loss of another package
is registered by a module that `--import` names, or that a program imports; a configuration records it in `imports`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, create_model, with_config
from pydantic_core import CoreSchema, core_schema

from prvr.config.model import ModelConfig
from prvr.config.registry import Makers
from prvr.config.retrievers import AnyModelConfig
from prvr.config.strict import STRICT, Count, Factor, Scale, Weight, record
from prvr.errors import InputError

LOSSES = Makers("loss")
"""Every loss by name, in the order in which terms are computed and added up. A part is called with the settings of the
loss and the configuration of the model, and makes a `prvr.losses.Term`."""

NEEDS = {
    "pooled": "a model with one vector per query, which one of this model.kind is not",
    "diffusion": "model.registers.kind='diffusion'",
    "frame_rows": "model.clip_construction='frames'",
    "merged": "model.clip_construction='merged', with frames one by one",
    "key_clip": "model.frame_pooling='key_clip'",
    "words": "model.frame_query='words'",
    "prior": "model.registers.kind='diffusion' or 'prior', and its start='prior_mean' or 'prior_sample'",
}
"""What a loss may need of a model, in the words of messages. A loss of a branch of `ModelConfig` that is off is left
out silently.

A loss that needs `last_words`, the features of the words of the queries of a batch, is refused where several
processes share a batch (`prvr.training`).
"""

BATCH_NEEDS = {
    "video_ids": "the ids of the videos",
    "query_ids": "the ids of the queries",
    "captions": "the texts of the queries",
    "moments": "moments of queries, in seconds",
}
"""What a loss may need of a batch: fields of `prvr.types.Labels`."""

_S = TypeVar("_S")


def register_loss(name: str, part: str, description: str, *needs: str) -> Callable[[type[_S]], type[_S]]:
    """Registers a loss with the decorated record of its settings; `part` is "module:attribute"."""

    def register(settings: type[_S]) -> type[_S]:
        LOSSES.register(name, part, description, settings, needs)
        return settings

    return register


@record
class LossSettings:
    """The settings of a loss that has none but its weight."""

    weight: Weight = 0.0
    """0 = off: the loss is not computed."""


@register_loss("triplet", "prvr.losses.matching:Triplet", "Margin ranking by clips and by frames.", "pooled")
@record
class TripletSettings:
    """Margin ranking: the right video above a wrong one, and the right queries above a wrong one."""

    weight: Weight = 1.0
    """0 = off."""
    margin: Scale = 0.2
    """How much higher the right pair has to score."""
    hard_pool: Count = 20
    """Hard negatives of a query are drawn from this many highest-scored wrong videos."""
    form: Literal["videos", "pairs"] = "videos"
    """videos: the video side averages over videos, each with the mean of its queries, as released. pairs: both sides
    average over queries (DreamPRVR supplement eq. 31)."""
    branches: Literal["both", "clips", "frames"] = "both"
    """Whose scores are ranked."""


@record
class InfoNCESettings(LossSettings):
    """InfoNCE over the scores of one branch."""

    branch: ClassVar[str]
    form: Literal["log_sum", "pairs"] = "log_sum"
    """log_sum: dot products, all queries of a video in the numerator, as released. pairs: cosines, each right pair
    against the wrong ones (DreamPRVR supplement eq. 32, with the exponentials that are not printed)."""


@register_loss("info_nce_clips", "prvr.losses.matching:InfoNCE", "InfoNCE of dot products by clips.", "pooled", "clips")
@record
class ClipInfoNCESettings(InfoNCESettings):
    """InfoNCE over clips."""

    branch: ClassVar[str] = "clips"
    weight: Weight = 0.02


@register_loss("info_nce_frames", "prvr.losses.matching:InfoNCE", "InfoNCE by frames.", "pooled", "frames")
@record
class FrameInfoNCESettings(InfoNCESettings):
    """InfoNCE over frames."""

    branch: ClassVar[str] = "frames"
    weight: Weight = 0.04


@register_loss(
    "contrastive", "prvr.losses.matching:Contrastive", "Symmetric cross-entropy of total scores (DiffusionRet)."
)
@record
class ContrastiveSettings(LossSettings):
    """Contrast of the total scores."""

    temperature: Factor = 0.01
    """tau of eq. 11 of DiffusionRet, or its initial value."""
    learned: bool = False
    """True: the temperature is a parameter of the objective, as the released code learns CLIP's logit scale."""


@register_loss("diversity", "prvr.losses.queries:Diversity", "Pushes the queries of one video apart (GMMFormer).")
@record
class DiversitySettings:
    """Pushes the queries of one video apart, because they describe different moments."""

    weight: Weight = 3e-3
    """0 = off."""
    margin: float = Field(default=0.2, ge=-100, le=100)
    """delta of the papers."""
    scale: float = Field(default=32.0, ge=0, le=1e4)
    """omega of the papers."""
    form: Literal["focal", "log_sum", "pairs"] = "focal"
    """focal: (1 + cos) log(1 + exp(.)) over pairs, divided by the number of queries; log_sum: log(1 + sum exp(.)) over
    queries (GMMFormer); pairs: as focal, but times 2 / (M (M - 1)) for a video of M queries, and the mean over videos
    (DreamPRVR supplement eq. 34)."""
    power: Scale = 1.0
    """Exponent of the focal factor."""


@register_loss("query_structure", "prvr.losses.queries:QueryStructure", "Contrast of queries by video (DreamPRVR).")
@record
class QueryStructureSettings(LossSettings):
    """Supervised contrast of queries by video."""

    temperature: Factor = 0.08
    """Factor of the softmax over queries."""


@register_loss(
    "regression", "prvr.losses.regression:Regression", "Regression of rows on their sentences.", "pooled", "last_words"
)
@record
class RegressionSettings(LossSettings):
    """Draws the rows of a video to the sentences that they fit, as `prvr.training.closed_form` does in one step."""

    temperature: Factor = 0.1
    """Of the softmax over the rows of a video that shares a sentence out among them."""


@register_loss(
    "distillation", "prvr.losses.matching:Distillation", "Draws total scores to a teacher's (Hinton et al.)."
)
@record
class DistillationSettings(LossSettings):
    """Draws the total scores to those of the teacher, `train.teacher`."""

    temperature: float = Field(default=0.1, ge=1e-3, le=1e6)
    """tau of both softmaxes over the videos of a batch."""


TAUGHT = ("distillation", "frame_distillation")
"""The losses that learn from `train.teacher`."""


def with_weights(losses: Any) -> Any:
    """The values of `loss` in which a number that stands for a loss is its weight.

    Examples:
        >>> with_weights({"triplet": {"margin": 0.1}, "diversity": 0.5})
        {'triplet': {'margin': 0.1}, 'diversity': {'weight': 0.5}}
    """
    if not isinstance(losses, Mapping):
        return losses
    return {
        name: value if isinstance(value, Mapping) or dataclasses.is_dataclass(value) else {"weight": value}
        for name, value in losses.items()
    }


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The settings of every registered loss, by name.

    Args:
        terms: the settings of a loss, a mapping of them, or a number, which is its weight; others have their defaults.

    Examples:
        >>> loss = LossConfig({"triplet": {"margin": 0.1}, "diversity": 0.0})
        >>> loss["triplet"].margin, loss.weight("diversity"), loss.weight("info_nce_clips")
        (0.1, 0.0, 0.02)
    """

    terms: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        terms = _schema(tuple(LOSSES)).model_validate(with_weights(self.terms))
        object.__setattr__(self, "terms", dict(terms))

    def __getitem__(self, name: str) -> Any:
        """The settings of a loss, of the class that was registered with it."""
        return self.terms[LOSSES[name].name]

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()))

    def weight(self, name: str) -> float:
        """The weight of a loss; 0 for one that was registered after these settings were made."""
        return self.terms[name].weight if name in self.terms else 0.0

    @property
    def taught(self) -> str | None:
        """The name of the loss in use that learns from `train.teacher`."""
        return next((name for name in TAUGHT if self.weight(name) > 0), None)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda loss: dict(loss.terms)),
        )


@cache
def _schema(entries: tuple[Any, ...]) -> type[BaseModel]:
    """Validates the values of `loss` where these losses are registered."""
    for entry in entries:  # a dataclass of the standard library would drop unknown keys
        with_config(STRICT)(entry.settings)
    fields: dict[str, Any] = {entry.name: (entry.settings, entry.settings()) for entry in entries}
    return create_model("loss", __config__=ConfigDict(extra="forbid"), **fields)


def active_losses(loss: LossConfig, model: AnyModelConfig) -> tuple[str, ...]:
    """Names of the losses that are computed: their weight is above 0 and the model has what they need."""
    there = model.provides | BATCH_NEEDS.keys()
    return tuple(entry.name for entry in LOSSES if loss.weight(entry.name) > 0 and there.issuperset(entry.needs))


def expect_losses_fit(loss: LossConfig, model: AnyModelConfig) -> None:
    """Refuses weights of losses that a model cannot be trained with, and weights that leave nothing to train with.

    Raises:
        InputError: the message names the weight, what it needs and what to set instead.
    """
    branches = ("clips", "frames", "last_words") if isinstance(model, ModelConfig) else ()  # may be off, with theirs
    for entry in LOSSES:
        missing = [need for need in entry.needs if need not in {*model.provides, *branches, *BATCH_NEEDS}]
        if loss.weight(entry.name) > 0 and missing:
            what = NEEDS.get(missing[0], f"{missing[0]!r}, which `provides` of the settings of the model does not name")
            instead = f": set it to 0{' and loss.contrastive to 1' if missing[0] == 'pooled' else ''}"
            raise InputError(f"loss.{entry.name}={loss.weight(entry.name)} needs {what}{instead}")
    if "pooled" not in model.provides and not loss.weight("contrastive") > 0:
        kind = getattr(model, "kind", "pooled")
        raise InputError(f"model.kind={kind!r} needs loss.contrastive above 0: no other term compares it with videos")
    if not active_losses(loss, model):
        raise InputError("every loss weight is 0: turn at least one term on, for example loss.triplet=1")
