"""From a configuration to the parts of a `TokenRetriever`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import TokenModelConfig
from prvr.models.temporal import TemporalTransformer
from prvr.models.weights import TokenWeights
from prvr.scoring import token_alignment

__all__ = ["TokenParts", "build_token_parts", "last_word", "weighted_words"]

Pool = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TokenParts:
    """What a token retriever is made of."""

    project_words: nn.Module
    project_frames: nn.Module
    read_words: TemporalTransformer | None
    temporal: TemporalTransformer
    weigh_words: TokenWeights
    weigh_frames: TokenWeights
    pool: Pool
    align: Callable[..., Tensor]


def build_token_parts(config: TokenModelConfig) -> TokenParts:
    """Build every part, freshly initialised."""
    return TokenParts(
        project_words=_projection(config.word_projection, config.query_dim, config.hidden),
        project_frames=_projection(config.frame_projection, config.video_dim, config.hidden),
        read_words=_layers(config, config.word_depth, config.max_words) if config.word_depth else None,
        temporal=_layers(config, config.depth, config.max_frames),
        weigh_words=TokenWeights(config.hidden),
        weigh_frames=TokenWeights(config.hidden),
        pool=weighted_words if config.sentence == "weighted" else last_word,
        align=_alignment(config),
    )


def _layers(config: TokenModelConfig, depth: int, length: int) -> TemporalTransformer:
    return TemporalTransformer(config.hidden, config.heads, depth, length, config.dropout)


def _projection(kind: str, width: int, hidden: int) -> nn.Module:
    """CLIP's projections have no bias. A square one starts as the identity, another keeps lengths on average."""
    if kind == "none":
        return nn.Identity()
    linear = nn.Linear(width, hidden, bias=False)
    if width == hidden:
        nn.init.eye_(linear.weight)
    else:
        nn.init.normal_(linear.weight, std=hidden**-0.5)
    return linear


def _alignment(config: TokenModelConfig) -> Callable[..., Tensor]:
    if config.compat.alignment == "masked":
        return token_alignment
    from prvr.released.reranker import released_token_alignment

    return released_token_alignment


def weighted_words(
    words: Float[Tensor, "q w d"], mask: Bool[Tensor, "q w"], weights: Float[Tensor, "q w"]
) -> Float[Tensor, "q d"]:
    r"""$\sum_i g_t^i w_i / \lVert w_i \rVert$: times a unit frame it is the weighted mean of the words' cosines.

    Example:
        >>> words, mask = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]]), torch.tensor([[True, True]])
        >>> weighted_words(words, mask, torch.tensor([[0.25, 0.75]])).tolist()
        [[0.25, 0.75]]
    """
    return torch.einsum("qw,qwd->qd", weights.masked_fill(~mask, 0).to(words.dtype), F.normalize(words, dim=-1))


def last_word(
    words: Float[Tensor, "q w d"], mask: Bool[Tensor, "q w"], weights: Float[Tensor, "q w"]
) -> Float[Tensor, "q d"]:
    """The last valid word of each query."""
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask).masked_fill(~mask, -1)
    at = places.amax(1).clamp_min(0)
    return words.gather(1, at[:, None, None].expand(-1, 1, words.shape[2]))[:, 0]
