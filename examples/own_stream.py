"""A second stream of rows, and a rule of your own by which it joins the frames: subtitles of toy videos.

A configuration names both: `imports: [own_stream]`, `model: {stream: {feature: subtitles, fusion: where_it_agrees}}`.
The rows lie in `FeatureData/subtitles` beside the frames, in a layout that frames may have, with a rate of their own.
"""

import tempfile

import h5py
import numpy as np
import torch
from torch import nn

import prvr
from prvr.config import STREAMS, ModelConfig
from prvr.data import Corpus
from prvr.toy import load_encoder, read_toy_scenes, write_corpus
from prvr.toy.grammar import describe
from prvr.training import train


class WhereItAgrees(nn.Module):
    """Frames, plus a learned share of what the stream says beyond its mean over the videos."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(()))

    def forward(self, text, frames, stream):  # (q, d), (q, v), (q, v) to (q, v)
        return frames + self.share.sigmoid() * stream


STREAMS.register("where_it_agrees", WhereItAgrees, "Frames plus a share of the stream.")


def draw_subtitles(corpus: Corpus, said: float = 0.5, silent: float = 0.1, seed: int = 0) -> None:
    """Gives a toy corpus a line for about half of the shots of a video, in words of its own; a tenth are silent."""
    encoder, rng = load_encoder(), np.random.default_rng(seed)
    folder = corpus.folder / "FeatureData" / "subtitles"
    folder.mkdir()
    with h5py.File(folder / "feature.hdf5", "w") as file:
        for split, scenes in read_toy_scenes(corpus).items():
            for video in scenes.videos:
                shots = [shot for shot in video.shots if shot.action is not None and rng.random() < said]
                if shots and rng.random() >= silent:
                    lines = [describe(shot, video.background, rng, split != "test")[0] for shot in shots]
                    file[video.id] = encoder.encode_texts(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        corpus = write_corpus(root, "tiny")
        draw_subtitles(corpus)
        keys = {"data.root": root, "data.collection": "toy-tiny", "data.feature": "frames", "train.epochs": 2}
        stream = {"feature": "subtitles", "fusion": "where_it_agrees"}
        config = prvr.load_config("gmmformer-toy", keys | {"model.stream": stream})
        print(train(config, output=f"{root}/run").report.text_to_video)
