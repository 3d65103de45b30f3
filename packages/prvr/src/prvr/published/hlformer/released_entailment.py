"""Partial order preservation as HLFormer's code has it, with its guards and bounds."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lorentz import project
from prvr.config import ModelConfig
from prvr.losses.term import Scalar, Term
from prvr.published.gmmformer.released_padding import UnmaskedPooling
from prvr.published.hlformer import EntailmentSettings
from prvr.published.hlformer.cones import Entailment, Points, Vectors

_LIMIT = 1 - 1e-8  # 1 in float32


def guarded(function: Callable[[Tensor], Tensor], x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """acos or asin of clamp(x, -1 + 1e-8, 1 - 1e-8); at the bounds and past them no gradient, as a clamp means.

    In float32 the bounds round to 1, where the slope is infinite: the released gradient is 0 times infinity there.
    """
    inside = x.abs() < _LIMIT
    return torch.where(inside, function(x.masked_fill(~inside, 0)), function(x.detach().clamp(-_LIMIT, _LIMIT)))


class ReleasedEntailment(Entailment):
    """Mean over queries of max(0, exterior angle - half-aperture asin(2K / (sqrt(c) |v|))) (eq. 18-20).

    The curvature c is kept within a factor of 10 of its initial value by projecting the parameter.
    """

    def __init__(self, settings: EntailmentSettings, model: ModelConfig) -> None:
        Term.__init__(self, settings, model)  # parameters of its own
        dim, curvature = model.hidden, settings.curvature
        self.pool_frames = UnmaskedPooling(dim)
        self.pool_clips = UnmaskedPooling(dim)
        self.log_curvature = nn.Parameter(torch.tensor(math.log(curvature)))
        self.text_log_scale = nn.Parameter(torch.tensor(-0.5 * math.log(dim)))
        self.video_log_scale = nn.Parameter(torch.tensor(-0.5 * math.log(dim)))
        self.bounds = (math.log(curvature / 10), math.log(curvature * 10))

    @torch.no_grad()
    def project_bounds(self) -> None:
        """Keep c within its bounds and both scales at most 1, as the released forward does in place."""
        self.log_curvature.clamp_(*self.bounds)
        self.text_log_scale.clamp_(max=0)
        self.video_log_scale.clamp_(max=0)

    @property
    def c(self) -> Scalar:
        """The curvature is -c."""
        return self.log_curvature.exp()

    def lift_text(self, text: Vectors) -> Points:
        """Ambient points of texts, `(*b, d + 1)`."""
        return self._expmap0(text * self.text_log_scale.exp())

    def lift_video(self, video: Vectors) -> Points:
        """Ambient points of pooled videos, or of their clips or frames, `(*b, d + 1)`."""
        return self._expmap0(video * self.video_log_scale.exp())

    def _expmap0(self, x: Tensor) -> Tensor:
        c = self.c
        radius = c.sqrt() * x.norm(dim=-1, keepdim=True)
        return project(torch.sinh(radius.clamp(1e-8, math.asinh(2**15))) * x / radius.clamp_min(1e-8), c)

    def angles(self, video: Points, text: Points) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
        """Exterior angle at the video's apex and half-aperture of its cone, row by row."""
        c, (video_time, text_time) = self.c, (video[..., 0], text[..., 0])
        video, text = video[..., 1:], text[..., 1:]
        inner = c * ((video * text).sum(-1) - video_time * text_time)
        radius = video.norm(dim=-1)
        bottom = radius * (inner * inner - 1).clamp_min(1e-8).sqrt() + 1e-8
        angle = guarded(torch.acos, (text_time + inner * video_time) / bottom)
        aperture = guarded(torch.asin, 2 * self.settings.min_radius / (radius * c.sqrt() + 1e-8))
        return angle, aperture

    def violation(self, video_points: Points, query_points: Points) -> Float[Tensor, " q"]:
        """By how much the exterior angle exceeds the half-aperture, row by row; 0 inside the cone."""
        angle, aperture = self.angles(video_points, query_points)
        return F.relu(angle - aperture)
