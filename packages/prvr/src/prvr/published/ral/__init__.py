"""RAL (EMNLP 2025 Findings, arXiv 2509.01383): videos and texts as Gaussians.

It weighs words by their confidence, as Holmes does, see `frame_query`. Presets: `ral-*`.
"""

from typing import Literal

from pydantic import Field

from prvr.config.losses import LossSettings, register_loss
from prvr.config.strict import Weight, record


@register_loss(
    "proxy",
    "prvr.published.ral.proxies:Proxies",
    "Samples of videos and texts as Gaussians match (RAL).",
    "words",
    "frames",
)
@record
class ProxySettings(LossSettings):
    """Videos, and the words of all their queries, as Gaussians, whose samples should match (RAL)."""

    samples: int = Field(default=6, ge=1, le=1024)
    """K: samples of each Gaussian."""
    alignment: Weight = 0.0625
    """Weight of the divergences of the Gaussians, as a multiple of `weight`."""
    form: Literal["gaussian", "released"] = "gaussian"
    """gaussian: divergences of the Gaussians that are sampled. released: as the released code, of Gaussians around the
    mean of the samples, and of variance sigma in place of sigma squared where they are compared with N(0, I)."""
