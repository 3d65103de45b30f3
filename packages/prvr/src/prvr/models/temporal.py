"""The temporal transformer of DiffusionRet: frames look at each other, and stay what they were."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.errors import InputError

__all__ = ["TemporalTransformer", "quick_gelu"]


def quick_gelu(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """x sigmoid(1.702 x), the activation of CLIP."""
    return x * torch.sigmoid(1.702 * x)


class TemporalTransformer(nn.Module):
    """Frames with positions through pre-norm layers shaped as CLIP's text layers, added to the frames themselves.

    Positions and what each layer adds start at zero: a new one doubles its frames, so that cosines are those of the
    features until training, or `prvr.models.clip.start_from_clip`, changes it.

    Args:
        width: d.
        heads: of the attention.
        layers: how many.
        length: of the position table.
        dropout: inside the layers.

    Raises:
        ValueError: (forward) more frames than positions.

    Example:
        >>> frames, mask = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
        >>> temporal = TemporalTransformer(width=8, heads=2, layers=1, length=6, dropout=0.0)
        >>> torch.equal(temporal(frames, mask), 2 * frames)
        True
    """

    def __init__(self, width: int, heads: int, layers: int, length: int, dropout: float) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(_layer(width, heads, dropout) for _ in range(layers))

    def forward(self, frames: Float[Tensor, "v l d"], mask: Bool[Tensor, "v l"]) -> Float[Tensor, "v l d"]:
        """Frames that know of each other; padded rows are 0, whatever they hold.

        Args:
            frames: `(v, l, d)` frame features.
            mask: `(v, l)` True = valid.
        """
        length = frames.shape[1]
        if length > len(self.positions):
            raise InputError(
                f"got {length} frames, this model takes at most {len(self.positions)}: pool them with "
                "prvr.data.segment_mean"
            )
        frames = frames.masked_fill(~mask[..., None], 0)
        x = frames + self.positions[:length]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~mask)
        return (frames + x).masked_fill(~mask[..., None], 0)


def _layer(width: int, heads: int, dropout: float) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout, activation=quick_gelu, batch_first=True, norm_first=True
    )
    for last in (layer.self_attn.out_proj, layer.linear2):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return layer
