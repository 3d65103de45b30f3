"""The objective: weighted loss terms by name, with the parameters that only training needs."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lorentz
from prvr.config import LOSSES, AnyModelConfig, LossConfig, ModelConfig, active_losses, released_part
from prvr.losses import LossInputs, Negatives, Term
from prvr.models.layers import AttentionPooling
from prvr.types import Batch, Labels, RetrieverOutput, VideoEmbedding
from regdiff import RegisterGenerator

__all__ = ["Entailment", "Objective", "entailment", "state_of_version_0_1"]


class Entailment(Term):
    r"""Partial order preservation (POP, HLFormer eq. 18-20): the cone of a video should hold its queries.

    Pooled video and query are scaled into the ball, lifted by expmap0 and compared: mean over queries of
    max(0, exterior angle at the video - its half-aperture). Curvature and scales are bounded in the expression.
    """

    def __init__(self, config: LossConfig, model: ModelConfig, registers: RegisterGenerator | None = None) -> None:
        super().__init__(config, model)
        curvature = config.entailment_curvature
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
        radius = self.config.entailment_min_radius
        return lorentz.entailment_violation(video_points, query_points, self.c, min_radius=radius)

    def forward(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """The mean violation of the entailment cones."""
        video_points = self.lift_video(self.pool(inputs.output.video))[inputs.labels.query_to_video]
        return self.violation(video_points, self.lift_text(inputs.text)).mean()


def entailment(config: LossConfig, model: ModelConfig, registers: RegisterGenerator | None = None) -> Term:
    """The correct or the released entailment loss, as `compat.entailment` says."""
    if model.compat.entailment == "released":
        return released_part("entailment:ReleasedEntailment", "model.compat.entailment='released'")(config, model)
    return Entailment(config, model)


class Objective(nn.Module):
    """Weighted sum of the loss terms whose weight is above 0 and that fit the model (HLFormer eq. 21; L_sim within it:
    DreamPRVR supplement eq. 33).

    Terms are the entries of `prvr.config.LOSSES`; each is a child module under its name.

    Args:
        config: weights and settings.
        model: configuration of the retriever.
        registers: the register generator of the retriever, which the term "diffusion" trains.

    Raises:
        InputError: a weight for "diffusion" without the register generator.

    Examples:
        >>> from prvr.config import LossConfig, ModelConfig
        >>> Objective(LossConfig(diversity=0.0), ModelConfig(video_dim=4, query_dim=4)).active
        ('triplet_clips', 'info_nce_clips', 'triplet_frames', 'info_nce_frames')
    """

    def __init__(self, config: LossConfig, model: AnyModelConfig, registers: RegisterGenerator | None = None) -> None:
        super().__init__()
        self.config = config
        self.active = active_losses(config, model)
        """Names of the terms."""
        for name in self.active:
            self.add_module(name, LOSSES[name].part(config, model, registers))

    def forward(
        self,
        output: RetrieverOutput,
        batch: Batch | Labels,
        negatives: Negatives = "random",
        register_targets: Float[Tensor, "v n d"] | None = None,
        warm_up: bool = False,
        generator: torch.Generator | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """Weighted terms by name, and their sum as "total".

        Args:
            output: the output of the retriever for `batch`.
            batch: the batch, or its labels: nothing else of it is read.
            negatives: negatives of the triplet terms, see `prvr.losses.triplet_loss`.
            register_targets: `(v, n, d)` targets of the registers; default: the perturbed mean of each video's queries.
            warm_up: the run is in its warm-up, of which terms may make an exception.
            generator: source of all draws; None = the global one.
        """
        inputs = LossInputs(output, batch, negatives, register_targets, warm_up, generator)
        terms = {name: self.config.weight(name) * self.get_submodule(name)(inputs) for name in self.active}
        return terms | {"total": torch.stack(list(terms.values())).sum()}


def state_of_version_0_1(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State of an objective that version 0.1 or this one saved, under the names of this version."""
    return {f"contrastive.{name}" if name.startswith("temperature.") else name: t for name, t in state.items()}
