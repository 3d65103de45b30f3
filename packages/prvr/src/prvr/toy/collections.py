"""The corpora of the toy world as collections that need no data on disk."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np

from prvr.corpora.corpus_encoders import DRAWN_COLLECTIONS, CorpusEncoders, DrawnCollection, Progress
from prvr.data.corpus import Corpus
from prvr.toy.encoder import DIM, WORD_DIM
from prvr.toy.featurizers import ToyEncoder, ToyText
from prvr.toy.rendering import render_frames
from prvr.toy.toy_corpus import COLLECTIONS, GENERATOR, corpus_key, read_toy_scenes, write_corpus
from prvr.toy.world import FPS


def _open(size: str, cache: Path, progress: Progress | None) -> Corpus:
    # one folder per version and encoder, so that older ones do not matter
    return write_corpus(cache / corpus_key(), size, progress=progress)


@cache
def _encoders() -> CorpusEncoders:
    return CorpusEncoders(ToyEncoder().identity, ToyText().identity, FPS, 2 * DIM, WORD_DIM, DIM)


def _frames(corpus: Corpus, split: str, count: int) -> Callable[[str, float, float], np.ndarray]:
    from prvr.toy.sheets import moment_frames  # which draws, and what trains does not

    videos = {video.id: video for video in read_toy_scenes(corpus)[split].videos}

    def frames(video_id: str, start: float, end: float) -> np.ndarray:
        video = videos[video_id]
        return render_frames(video, moment_frames(video, start, end, count))

    return frames


for _name, _size in COLLECTIONS.items():
    DRAWN_COLLECTIONS.register(
        _name, DrawnCollection(GENERATOR, partial(_open, _size), _encoders, _frames), f"the toy corpus, size {_size}"
    )
