"""The authors' numbers of DiffusionRet, and its equations again as plain loops over rows, candidates and frames."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prvr import load_released_reranker
from prvr.evaluation import EvaluationConfig
from prvr.stages import (
    CandidateReranker,
    DiffusionSettings,
    DiffusionStage,
    Direction,
    Pipeline,
    RerankerCompat,
    RerankerConfig,
)

PLAIN = EvaluationConfig(bootstrap=0)

FIXTURE = Path(__file__).parents[1] / "fixtures" / "prvr_diffusionret.npz"


class Golden:
    """The authors' numbers of their denoiser of videos to texts."""

    def __init__(self) -> None:
        with np.load(FIXTURE) as file:
            stored = dict(file)
        # Many small arrays in one of each type: a third of the size.
        used, self.arrays = dict.fromkeys(stored, 0), {}
        for name, entry in json.loads(str(stored["index"])).items():
            if isinstance(entry, dict):
                self.arrays[name] = entry
                continue
            kind, shape = entry
            first = used[kind]
            used[kind] += math.prod(shape)
            self.arrays[name] = stored[kind][first : used[kind]].reshape(shape)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        value = torch.from_numpy(np.array(self.arrays[name]))
        return value if dtype is None else value.to(dtype)

    @property
    def state(self) -> dict[str, Tensor]:
        return {name.removeprefix("sd/"): self.tensor(name) for name in self.arrays if name.startswith("sd/")}

    def reranker(self, dtype: torch.dtype) -> CandidateReranker:
        options = {**self.arrays["config"], **self.arrays["rerank/config"]}
        return load_released_reranker(self.state, options, "v2t").to(dtype)

    def inputs(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        text, frames = (self.tensor(f"in/v2t_{name}", dtype) for name in ("text_emb", "video_emb"))
        return text, frames, self.tensor("in/v2t_video_mask") > 0


GOLDEN = Golden()


WIDTH, FRAMES, NUM, ROWS, STEPS = 12, 5, 6, 3, 10
RELEASED = RerankerCompat(pooling="released", decoder="released", output="released")


def config(**changes) -> RerankerConfig:
    return RerankerConfig(width=WIDTH, **{"steps": STEPS, "candidates": 4} | changes)


def make(direction="t2v", **changes) -> CandidateReranker:
    return CandidateReranker(config(**changes), direction).double().eval()


def pairs(direction: str, rows: int = ROWS, num: int = NUM) -> tuple[Tensor, Tensor, Tensor]:
    """Text, frames and their mask; valid frames need not come first."""
    texts, videos = ((rows,), (rows, num)) if direction == "t2v" else ((rows, num), (rows,))
    mask = torch.rand(*videos, FRAMES) < 0.6
    mask[..., 1] = True
    return torch.randn(*texts, WIDTH).double(), torch.randn(*videos, FRAMES, WIDTH).double(), mask


def gallery(texts: int = 7, videos: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores (texts, videos), text, frames and mask."""
    text, frames, mask = torch.randn(texts, WIDTH).double(), torch.randn(videos, FRAMES, WIDTH).double(), None
    mask = torch.arange(FRAMES) < torch.randint(1, FRAMES + 1, (videos, 1))
    return torch.rand(texts, videos).double(), text, frames, mask


def time_code(step: int, width: int) -> Tensor:
    pairs = [
        (math.sin(step * 10000 ** (-i / width)), math.cos(step * 10000 ** (-i / width))) for i in range(0, width, 2)
    ]
    return torch.tensor(pairs, dtype=torch.float64).flatten()[:width]


def pooled(config: RerankerConfig, text: Tensor, frames: Tensor, mask: Tensor) -> Tensor:
    """Eq. 4 for one text and one video."""
    logits = [float(text @ frame) / config.attention_temperature for frame in frames]
    released = config.compat.pooling == "released"
    total = sum(math.exp(logit) for logit, valid in zip(logits, mask, strict=True) if released or valid)
    result = torch.zeros_like(text)
    for logit, frame, valid in zip(logits, frames, mask, strict=True):
        if valid:
            result = result + math.exp(logit) / total * frame
    return result


def loop_scores(
    reranker: CandidateReranker, x: Tensor, step: int, text: Tensor, frames: Tensor, mask: Tensor
) -> Tensor:
    """Eq. 5 and 6 for one row, candidate by candidate: the decoder's output before any softmax over candidates."""
    config, net = reranker.config, reranker.denoiser
    if reranker.direction == "t2v":
        candidates = [pooled(config, text, f, m) for f, m in zip(frames, mask, strict=True)]
        queries = [text] * len(candidates)
    else:
        candidates = list(text)
        queries = [pooled(config, t, frames, mask) for t in text]
    code = net.time_in(time_code(step, config.width))
    code = net.time_out(code * torch.sigmoid(code))
    logits = torch.stack(
        [net.query(q + code) @ net.key(c + code) + x_n for q, c, x_n in zip(queries, candidates, x, strict=True)]
    )
    weights = logits.softmax(0)
    attended = sum((p * net.value(c + code) for p, c in zip(weights, candidates, strict=True)), torch.zeros(()))
    attended = net.merge(attended)
    scores = []
    for p, candidate in zip(weights, candidates, strict=True):
        hidden = net.decoder_in(torch.cat([attended, candidate])).clamp(min=0)
        extra = p if config.compat.decoder == "released" else 0
        scores.append(net.decoder_out(hidden)[0] + extra)
    return torch.stack(scores)


def reranking(retriever: Any, rerankers: dict[Direction, CandidateReranker], **settings: Any) -> Pipeline:
    """A retriever with re-rankers as its only stage."""
    return Pipeline(retriever, [DiffusionStage(rerankers, DiffusionSettings(**settings))])
