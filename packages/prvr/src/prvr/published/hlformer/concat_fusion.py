"""The fusion beside which HLFormer's table 2 sets its own."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.config import ModelConfig
from prvr.models.layers import initialise


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
