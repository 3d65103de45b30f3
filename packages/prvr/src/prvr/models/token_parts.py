"""The parts of a `TokenRetriever`: temporal transformer, token weights, projections and sentence pooling."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


def quick_gelu(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """x sigmoid(1.702 x), the activation of CLIP."""
    return x * torch.sigmoid(1.702 * x)


class TemporalTransformer(nn.Module):
    """Frames with positions through pre-norm layers shaped as CLIP's text layers, added to the frames themselves.

    Positions and what each layer adds start at zero: a new one doubles its frames, so that cosines are those of the
    features until training, or `prvr.models.clip_retriever.start_from_clip`, changes it.

    Args:
        width: d.
        heads: number of heads of the attention.
        layers: how many.
        length: the length of the position table.
        dropout: inside the layers.
        eps: what their norms add to the variance.

    Examples:
        >>> frames, mask = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
        >>> temporal = TemporalTransformer(width=8, heads=2, layers=1, length=6, dropout=0.0)
        >>> torch.equal(temporal(frames, mask), 2 * frames)
        True
    """

    def __init__(self, width: int, heads: int, layers: int, length: int, dropout: float, eps: float = 1e-5) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(_layer(width, heads, dropout, eps) for _ in range(layers))

    def forward(self, frames: Float[Tensor, "v l d"], mask: Bool[Tensor, "v l"]) -> Float[Tensor, "v l d"]:
        """Frames after attending to each other; padded rows become 0, whatever they hold.

        Args:
            frames: `(v, l, d)` frame features, at most as many as there are positions.
            mask: `(v, l)` True = valid.
        """
        frames = frames.masked_fill(~mask[..., None], 0)
        x = frames + self.positions[: frames.shape[1]]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~mask)
        return (frames + x).masked_fill(~mask[..., None], 0)


def _layer(width: int, heads: int, dropout: float, eps: float) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout, quick_gelu, layer_norm_eps=eps, batch_first=True, norm_first=True
    )
    for last in (layer.self_attn.out_proj, layer.linear2):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return layer


class TokenWeights(nn.Module):
    """Weights of `prvr.scoring.token_alignment`: g = Softmax(MLP(x)) over valid tokens (DiffusionRet, eq. 10).

    Args:
        width: d of the tokens.
        hidden: width of the hidden layer; default: twice that of the tokens.

    Examples:
        >>> weights = TokenWeights(width=4)(torch.randn(2, 3, 4), torch.tensor([[True, True, False]] * 2))
        >>> weights.sum(-1).allclose(torch.ones(2)), weights[:, 2].tolist()
        (True, [0.0, 0.0])
    """

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = hidden or 2 * width
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, tokens: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"]) -> Float[Tensor, "b l"]:
        """Weights of the tokens; `mask` is True at valid ones."""
        logits = self.net(tokens.masked_fill(~mask[..., None], 0)).squeeze(-1)
        return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(~mask, 0)


def build_projection(kind: str, width: int, hidden: int) -> nn.Module:
    """CLIP's projections have no bias. A square one starts as the identity, another keeps lengths on average.

    Args:
        kind: "linear", or "none" for the identity.
        width: the width of the features.
        hidden: width of the result.
    """
    if kind == "none":
        return nn.Identity()
    linear = nn.Linear(width, hidden, bias=False)
    if width == hidden:
        nn.init.eye_(linear.weight)
    else:
        nn.init.normal_(linear.weight, std=hidden**-0.5)
    return linear


def weighted_words(
    words: Float[Tensor, "q w d"], mask: Bool[Tensor, "q w"], weights: Float[Tensor, "q w"]
) -> Float[Tensor, "q d"]:
    r"""$\sum_i g_t^i w_i / \lVert w_i \rVert$: times a unit frame it is the weighted mean of the words' cosines.

    Examples:
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
