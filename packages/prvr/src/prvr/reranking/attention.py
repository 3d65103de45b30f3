"""The text-frame attention encoder: a video as a text sees it."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

__all__ = ["TextFrameAttention"]


class TextFrameAttention(nn.Module):
    r"""One vector of a video's frames for each text, C_v = Softmax(C_t F^T / tau') F (DiffusionRet, eq. 4).

    It has no parameters. Padded frames are left out before the softmax and may hold anything; a video without a valid
    frame gives zeros.

    Args:
        temperature: tau'; the smaller, the more the text chooses.

    Example:
        >>> import torch
        >>> frames = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
        >>> mask = torch.tensor([[True, True, False]])
        >>> TextFrameAttention(temperature=0.5)(torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), frames, mask)
        tensor([[[0.9820, 0.0180],
                 [0.5000, 0.5000]]])
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def weights(
        self, text: Float[Tensor, "b m d"], frames: Float[Tensor, "b f d"], frame_mask: Bool[Tensor, "b f"]
    ) -> Float[Tensor, "b m f"]:
        """How much of each frame each text takes: the attention map of figure B."""
        return self._weights(text, _blank(frames, frame_mask), frame_mask)

    def _weights(self, text: Tensor, frames: Tensor, frame_mask: Tensor) -> Tensor:
        logits = text @ frames.mT / self.temperature
        # Not -inf: a video without a valid frame would have a gradient of NaN.
        lowest = torch.finfo(logits.dtype).min
        return logits.masked_fill(~frame_mask[:, None], lowest).softmax(-1).masked_fill(~frame_mask[:, None], 0)

    def forward(
        self, text: Float[Tensor, "b m d"], frames: Float[Tensor, "b f d"], frame_mask: Bool[Tensor, "b f"]
    ) -> Float[Tensor, "b m d"]:
        """Pool the frames of b videos, each for its own m texts.

        Args:
            text: `(b, m, d)` text embeddings.
            frames: `(b, f, d)` frame embeddings.
            frame_mask: `(b, f)` True = valid.
        """
        frames = _blank(frames, frame_mask)
        return self._weights(text, frames, frame_mask) @ frames

    def extra_repr(self) -> str:
        """Shown in the module's repr."""
        return f"temperature={self.temperature}"


def _blank(frames: Tensor, frame_mask: Tensor) -> Tensor:
    """Zeros in place of padding: a weight of 0 does not silence a NaN."""
    return frames.masked_fill(~frame_mask[..., None], 0)
