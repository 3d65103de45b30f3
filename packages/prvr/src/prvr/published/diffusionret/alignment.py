"""Words compared with frames in both directions (DiffusionRet, eq. 10)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prvr.scoring import best_products, full_precision, unit_rows, weighted_best
from prvr.types import expect_mask


def token_alignment(
    words: Float[Tensor, "q w d"],
    word_mask: Bool[Tensor, "q w"],
    frames: Float[Tensor, "v f d"],
    frame_mask: Bool[Tensor, "v f"],
    word_weights: Float[Tensor, "q w"],
    frame_weights: Float[Tensor, "v f"],
) -> Float[Tensor, "q v"]:
    r"""Weighted best cosines of words over frames and of frames over words (DiffusionRet, eq. 10).

    $s = \frac12 \left(\sum_i g_t^i \max_j a_{ij} + \sum_j g_v^j \max_i a_{ij}\right)$, a the cosines of valid words
    with valid frames. Padding changes nothing, whatever it holds. Pairs are compared a block at a time, so that memory
    beyond the result is bounded, but for what gradients need.

    Args:
        words: `(q, w, d)` word embeddings.
        word_mask: `(q, w)` True = valid.
        frames: `(v, f, d)` frame embeddings.
        frame_mask: `(v, f)` True = valid.
        word_weights: `(q, w)` g_t, of sum one over valid words; see `prvr.models.TokenWeights`.
        frame_weights: `(v, f)` g_v.

    Raises:
        ValueError: a mask that is not boolean, or (on the CPU; elsewhere it scores 0, as asking would
            mean waiting) a query without a valid word or a video without a valid frame.

    Examples:
        >>> words, frames = torch.eye(2)[None], torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
        >>> token_alignment(words, torch.tensor([[True, True]]), frames, torch.tensor([[True, False]]),
        ...     torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]])).item()
        0.75
    """
    expect_mask("frame_mask", frame_mask)
    with full_precision(words.device):
        unit_words = _unit(words, word_mask)
        unit_frames = _unit(frames, frame_mask)
        frame_weights = frame_weights.to(unit_words.dtype).masked_fill(~frame_mask, 0)

        def align(cosine: Tensor, words: slice, videos: slice) -> Tensor:
            best = best_products(cosine.masked_fill(~word_mask[words, :, None, None], -torch.inf), 1)
            return torch.einsum("qvf,vf->qv", best, frame_weights[videos])

        return weighted_best(unit_words, word_mask, word_weights, unit_frames, frame_mask, align) / 2


def _unit(x: Tensor, mask: Tensor) -> Tensor:
    return unit_rows(x.masked_fill(~mask[..., None], 0))
