"""A whole retriever of your own: the mean word against the best frame, each mapped linearly.

A configuration names it: `imports: [own_retriever]`, `model: {kind: best_frame, hidden: 64}`. Losses of total scores
train it, and others where its settings say in `provides` what its scores and embeddings have.
"""

import tempfile

import torch
from pydantic.dataclasses import dataclass
from torch import nn
from torch.nn.functional import normalize

from prvr.config import RETRIEVERS, STRICT, Config, RetrieverConfig, validated
from prvr.models import OwnRetriever
from prvr.training import train
from prvr.types import Scores, VideoEmbedding


@dataclass(frozen=True, config=STRICT, kw_only=True)
class BestFrameConfig(RetrieverConfig):
    dropout: float = 0.1  # beside the widths, max_frames and max_words, which every retriever has


class BestFrame(OwnRetriever):
    def __init__(self, config: BestFrameConfig) -> None:
        super().__init__(config)
        self.words = nn.Linear(config.query_dim, config.hidden)
        self.frames = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(config.video_dim, config.hidden))

    def encode_text(self, words, word_mask):
        valid = word_mask[..., None]
        return self.words((words * valid).sum(1) / valid.sum(1))  # (q, d)

    def encode_video(self, clips, frames, frame_mask):
        return VideoEmbedding(frames=self.frames(frames), frame_mask=frame_mask)

    def score(self, text, video):
        frames = video.frames.to(text.dtype)
        cosines = torch.einsum("qd,vld->qvl", normalize(text, dim=-1), normalize(frames, dim=-1))
        return Scores(cosines.masked_fill(~video.frame_mask, -1).amax(-1))  # (q, v)


RETRIEVERS.register("best_frame", BestFrame, "The best frame.", BestFrameConfig)


POOLED = ("triplet", "diversity", "info_nce_clips", "info_nce_frames")
"""Losses that other retrievers are trained with by default."""


if __name__ == "__main__":
    values = {
        "name": "best-frame",
        "model": {"kind": "best_frame", "video_dim": 0, "query_dim": 0, "hidden": 64},  # 0: the width of the data
        "loss": {"contrastive": {"weight": 1, "temperature": 0.05}} | dict.fromkeys(POOLED, 0),
        "data": {"collection": "toy-tiny"},
        "train": {"epochs": 2, "batch_size": 20},
    }
    with tempfile.TemporaryDirectory() as folder:
        print(train(validated(Config, values), output=folder).report.text_to_video)
