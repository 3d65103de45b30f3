"""Contrastive learning with entailment: pairs near each other, and the specific in the cone of the general."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor, nn

from lorentz import functional as lf
from lorentz._precision import at_least_float32
from lorentz._validation import check_positive, described, vectors

from ._layer import OnHyperboloid
from .curvature import Curvature

# CLIP never multiplies its logits by more than 100: a smaller temperature makes training unstable.
_LEAST_TEMPERATURE = 0.01


class ContrastiveLosses(NamedTuple):
    """The terms of `LorentzContrastiveLoss`: total = contrastive + entailment_weight * entailment."""

    total: Float[Tensor, ""]
    contrastive: Float[Tensor, ""]
    entailment: Float[Tensor, ""]


class LorentzContrastiveLoss(OnHyperboloid):
    """Contrastive and entailment loss of two sets of Euclidean features (MERU: Desai et al. 2023; HLFormer eq. 18-20).

    Features are lifted to points, x = expmap0(scale * features) with a learned scale in (0, 1) for each set. The
    contrastive loss is CLIP's on negative distances: the mean of the two cross-entropies of -dist(x, y)/temperature,
    of the general given the specific and the other way round. The entailment loss is the mean of
    max(0, exterior angle at x - half aperture of x) over the pairs: the specific y should lie in the cone of the
    general x, which draws the general to the origin. MERU takes captions as the general and images as the specific;
    HLFormer videos and queries. Evaluate with `general` and `specific`, which lift, and `lorentz.pairwise_dist`.

    Args:
        embed_dim: length d of the features; the scales start at 1/sqrt(d), as suits features of length sqrt(d).
        c: curvature -c, a number or a `Curvature`, which an embedding or layers may share.
        temperature: initial temperature > 0.01; it is learned and stays above 0.01, CLIP's bound.
        entailment_weight: weight of the entailment loss.
        min_radius: K of `lorentz.half_aperture`.

    Raises:
        ValueError: `embed_dim` < 2, `temperature` <= 0.01, `entailment_weight` < 0 or `min_radius` <= 0; at the call,
            features that do not fit.
        TypeError: at the call, features that are no floating-point tensors, or a `general_of` of another
            dtype or shape than integers (s,).

    Examples:
        >>> from lorentz.nn import Curvature
        >>> loss = LorentzContrastiveLoss(16, c=Curvature(1.0))
        >>> captions, images = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(captions, images).total.backward()
        >>> loss(torch.randn(3, 16), images, torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])).contrastive.shape
        torch.Size([])
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        c: float | Curvature = 1.0,
        temperature: float = 0.07,
        entailment_weight: float = 0.2,
        min_radius: float = 0.1,
    ) -> None:
        super().__init__(c)
        if embed_dim < 2:
            raise ValueError(f"embed_dim: got {embed_dim}, expected at least 2: cones are made of angles")
        if not _LEAST_TEMPERATURE < temperature < math.inf:
            raise ValueError(f"temperature: got {temperature}, expected more than {_LEAST_TEMPERATURE}")
        if not 0.0 <= entailment_weight < math.inf:
            raise ValueError(f"entailment_weight: got {entailment_weight}, expected a finite number >= 0")
        check_positive("min_radius", min_radius, "cones are wider than a right angle below it")
        self.embed_dim, self.entailment_weight, self.min_radius = embed_dim, entailment_weight, min_radius
        start = -math.log(math.sqrt(embed_dim) - 1.0)  # the logit of 1/sqrt(d)
        self.general_scale, self.specific_scale = (nn.Parameter(torch.tensor(start)) for _ in range(2))
        self.raw_temperature = nn.Parameter(torch.tensor(math.log(math.expm1(temperature - _LEAST_TEMPERATURE))))

    @property
    def temperature(self) -> Float[Tensor, ""]:
        """The current temperature."""
        return _LEAST_TEMPERATURE + F.softplus(_wide(self.raw_temperature))

    def general(self, features: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d+1"]:
        """Lift features of the general to points."""
        return self._lift("general", features, self.general_scale)

    def specific(self, features: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d+1"]:
        """Lift features of the specific to points."""
        return self._lift("specific", features, self.specific_scale)

    def _lift(self, name: str, features: Tensor, scale: Tensor) -> Tensor:
        vectors(1, 1, **{name: features})
        if features.shape[-1] != self.embed_dim:
            raise ValueError(
                f"{name}: got shape {tuple(features.shape)}, expected a last axis of length {self.embed_dim}"
            )
        # Loss and distances are float32 at least: half precision would round the angles away.
        return lf.expmap0(_wide(features) * torch.sigmoid(_wide(scale)), self.c)

    def forward(
        self,
        general: Float[Tensor, "g d"],
        specific: Float[Tensor, "s d"],
        general_of: Integer[Tensor, "s"] | None = None,
    ) -> ContrastiveLosses:
        """Compute the losses.

        Args:
            general: features of the general: captions, labels, videos.
            specific: features of the specific: images, queries.
            general_of: which general (its row) each specific belongs to; None: the one in the same row. The loss of the
                specific given a general is the mean over those that belong to it; a general without any has none.
        """
        x, y = self.general(general), self.specific(specific)
        if general_of is None:
            if x.shape != y.shape:
                raise ValueError(
                    f"specific: got shape {tuple(specific.shape)}, expected that of general, {tuple(general.shape)}; "
                    "pass general_of, the row of general that each belongs to"
                )
            general_of = torch.arange(len(y), device=y.device)
        elif general_of.is_floating_point() or general_of.dtype == torch.bool or general_of.shape != y.shape[:1]:
            raise TypeError(
                f"general_of: got {described(general_of)}, expected integers of shape {tuple(y.shape[:1])}, the row of "
                "general for each specific"
            )
        general_of = general_of.long()  # a uint8 tensor as an index is a mask
        logits = -lf.pairwise_dist(x, y, self.c) / self.temperature
        of_general = F.cross_entropy(logits.mT, general_of)
        belongs = general_of == torch.arange(len(x), device=x.device)[:, None]
        counts = belongs.sum(-1)
        each = -(logits.log_softmax(-1) * belongs).sum(-1) / counts.clamp_min(1)
        of_specific = each.sum() / (counts > 0).sum().clamp_min(1)
        contrastive = 0.5 * (of_general + of_specific)
        entailment = lf.entailment_violation(x[general_of], y, self.c, self.min_radius).mean()
        return ContrastiveLosses(contrastive + self.entailment_weight * entailment, contrastive, entailment)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.embed_dim}, entailment_weight={self.entailment_weight}, min_radius={self.min_radius}"


def _wide(x: Tensor) -> Tensor:
    return x.to(at_least_float32(x.dtype))
