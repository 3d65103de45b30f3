"""Parts of HLFormer beside its blocks: the entailment cones, and what it prints and does not use.

The cone of a video, pooled, should hold its queries. The Gaussian window of eq. 10 to the letter and the fusion beside
its own are those of the paper alone.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

import lorentz
from prvr.config import COMPAT, AnyModelConfig, ModelConfig
from prvr.losses.term import LossInputs, Scalar, Term
from prvr.models.blocks import GaussianWindows
from prvr.models.layers import AttentionPooling, initialise
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


def printed_window(length: int, width: float | None) -> Float[Tensor, "l l"]:
    r"""Window $G_{ij} = \frac{1}{2\pi} \exp(-(j - i)^2 / \sigma^2)$ on positions, as printed in HLFormer eq. 10.

    Args:
        length: number of positions.
        width: sigma, in positions; None is infinite and gives 1 / 2 pi everywhere.

    Returns:
        The window in float64.

    Examples:
        >>> (printed_window(3, 2.0)[0] * 2 * torch.pi).log()
        tensor([ 0.0000, -0.2500, -1.0000], dtype=torch.float64)
    """
    position = torch.arange(length, dtype=torch.float64)
    sigma = torch.inf if width is None else width
    return torch.exp(-(((position[None] - position[:, None]) / sigma) ** 2)) / (2 * torch.pi)


def printed_windows(model: ModelConfig, widths: Sequence[float | None], length: int) -> GaussianWindows:
    """`printed_window` of each block."""
    return GaussianWindows(widths, length, model.window == "add", printed_window)


class ConcatFusion(nn.Module):
    """One linear map of the concatenated blocks (the "CL" row of HLFormer's table 2)."""

    def __init__(self, model: ModelConfig, length: int) -> None:
        super().__init__()
        self.linear = nn.Linear(len(model.blocks) * model.hidden, model.hidden)
        initialise(self.linear)

    def forward(
        self, blocks: Float[Tensor, "k v l d"], mask: Bool[Tensor, "v l"] | None = None
    ) -> Float[Tensor, "v l d"]:
        """A linear map of the blocks `(k, v, l, d)`, joined along the width; the mask is not read."""
        return self.linear(blocks.permute(1, 2, 0, 3).flatten(-2))
