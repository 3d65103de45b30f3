"""The smallest retriever that can be evaluated, shared by tests."""

import torch
from torch import nn

from prvr.types import Scores, VideoEmbedding


class MeanPooling(nn.Module):
    """The smallest retriever there is: mean words through one matrix, clips and frames through another."""

    config = None

    def __init__(self, feature_dim, query_dim, hidden=8):
        super().__init__()
        self.text, self.video = nn.Linear(query_dim, hidden), nn.Linear(feature_dim, hidden)
        self.noise = nn.Dropout(0.5)

    def save_pretrained(self, folder):
        raise NotImplementedError

    def encode_text(self, words, word_mask):
        words = words.to(self.text.weight.dtype)
        kept = (words * word_mask[..., None]).sum(1) / word_mask.sum(1, keepdim=True)
        return self.noise(self.text(kept))

    def encode_video(self, clips, frames, frame_mask):
        clips, frames = (self.noise(self.video(x.to(self.video.weight.dtype))) for x in (clips, frames))
        return VideoEmbedding(clips, frames, frame_mask)

    def for_scoring(self, video):
        return video

    def score(self, text, video):
        clips = torch.einsum("qd,vcd->qvc", text, video.clips).amax(-1)
        frames = torch.einsum("qd,vld->qvl", text, video.frames)
        return Scores(clips + frames.masked_fill(~video.frame_mask, -torch.inf).amax(-1))
