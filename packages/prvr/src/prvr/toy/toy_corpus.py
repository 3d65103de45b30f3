"""Writes the toy corpus: drawn, rendered and encoded by seed, in the public layout."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8

from prvr.data.corpus import Corpus, open_corpus
from prvr.data.layout import Caption, Moment, TextData, write_layout
from prvr.errors import DataError, InputError
from prvr.reading import read_object, short
from prvr.toy.encoder import DIM, WORD_DIM, JointEncoder, load_encoder
from prvr.toy.near_misses import relevance
from prvr.toy.rendering import DAY, LOOKS, render, with_look
from prvr.toy.scenes import SPLITS, Scenes, draw_split, read_scenes, write_scenes
from prvr.toy.world import FPS, Video

GENERATOR, VERSION = "prvr.data.synthetic", 4
COLLECTIONS = {f"toy-{size}": size for size in SPLITS}
"""Name of the collection of each size."""
SCENES = "scenes.jsonl"
MOTION = 2.5  # changes are smaller than the embeddings themselves
WORKERS = 2
T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]


def toy_folder(root: Path | str, size: str, look: str = DAY) -> Path:
    """The folder of a corpus of a size and a look under a root."""
    return Path(root).expanduser() / (f"toy-{size}" if look == DAY else f"toy-{size}-{look}")


def corpus_key() -> str:
    """The name of the cache folder for corpora that this version and its encoder make."""
    return f"toy-v{VERSION}-{load_encoder().sha256[:8]}"


def write_corpus(
    root: Path | str,
    size: str = "demo",
    seed: int = 0,
    *,
    look: str = DAY,
    progress: Progress | None = None,
) -> Corpus:
    """Makes the toy corpus under ``root/toy-SIZE``, or opens it where the same one stands already.

    Untrimmed videos of 20-120 s at 2 frames per second are drawn, rendered and encoded frame by frame; in each 3-5
    moments of 3-15 s that captions speak of, and between them other action that none does. Every video that a caption
    is true of stands in its relevance set; tags tell what of a test caption training lacks. It is evidence about the
    machinery, not about natural video.

    Args:
        root: folder that holds collections.
        size: ``tiny`` (60 / 20 / 20 videos), ``demo`` (480 / 80 / 160), ``bench`` (2000 / 200 / 500) or ``large``
            (500 test videos that are in none of the others).
        seed: the seed of everything; at least 0.
        look: one of `prvr.toy.rendering.LOOKS`; with another than "day" the folder is
            ``root/toy-SIZE-LOOK``: the same scenes and captions in another light, to test out of domain.
        progress: called with (videos done, videos in all).

    Returns:
        the open corpus.

    Raises:
        DataError: the folder holds another corpus (version, size, seed or encoder), or the disk is full.
        ValueError: unknown size or look, or a negative seed.
    """
    if size not in SPLITS:
        raise InputError(f"size {size!r} is not one of {', '.join(SPLITS)}")
    if look not in LOOKS:
        raise InputError(f"look {look!r} is not one of {', '.join(LOOKS)}")
    encoder = load_encoder()
    about = {"generator": GENERATOR, "version": VERSION, "size": size, "seed": seed, "encoder": encoder.sha256}
    about |= {} if look == DAY else {"look": look}
    target = toy_folder(root, size, look)
    if target.exists():
        return _open_existing(target, about)
    # The same split of other sizes begins with the same videos; `large` has a name of its own and shares none.
    if seed < 0:
        raise InputError(f"seed={seed}: expected a whole number from 0")
    splits = {
        split: draw_split(split, count, seed, "large" if size == "large" else split)
        for split, count in SPLITS[size].items()
    }
    videos = [video for scenes in splits.values() for video in scenes.videos]
    sentences = [sentence for scenes in splits.values() for sentence in scenes.sentences]
    duration = {video.id: video.duration for video in videos}

    def features(video: Video) -> tuple[str, np.ndarray]:
        return video.id, frame_features(with_look(render(video), look), encoder)

    try:
        with _one_torch_thread():
            texts = TextData(
                captions={
                    split: [Caption(s.id, s.video_id, s.text) for s in scenes.sentences]
                    for split, scenes in splits.items()
                },
                moments={s.id: Moment(s.start, s.end, duration[s.video_id]) for s in sentences},
                relevance=relevance({s.id: s.claim for s in sentences}, videos),
                tags={s.id: s.tags for s in sentences},
            )
            write_layout(
                target,
                texts,
                videos=two_at_a_time(features, videos, progress),
                queries=((s.id, encoder.encode_words(s.text)) for s in sentences),
                about=about | {"seconds_per_frame": 1 / FPS, "feature_dim": 2 * DIM, "query_dim": WORD_DIM},
                extras=lambda folder: write_scenes(folder / SCENES, splits),
            )
    except DataError:
        if target.exists():  # another process made it meanwhile
            return _open_existing(target, about)
        raise
    return open_corpus(root, target.name)


def read_toy_scenes(corpus: Corpus) -> dict[str, Scenes]:
    """The scene graphs of each split of a toy corpus.

    Raises:
        DataError: the corpus has none, or they are damaged.
    """
    return read_scenes(corpus.folder / SCENES)


def frame_features(frames: UInt8[np.ndarray, "n 64 64 3"], encoder: JointEncoder) -> Float[np.ndarray, "n 512"]:
    """The features that a retriever reads: the joint embedding of each frame, and how it changes around the frame.

    Args:
        frames: (n 64 64 3) uint8 in order of time.
        encoder: the encoder of single frames.
    """
    return with_motion(encoder.encode_frames(frames))


def with_motion(still: Float[np.ndarray, "n 256"]) -> Float[np.ndarray, "n 512"]:
    """Joint embeddings of the frames of a video, each with how it changes around it.

    The second half is the difference between the frames after and before, times 2.5, at most of length 1 (a cut), 0 at
    both ends. Public features hold motion too (I3D beside ResNet): attention alone hardly learns before from after.
    """
    both = np.concatenate([still, np.zeros_like(still)], 1)
    motion = both[:, still.shape[1] :]
    np.subtract(still[2:], still[:-2], out=motion[1:-1])
    motion *= MOTION
    motion /= np.maximum(np.linalg.norm(motion, axis=1, keepdims=True), 1.0)
    return both


def two_at_a_time(work: Callable[[T], R], items: Sequence[T], progress: Progress | None) -> Iterator[R]:
    """The results of all items in order: while one is drawn (numpy), another is encoded (torch) or written."""
    with ThreadPoolExecutor(WORKERS) as pool:
        for done, result in enumerate(pool.map(work, items), 1):
            yield result
            if progress is not None:
                progress(done, len(items))


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Small matrices: threads inside of an operation would wait for each other, and change the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _open_existing(target: Path, about: dict[str, object]) -> Corpus:
    mend = "Delete this folder or choose another root."
    missing = f"{target}: expected a toy corpus, corpus.json is missing. {mend}"
    values = read_object(target / "corpus.json", mend, missing)
    existing = {key: values.get(key) for key in about}
    if existing != about:
        raise DataError(f"{target}: holds another corpus ({short(existing, 300)}), expected {about}. {mend}")
    return open_corpus(target.parent, target.name)
