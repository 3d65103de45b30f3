"""The parts of the released DiffusionRet that differ from its paper."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from prvr.published.diffusionret import token_retriever as tokens
from prvr.published.diffusionret.network import (
    CandidateDenoiser,
    FrameMask,
    Frames,
    Output,
    TextFrameAttention,
    Vectors,
)
from prvr.published.diffusionret.run_config import RerankerConfig
from regdiff.masks import masked


def released_token_alignment(
    words: tokens.Words,
    word_mask: tokens.WordMask,
    frames: tokens.Frames,
    frame_mask: tokens.FrameMask,
    word_weights: tokens.WordWeights,
    frame_weights: tokens.FrameWeights,
) -> Float[Tensor, "q v"]:
    """`token_alignment` with padding as zero vectors, which take part in the maxima with a cosine of 0."""
    return tokens.token_alignment(
        masked(words, word_mask),
        torch.ones_like(word_mask),
        masked(frames, frame_mask),
        torch.ones_like(frame_mask),
        masked(word_weights, word_mask),
        masked(frame_weights, frame_mask),
    )


class ReleasedTextFrameAttention(TextFrameAttention):
    """Eq. 4 with the mask after the softmax: the weight of padded frames is lost."""

    def weights(self, text: Vectors, frames: Frames, frame_mask: FrameMask) -> Float[Tensor, "b m f"]:
        """Weights of the frames for each text; they add up to less than one if frames are padded."""
        return (text @ frames.mT / self.temperature).softmax(-1).masked_fill(~frame_mask[:, None], 0)


def released_denoiser(width: int, steps: int) -> CandidateDenoiser:
    """A denoiser with a map after the attention, and the attention weights added to the output: neither is in eq. 6."""
    merge = nn.Linear(width, width)
    return CandidateDenoiser(width, steps, merge=merge, finish=torch.add)


def released_scores(config: RerankerConfig) -> Output:
    """x_0 is 1 for relevant candidates and `negative` for others; its prediction is the decoder's output unchanged.

    Args:
        config: `negative` is x_0 of irrelevant candidates; `score_temperature` is a factor of a generated x_0 before
            the softmax that is added to the score.
    """

    return Output(
        clean=lambda scores: scores,
        target=lambda positives: torch.where(positives, 1.0, float(config.negative)),
        probability=lambda sample: (config.score_temperature * sample).softmax(-1),
    )
