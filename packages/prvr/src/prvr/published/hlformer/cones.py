"""The entailment cones of HLFormer: a video, pooled, should hold its queries."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lorentz
from prvr.config import COMPAT, AnyModelConfig, ModelConfig
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.models.layers import AttentionPooling
from prvr.published.hlformer import EntailmentSettings
from prvr.types import VideoEmbedding

Vectors = Float[Tensor, "*b d"]
Points = Float[Tensor, "*b n"]
"""Embeddings, and ambient points, n = d + 1."""


class Entailment(Term[EntailmentSettings]):
    r"""Partial order preservation (POP, HLFormer eq. 18-20): the cone of a video should hold its queries.

    Pooled video and query are scaled into the ball, lifted by expmap0 and compared: mean over queries of
    max(0, exterior angle at the video - its half-aperture). Curvature and scales are bounded in the expression.
    """

    def __init__(self, settings: EntailmentSettings, model: AnyModelConfig) -> None:
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
    def c(self) -> Scalar:
        """The curvature is -c."""
        return self.curvature()

    def lift_text(self, text: Vectors) -> Points:
        """Ambient points of texts, `(*b, d + 1)`."""
        return lorentz.expmap0(text * torch.sigmoid(self.text_scale), self.c)

    def lift_video(self, video: Vectors) -> Points:
        """Ambient points of pooled videos, or of their clips or frames, `(*b, d + 1)`."""
        return lorentz.expmap0(video * torch.sigmoid(self.video_scale), self.c)

    def violation(self, video_points: Points, query_points: Points) -> Float[Tensor, " q"]:
        """By how much the exterior angle exceeds the half-aperture, row by row; 0 inside the cone."""
        return lorentz.entailment_violation(video_points, query_points, self.c, min_radius=self.settings.min_radius)

    def forward(self, inputs: LossInputs) -> Scalar:
        """The mean violation of the entailment cones."""
        video_points = self.lift_video(self.pool(inputs.output.video))[inputs.labels.query_to_video]
        return self.violation(video_points, self.lift_text(inputs.text)).mean()


def entailment(settings: EntailmentSettings, model: ModelConfig) -> Term[EntailmentSettings]:
    """The entailment loss, as `compat.entailment` names it."""
    return COMPAT["entailment"][model.compat.entailment].part(settings, model)
