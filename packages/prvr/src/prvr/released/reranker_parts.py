"""Registers the released parts of the re-ranker of DiffusionRet."""

from prvr.stages.diffusion.config import COMPAT

COMPAT["pooling"].register(
    "released",
    "prvr.released.denoiser:ReleasedTextFrameAttention",
    "Padded frames take part in the softmax of eq. 4 and are then set to zero: weights add up to less than one.",
)
COMPAT["decoder"].register(
    "released",
    "prvr.released.denoiser:released_denoiser",
    "One more linear map after the attention, and the attention weights added to the output: neither is in eq. 6.",
)
COMPAT["output"].register(
    "released",
    "prvr.released.denoiser:ReleasedScores",
    "The prediction of x_0 has no bounds; the softmax is in the loss, and again in the combined score.",
)
