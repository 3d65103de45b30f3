"""The authors' numbers of DiffusionRet, and its equations again as plain loops over rows, candidates and frames."""

import json
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prvr import load_released_reranker
from prvr.evaluation import EvaluationConfig
from prvr.models import TokenWeights
from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.run_config import RerankerCompat, RerankerConfig
from prvr.published.diffusionret.stage import DiffusionSettings, DiffusionStage
from prvr.stages import Direction, Pipeline

PLAIN = EvaluationConfig(bootstrap=0)

FIXTURE = Path(__file__).parents[1] / "fixtures" / "prvr_diffusionret.npz"


@dataclass(frozen=True)
class Golden:
    """The packed subset, or the whole reference that DIFFUSIONRET_REFERENCE names."""

    @cached_property
    def arrays(self) -> dict[str, Any]:
        with np.load(os.environ.get("DIFFUSIONRET_REFERENCE") or FIXTURE) as file:
            stored = dict(file)
        if "index" not in stored:
            return {k: json.loads(str(v)) if k.endswith("config") else v for k, v in stored.items()}
        # Many small arrays in one of each type: a third of the size.
        used, arrays = dict.fromkeys(stored, 0), {}
        for name, entry in json.loads(str(stored["index"])).items():
            if isinstance(entry, dict):
                arrays[name] = entry
                continue
            kind, shape = entry
            first = used[kind]
            used[kind] += math.prod(shape)
            arrays[name] = stored[kind][first : used[kind]].reshape(shape)
        return arrays

    @property
    def directions(self) -> list[Direction]:
        return [d for d in ("t2v", "v2t") if f"sd/{d}/q_proj.weight" in self.arrays]

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        value = torch.from_numpy(np.array(self.arrays[name]))
        return value if dtype is None else value.to(dtype)

    @property
    def state(self) -> dict[str, Tensor]:
        return {name[3:]: self.tensor(name) for name in self.arrays if name.startswith("sd/")}

    def reranker(self, direction: Direction, dtype: torch.dtype) -> CandidateReranker:
        options = {**self.arrays["config"], **self.arrays["rerank/config"]}
        return load_released_reranker(self.state, options, direction).to(dtype)

    def inputs(self, direction: Direction, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        prefix = "in/" if direction == "t2v" else "in/v2t_"
        text, frames = (self.tensor(f"{prefix}{name}", dtype) for name in ("text_emb", "video_emb"))
        return text, frames, self.tensor(f"{prefix}video_mask") > 0

    def initial(self, direction: Direction, dtype: torch.dtype) -> Tensor:
        return self.tensor("in/ddim_init" if direction == "t2v" else "in/ddim_init_v", dtype)

    def token_weights(self, side: str, tokens: Tensor, mask: Tensor) -> Tensor:
        """Of the stored network, or what it gave."""
        if f"wti/{side}_weights" in self.arrays:
            return self.tensor(f"wti/{side}_weights", tokens.dtype)
        prefix = f"sd/wti/{side}_weight_fc."
        weights = TokenWeights(tokens.shape[-1]).to(tokens.dtype)
        own = {name: value for name, value in self.arrays.items() if name.startswith(prefix)}
        weights.net.load_state_dict({name.removeprefix(prefix): torch.from_numpy(v) for name, v in own.items()})
        return weights(tokens, mask)


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
