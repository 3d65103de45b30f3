"""From a configuration to the parts of a re-ranker: the only place that asks which part is meant.

Released parts are imported where `RerankerCompat` asks for one (`released_part`): all else works without them.
"""

from dataclasses import dataclass

from torch import nn

from prvr.config import released_part
from prvr.errors import InputError
from prvr.stages.diffusion.config import RerankerConfig
from prvr.stages.diffusion.denoiser import CandidateDenoiser
from prvr.stages.diffusion.pooling import TextFrameAttention, TextToVideo, VideoToText
from prvr.stages.diffusion.process import DiffusionProcess, Distribution, OneStepProcess, Output, Process
from prvr.types import Direction


@dataclass(frozen=True)
class RerankerParts:
    """What a re-ranker is made of."""

    view: TextToVideo | VideoToText
    pool: nn.Module
    denoiser: CandidateDenoiser
    output: Output
    process: Process


def build_reranker(config: RerankerConfig, direction: Direction) -> RerankerParts:
    """Build every part, freshly initialised.

    Raises:
        ValueError: an unknown direction.
    """
    views = {"t2v": TextToVideo, "v2t": VideoToText}
    if direction not in views:
        raise InputError(f"direction: got {direction!r}, expected 't2v' (a text, candidate videos) or 'v2t'")
    denoiser, output = _denoiser(config), _output(config)
    process = DiffusionProcess if config.process == "diffusion" else OneStepProcess
    return RerankerParts(views[direction](), _pool(config), denoiser, output, process(denoiser, output, config))


def _pool(config: RerankerConfig) -> nn.Module:
    if config.compat.pooling == "masked":
        return TextFrameAttention(config.attention_temperature)
    return released_part("reranker:ReleasedTextFrameAttention", "compat.pooling='released'")(
        config.attention_temperature
    )


def _denoiser(config: RerankerConfig) -> CandidateDenoiser:
    if config.compat.decoder == "paper":
        return CandidateDenoiser(config.width, config.steps)
    merge = nn.Linear(config.width, config.width)
    finish = released_part("reranker:with_weights", "compat.decoder='released'")
    return CandidateDenoiser(config.width, config.steps, merge=merge, finish=finish)


def _output(config: RerankerConfig) -> Output:
    if config.compat.output == "distribution":
        return Distribution(config.loss_temperature)
    scores = released_part("reranker:ReleasedScores", "compat.output='released'")
    return scores(float(config.negative), config.score_temperature)
