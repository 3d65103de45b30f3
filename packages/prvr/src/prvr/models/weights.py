"""How much each word and frame counts in `prvr.scoring.token_alignment`."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = ["TokenWeights"]


class TokenWeights(nn.Module):
    """Weights of `prvr.scoring.token_alignment`: g = Softmax(MLP(x)) over valid tokens (DiffusionRet, eq. 10).

    Args:
        width: d of the tokens; the hidden layer has twice that.

    Example:
        >>> weights = TokenWeights(width=4)(torch.randn(2, 3, 4), torch.tensor([[True, True, False]] * 2))
        >>> weights.sum(-1).allclose(torch.ones(2)), weights[:, 2].tolist()
        (True, [0.0, 0.0])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1))

    def forward(self, tokens: Float[Tensor, "b l d"], mask: Bool[Tensor, "b l"]) -> Float[Tensor, "b l"]:
        """Weights of the tokens; `mask` is True at valid ones."""
        logits = self.net(tokens.masked_fill(~mask[..., None], 0)).squeeze(-1)
        return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(~mask, 0)
