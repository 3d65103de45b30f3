"""What HLFormer's code has in place of its paper's: Lorentz attention, all blocks of a stack at once (golden numbers,
section 2), and partial order preservation with its guards and bounds.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lorentz import project
from prvr.config import ModelConfig
from prvr.losses.term import Scalar, Term
from prvr.models.blocks import RegisterTokens, Window, key_mask, windowed
from prvr.models.layers import Dropout, StackedLinear
from prvr.models.rows import Sequences, Tokens
from prvr.published.gmmformer.released_padding import UnmaskedPooling
from prvr.published.hlformer import EntailmentSettings
from prvr.published.hlformer.lorentz_mixer import StackedProjection, join_registers
from prvr.published.hlformer.parts import Entailment, Points, Vectors
from prvr.scoring import at_least_float32, full_precision


def guarded_sqrt(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """sqrt(max(x, 1e-9)); below the bound a share of 1e-8 of the gradient still passes."""
    below = x < 1e-9
    return (x.clamp_min(1e-9) + 1e-8 * (x - x.detach()) * below).sqrt()


class ReleasedLorentzMixer(nn.Module):
    """K Lorentz attentions as released: curvature fixed at -1, scale e^a with a <= 0 kept by projection.

    Linear maps act on ambient coordinates without bias; each head's time is sigmoid(y_0) e^s + 1.1 and its space part
    is rescaled to match. The window multiplies logits that are never positive, bias included. Heads are joined by
    plain concatenation, and logmap0 takes head 0's time for the time of the whole. Dropout acts on the input of the
    linear maps, never on attention weights: dropping every key of a short video would leave the manifold.

    Args:
        model: widths, heads and dropout.
        num: blocks K.
    """

    def __init__(self, model: ModelConfig, num: int) -> None:
        super().__init__()
        dim, lorentz_dim, dropout = model.hidden, model.lorentz_dim, model.dropout
        self.heads = model.heads
        self.stacked_dims = 1
        self.enter = StackedProjection(num, dim, lorentz_dim, dropout)
        self.linear = StackedLinear((num, 3), lorentz_dim + 1, lorentz_dim + 1, bias=False)
        self.linear_scale: Any = nn.ParameterDict({"value": torch.full((num, 3), math.log(10))})
        self.linear_scale.stacked_dims = 2
        self.log_scale = nn.Parameter(torch.full((num,), -0.5 * math.log(lorentz_dim)))
        self.temperature = nn.Parameter(torch.full((num, 1), math.sqrt(lorentz_dim + 1)))
        self.bias = nn.Parameter(torch.zeros(num))
        self.leave = StackedProjection(num, lorentz_dim, dim, dropout)
        self.dropout = Dropout(dropout)

    @torch.no_grad()
    def project_bounds(self) -> None:
        """Keep a <= 0, as the released forward does in place."""
        self.log_scale.clamp_(max=0)

    @property
    def _scales(self) -> Float[Tensor, "k 1 1 1"]:
        return self.log_scale.exp()[:, None, None, None]

    def _heads(
        self, x: Tokens, sequences: Sequences, registers: RegisterTokens
    ) -> Sequence[Float[Tensor, "k v h l e"]]:
        """Queries, keys and values in each head."""
        tokens, extra = join_registers(x, registers)
        u = self.enter(tokens.expand(len(self.log_scale), *tokens.shape)) * self._scales
        radius = guarded_sqrt((u * u).sum(-1, keepdim=True))
        points = project(torch.sinh(radius.clamp_max(10)) * u / radius)
        mapped = torch.einsum("kvln,kpon->kpvlo", self.dropout(points), self.linear.weight)
        mapped = sequences.pad(mapped, extra).unflatten(-1, (self.heads, -1)).transpose(3, 4)
        gain = self.linear_scale["value"].exp()[:, :, None, None, None, None]
        time = torch.sigmoid(mapped[..., :1]) * gain + 1.1
        space = mapped[..., 1:]
        length = (space * space).sum(-1, keepdim=True).clamp_min(1e-8)
        heads = torch.cat([time, space * ((time * time - 1) / length).sqrt()], -1)
        key, value, query = heads.unbind(1)
        return query[..., : sequences.length, :], key, value

    def _logits(self, query: Tensor, key: Tensor) -> Float[Tensor, "k v h l s"]:
        flipped = torch.cat([-query[..., :1], query[..., 1:]], -1)
        # (2 + 2 <q, k>) / scale + bias, with scale and constant folded into the matrix product.
        gain = 2 / self.temperature[:, :, None, None, None]
        constant = (gain + self.bias[:, None, None, None, None]).expand(*query.shape[:3], 1, 1)
        logits = torch.baddbmm(constant.flatten(0, 2), (flipped * gain).flatten(0, 2), key.flatten(0, 2).mT)
        return logits.unflatten(0, query.shape[:3])

    def content_logits(self, x: Tokens, sequences: Sequences, registers: RegisterTokens) -> Float[Tensor, "k v h l s"]:
        """The logits before the window; see `prvr.models.blocks.Mixer`."""
        query, key, _ = self._heads(x, sequences, registers)
        return self._logits(query, key)

    def context(
        self, x: Tokens, sequences: Sequences, window: Window, registers: RegisterTokens
    ) -> Float[Tensor, "k b m a"]:
        """Aggregated values with the heads concatenated."""
        extra = 0 if registers is None else registers.shape[1]
        query, key, value = self._heads(x, sequences, registers)
        logits = windowed(self._logits(query, key), window, key_mask(sequences.mask, extra), extra)
        mean = logits.softmax(-1) @ value
        squares = mean * mean
        inner = squares[..., 1:].sum(-1, keepdim=True) - squares[..., :1]  # <mean, mean>_L
        mean = mean / inner.abs().clamp_min(1e-8).sqrt()
        return sequences.pack(mean.transpose(2, 3).flatten(-2))

    def forward(
        self, x: Tokens, sequences: Sequences, window: Window, registers: RegisterTokens
    ) -> Float[Tensor, "k b m d"]:
        """The attention of every block; see `prvr.models.blocks.Mixer`."""
        # These formulas lose everything in bf16: autocast stays outside.
        with full_precision(x.device):
            registers = None if registers is None else at_least_float32(registers)
            joined = self.context(at_least_float32(x), sequences, window, registers)
            time = joined[..., :1]
            bounded = time.clamp_min(1 + 1e-8)
            distance = (bounded + guarded_sqrt(bounded * bounded - 1)).log()  # acosh, guarded
            tangent = distance / (time * time - 1).sqrt() * joined[..., 1:]
            return self.leave(tangent / self._scales)


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
        return (angle - aperture).relu()
