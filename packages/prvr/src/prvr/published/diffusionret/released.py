"""The parts of the released DiffusionRet denoiser that differ from its paper, and the names of its weights."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.network import CandidateDenoiser, TextFrameAttention
from prvr.published.diffusionret.process import Output
from prvr.published.diffusionret.run_config import RerankerCompat, RerankerConfig
from prvr.published.diffusionret.token_retriever import token_alignment
from prvr.published.loading import CheckpointError, fill, key_table
from prvr.published.tensor_names import name_table, renamed
from prvr.types import Direction

_NAMES = name_table(
    """
    query       q_proj
    key         k_proj
    value       v_proj
    merge       proj
    time_in     embed_timestep.time_embed.0
    time_out    embed_timestep.time_embed.2
    decoder_in  decoder.0
    decoder_out decoder.2
    """
)
"""Our parts of a denoiser, and theirs."""
_KEYS = key_table(
    """
    diffusion_steps steps
    -               spacing               "linspace"
    noise_schedule  schedule              "cosine"
    temp            attention_temperature 1.0
    d_temp          loss_temperature      100.0
    *_num           candidates            32
    *_alpha         weight                1.0
    *_temp          score_temperature     1.0
    """
)
"""Keys of the configuration, with the defaults of the published options; * is the direction."""


def released_token_alignment(
    words: Float[Tensor, "q w d"],
    word_mask: Bool[Tensor, "q w"],
    frames: Float[Tensor, "v f d"],
    frame_mask: Bool[Tensor, "v f"],
    word_weights: Float[Tensor, "q w"],
    frame_weights: Float[Tensor, "v f"],
) -> Float[Tensor, "q v"]:
    """`token_alignment` with padding as zero vectors, which take part in the maxima with a cosine of 0."""
    return token_alignment(
        words.masked_fill(~word_mask[..., None], 0),
        torch.ones_like(word_mask),
        frames.masked_fill(~frame_mask[..., None], 0),
        torch.ones_like(frame_mask),
        word_weights.masked_fill(~word_mask, 0),
        frame_weights.masked_fill(~frame_mask, 0),
    )


class ReleasedTextFrameAttention(TextFrameAttention):
    """Eq. 4 with the mask after the softmax: the weight of padded frames is lost."""

    def weights(
        self, text: Float[Tensor, "b m d"], frames: Float[Tensor, "b f d"], frame_mask: Bool[Tensor, "b f"]
    ) -> Float[Tensor, "b m f"]:
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

    def target(positives: Tensor) -> Tensor:
        right = torch.ones((), dtype=torch.get_default_dtype(), device=positives.device)
        return torch.where(positives, right, float(config.negative))

    return Output(lambda scores: scores, target, lambda sample: (config.score_temperature * sample).softmax(-1))


def load_released_reranker(
    state_dict: Mapping[str, Tensor],
    config: Mapping[str, Any],
    direction: Direction = "t2v",
    trained_on: str | None = None,
) -> CandidateReranker:
    """A re-ranker from the authors' tensors and options, with the behaviour of the released code.

    Args:
        state_dict: tensors (or arrays) by the authors' names, with or without a prefix such as `t2v.`; of several
            denoisers, the one whose prefix names the direction is read.
        config: the authors' options by their names: `diffusion_steps` and, where they are not the published ones,
            `noise_schedule`, `temp`, `d_temp`, `neg`, and `t2v_num`, `t2v_alpha`, `t2v_temp` or the same of v2t.
        direction: "t2v" or "v2t".
        trained_on: the fingerprint of the retriever that it was trained over.

    Returns:
        In eval mode and in the checkpoint's precision.

    Raises:
        CheckpointError: no denoiser, several, or a tensor missing, unknown or of another shape; or an option is
            missing.
    """
    marker, other = f"{_NAMES['query']}.weight", "v2t" if direction == "t2v" else "t2v"
    prefixes = [key.removesuffix(marker) for key in state_dict if key.endswith(marker)]
    matches = [p for p in prefixes if direction in p] or [p for p in prefixes if other not in p]
    if len(matches) != 1:
        names = ", ".join(repr(prefix + marker) for prefix in prefixes) or "none"
        raise CheckpointError(
            f"the weights of the {direction} denoiser: expected one tensor named {marker!r} (after a prefix that "
            f"names {direction!r}, if there are several), found {names}"
        )
    own = {
        key.removeprefix(matches[0]): torch.as_tensor(value)
        for key, value in state_dict.items()
        if key.startswith(matches[0]) and not key.endswith(".pe")  # a constant table
    }
    options = {ours: config.get(theirs.replace("*", direction), default) for ours, (theirs, default) in _KEYS.items()}
    if options["steps"] is ...:
        raise CheckpointError(
            "the configuration lacks 'diffusion_steps', the number of trained steps; it has: "
            f"{', '.join(sorted(config)) or 'nothing'}"
        )
    width = own[marker].shape[-1]
    if config.get("width", width) != width:
        raise CheckpointError(f"the configuration has width={config['width']}, the weights have {width}")
    options |= {"width": width, "negative": -1 if config.get("neg") else 0, "trained_on": trained_on}
    compat = RerankerCompat(pooling="released", decoder="released", output="released")
    reranker = CandidateReranker(RerankerConfig(compat=compat, **options), direction).to(own[marker].dtype).eval()
    fill(renamed(reranker.denoiser.state_dict(), _NAMES), own, "one of the DiffusionRet denoiser")
    return reranker
