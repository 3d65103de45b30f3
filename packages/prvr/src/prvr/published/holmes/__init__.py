"""Holmes (ICML 2026, arXiv 2605.06083): scores as evidence, and optimal transport within a video.

Presets: `holmes-*`.
"""

from typing import Annotated, Literal

from pydantic import Field

from prvr.config import COMPAT
from prvr.config.losses import LossSettings, register_loss
from prvr.config.strict import Share, record

COMPAT["transport"].register(
    "masked", "prvr.published.holmes.transport:MASKED", "Similarities of a video's own queries alone."
)
COMPAT["transport"].register(
    "released",
    "prvr.published.holmes.released_transport:TRANSPORT",
    "Queries are padded to the most of any video, and the cosine 0 of padding enters the range of scales (Holmes).",
)


Temperature = Annotated[float, Field(ge=0.02, le=1e6)]


@register_loss(
    "evidence", "prvr.published.holmes.evidence:Evidence", "Scores as evidence for videos (Holmes).", "pooled"
)
@record
class EvidenceSettings(LossSettings):
    """Scores as evidence for the videos of a batch: each branch and their fusion (Holmes)."""

    temperature: Temperature = 0.05
    """tau of exp(tanh(score) / tau). Below 0.02 float32 does not hold fused evidence."""
    relabelling: Literal["doubtful", "none"] = "doubtful"
    """doubtful: after the warm-up (`train.warm_up_epochs`), the targets of queries that the branches do not identify
    clearly are mixed with what the scores say; none: targets are the videos of the queries."""
    division: Share = 0.3
    """beta: bounds of the thresholds of relabelling, uncertainty at most 1 - beta and score at least beta."""
    smoothing: Share = 0.2
    """Share of the scores' softmax in the target of a relabelled query."""


@register_loss(
    "dissent",
    "prvr.published.holmes.evidence:Dissent",
    "Agreement of certain branches (Holmes).",
    "pooled",
    "clips",
    "frames",
)
@record
class DissentSettings(LossSettings):
    """Draws the probabilities of both branches together where both are certain (Holmes)."""

    temperature: Temperature = 0.05
    """As that of `evidence`."""


@register_loss(
    "transport",
    "prvr.published.holmes.transport:Transport",
    "Each query has its own clips (Holmes).",
    "pooled",
    "clips",
)
@record
class TransportSettings(LossSettings):
    """Each query should find its own clips of its video (Holmes); off in the warm-up, `train.warm_up_epochs`."""

    temperature: Temperature = 0.06
    """tau of exp(tanh(similarity) / tau)."""
    targets: Literal["transport", "softmax"] = "transport"
    """transport: optimal transport between the queries of a video and its clips, which have equal masses; softmax: each
    query alone, softmax(similarity / epsilon)."""
    epsilon: float = Field(default=0.1, ge=1e-3, le=1e6)
    """Entropic regularisation of the transport, or temperature of the softmax."""
