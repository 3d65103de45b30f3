"""Copies of a corpus in which one thing is different, written as files and read like any other corpus."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Float

from prvr.data import Corpus, TextData, open_corpus, write_layout
from prvr.data.synthetic import render
from prvr.data.synthetic.encoder import DIM
from prvr.data.synthetic.world import FPS, Video

Read = Callable[[str], np.ndarray]
"""Gives the stored features of a video."""

Transform = Callable[[str, Read], np.ndarray]
"""Gives the features that a video has in the variant."""


def write_variant(corpus: Corpus, root: Path | str, splits: Sequence[str], transform: Transform) -> Corpus:
    """Writes some splits of a corpus under another root, with other features; all else is as it was.

    Args:
        corpus: the original.
        root: a folder that does not hold this collection yet.
        splits: which ones.
        transform: called with (video id, reader of the original features); gives (n f).

    Raises:
        prvr.data.DataError: the folder is taken, the data are bad, or the disk is full.
    """
    content = {name: corpus.split(name) for name in splits}
    captions = {name: split.captions for name, split in content.items()}
    ids = [caption.id for group in captions.values() for caption in group]
    videos = [video for split in content.values() for video in split.video_ids]
    first = content[splits[0]]  # reads the moments, relevance sets and tags of all
    with corpus.open_features() as features, corpus.open_queries() as queries:
        write_layout(
            Path(root) / corpus.name,
            TextData(
                captions=captions,
                moments={name: first.moments[name] for name in ids if name in first.moments},
                relevance={name: first.relevance[name] for name in ids if name in first.relevance},
                tags={name: first.tags[name] for name in ids if name in first.tags},
            ),
            videos=((video, transform(video, features.read)) for video in videos),
            queries=((name, queries.read(name)) for name in ids),
            feature=corpus.feature_folder.name,
            about=corpus.about,
        )
    return open_corpus(root, corpus.name)


def reversed_in_time(video_id: str, read: Read) -> Float[np.ndarray, "n f"]:
    """The features of the same frames in the opposite order: what changes, changes the other way."""
    x = read(video_id)
    return np.concatenate([x[::-1, :DIM], -x[::-1, DIM:]], 1)


def lengths_only(video_id: str, read: Read) -> Float[np.ndarray, "n f"]:
    """Every row the same in every video: only the number of frames is left."""
    return np.ones_like(read(video_id))


def exchanged(others: Mapping[str, str]) -> Transform:
    """Gives a video the features of another one; those that are not named keep their own."""
    return lambda video_id, read: read(others.get(video_id, video_id))


def shuffled(corpus: Corpus, splits: Sequence[str], seed: int) -> dict[str, str]:
    """Exchanges the videos of each split at random: every order of them is as likely."""
    rng = np.random.default_rng(seed)
    others: dict[str, str] = {}
    for name in splits:
        videos = corpus.split(name).video_ids
        others |= {video: videos[i] for video, i in zip(videos, rng.permutation(len(videos)).tolist(), strict=True)}
    return others


def decoded(videos: Sequence[Video]) -> Transform:
    """Features of an MP4 file of each video, as `prvr extract` computes them; needs `prvr[video]`.

    Args:
        videos: scene graphs of all that will be asked for.
    """
    from prvr.data.synthetic.mp4 import write_mp4
    from prvr.video import open_encoder, open_video

    by_id, encoder = {video.id: video for video in videos}, open_encoder("toy")

    def transform(video_id: str, read: Read) -> np.ndarray:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "video.mp4"
            write_mp4(path, render(by_id[video_id]), fps=FPS)
            with open_video(path) as file:
                frames = np.stack([encoder.prepare(frame.pixels) for frame in file.sample(FPS)])
            return encoder.finish(encoder.encode(frames))

    return transform
