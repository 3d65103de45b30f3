"""Moments of your own: a loss reads where the moment of a query begins and ends, and is kept with the model.

Words are compared with frames, each with its best. The loss learns the first and the last frame of a moment from the
cosines of a sentence with the frames of its video (as XML, Lei et al. 2020). What it gives is judged (VCMR, SVMR),
saved with the model, and shown by `prvr search`, whose page has it too.
"""

import tempfile
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass
from torch import nn
from torch.nn.functional import cosine_similarity

from prvr.config import LOSSES, RETRIEVERS, STRICT, Config, LossSettings, RetrieverConfig, validated
from prvr.evaluation.tables import moment_baselines_table, moments_table
from prvr.losses import Term
from prvr.models import Indexed, OwnRetriever
from prvr.scoring import word_scores
from prvr.training import train
from prvr.types import Scores, TextEmbedding, VideoEmbedding, query_vectors


@dataclass(frozen=True, config=STRICT, kw_only=True)
class WordsConfig(RetrieverConfig):
    dropout: float = 0.1


class Words(OwnRetriever):
    indexed = Indexed(whole=True)  # the vector of the sentence finds 200 videos by their frames, `score` orders them

    def __init__(self, config: WordsConfig) -> None:
        super().__init__(config)
        self.words = nn.Linear(config.query_dim, config.hidden)
        self.frames = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(config.video_dim, config.hidden))

    def encode_text(self, words, word_mask):
        mapped, weights = self.words(words), word_mask / word_mask.sum(1, keepdim=True)
        return TextEmbedding((mapped * weights[..., None]).sum(1), mapped, word_mask, weights)

    def encode_video(self, clips, frames, frame_mask):
        return VideoEmbedding(frames=self.frames(frames), frame_mask=frame_mask)

    def score(self, text, video):
        return Scores(word_scores(text.words, text.mask, text.weights, video.frames, video.frame_mask))


class Boundaries(Term[LossSettings]):
    is_moment_head = True  # trained, saved and loaded with the retriever

    def __init__(self, settings: LossSettings, model: WordsConfig) -> None:
        super().__init__(settings, model)
        self.edges = nn.Conv1d(1, 2, 5, padding=2)

    def log_edges(self, text, video):
        line = cosine_similarity(query_vectors(text)[:, None], video.frames, dim=-1) * video.frame_mask  # (q, l)
        return self.edges(line[:, None]).masked_fill(~video.frame_mask[:, None], -torch.inf).log_softmax(2)  # (q, 2, l)

    def forward(self, inputs):
        labels = inputs.labels
        video = inputs.output.video[labels.query_to_video]
        start, end, duration = labels.moments.unbind(1)
        count = video.frame_mask.sum(1)
        edges = torch.stack([(start / duration * count).floor(), (end / duration * count).ceil() - 1], 1)
        known = edges.isfinite().all(1)
        places = edges.nan_to_num().long().clamp_min(0).minimum(count[:, None] - 1)
        log = self.log_edges(inputs.output.text, video).gather(2, places[..., None])
        return -log[known].sum() / (2 * known.sum()).clamp_min(1)

    def moments(self, text, video):
        first, last = self.log_edges(text, video).unbind(1)
        pairs = first[:, :, None] + last[:, None]  # (q, l, l)
        pairs = pairs.masked_fill(torch.ones_like(pairs[0]).tril(-1).bool(), -torch.inf)
        scores, place = pairs.flatten(1).topk(min(5, pairs[0].numel()))
        length = pairs.shape[1]
        return torch.stack([place // length, place % length + 1], 2) / video.frame_mask.sum(), scores


RETRIEVERS.register("words", Words, "Each word against its best frame.", WordsConfig)
LOSSES.register("boundaries", Boundaries, "Where moments begin and end.", LossSettings, needs=["moments"])

OFF = dict.fromkeys(("triplet", "diversity", "info_nce_clips", "info_nce_frames"), 0)
VALUES = {
    "name": "own-moments",
    "model": {"kind": "words", "video_dim": 0, "query_dim": 0, "hidden": 64},
    "loss": {"contrastive": {"weight": 1, "temperature": 0.05}, "boundaries": 0.1} | OFF,
    "data": {"collection": "toy-tiny"},
    "optim": {"lr": 3e-3},
    "train": {"epochs": 4, "batch_size": 20},
}


def search(run: Path, folder: Path) -> None:
    from prvr.toy import render
    from prvr.toy.scenes import draw_split
    from prvr_search import Library
    from prvr_search.films.toy_videos import write_mp4

    (folder / "films").mkdir()
    for film in draw_split("test", 20, seed=0).videos[:4]:
        write_mp4(folder / "films" / f"{film.id}.mp4", render(film), scale=2)
    with Library(folder / "films", encoder="toy", home=folder / "library", model=run) as library:
        for hit in library.search("a small blue circle rises", k=2).hits:
            print(hit.video_id, f"{hit.score:.2f}", *(f"{part.start:.1f}-{part.end:.1f} s" for part in hit.moments))


if __name__ == "__main__":
    from rich import print as show

    with tempfile.TemporaryDirectory() as name:
        result = train(validated(Config, VALUES), output=Path(name) / "run", device="cpu")
        show(moments_table(result.report), moment_baselines_table(result.report))
        search(Path(name) / "run", Path(name))
