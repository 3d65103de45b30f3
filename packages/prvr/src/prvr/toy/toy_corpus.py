"""The toy corpora: drawn, rendered and encoded by seed, in the public layout; collections that need no data on disk."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from prvr.corpora.corpus_encoders import DRAWN_COLLECTIONS, CorpusEncoders, DrawnCollection, Progress
from prvr.data.corpus import Corpus, open_corpus
from prvr.data.layout import Caption, MomentTimes, TextData, write_layout
from prvr.errors import DataError, InputError
from prvr.reading import short
from prvr.toy.encoder import DIM, WORD_DIM, ToyEncoder, ToyText, load_encoder, with_motion
from prvr.toy.near_misses import relevance
from prvr.toy.rendering import DAY, LOOKS, render, render_frames, with_look
from prvr.toy.scenes import SCENES, SPLITS, Scenes, draw_split, read_toy_scenes, write_scenes
from prvr.toy.world import FPS, Video

GENERATOR, VERSION = "prvr.data.synthetic", 4


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
    for key, value, known in (("size", size, SPLITS), ("look", look, LOOKS)):
        if value not in known:
            raise InputError(f"{key} {value!r} is not one of {', '.join(known)}")
    about = {"generator": GENERATOR, "version": VERSION, "size": size, "seed": seed, "encoder": load_encoder().sha256}
    if look != DAY:
        about["look"] = look
    name = f"toy-{size}" if look == DAY else f"toy-{size}-{look}"
    target = Path(root).expanduser() / name
    if not target.exists():
        from prvr.cli.folders import threads  # here, because what trains on a corpus needs no commands

        # The same split of other sizes begins with the same videos; `large` has a name of its own and shares none.
        splits = {
            split: draw_split(split, count, seed, "large" if size == "large" else split)
            for split, count in SPLITS[size].items()
        }
        try:
            with threads(1):  # small matrices: more would wait for each other, and change the order of sums
                _write(target, splits, look, about, progress)
        except DataError:
            if not target.exists():  # or else another process made it meanwhile
                raise
    corpus = open_corpus(root, name)
    existing = {key: corpus.about.get(key) for key in about}
    if existing != about:
        raise DataError(
            f"{target}: holds another corpus ({short(existing, 300)}), expected {about}. Delete this folder or choose "
            "another root."
        )
    return corpus


def _write(
    target: Path, splits: dict[str, Scenes], look: str, about: dict[str, object], progress: Progress | None
) -> None:
    videos = [video for scenes in splits.values() for video in scenes.videos]
    sentences = [sentence for scenes in splits.values() for sentence in scenes.sentences]
    duration = {video.id: video.duration for video in videos}
    encoder = load_encoder()

    def features(video: Video) -> tuple[str, np.ndarray]:
        return video.id, with_motion(encoder.encode_frames(with_look(render(video), look)))

    texts = TextData(
        captions={
            split: [Caption(s.id, s.video_id, s.text) for s in scenes.sentences] for split, scenes in splits.items()
        },
        moments={s.id: MomentTimes(s.start, s.end, duration[s.video_id]) for s in sentences},
        relevance=relevance(sentences, videos),
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


def two_at_a_time(work: Callable[[Video], Any], videos: Sequence[Video], progress: Progress | None) -> Iterator[Any]:
    """The results of all videos in order: while one is drawn (numpy), another is encoded (torch) or written."""
    with ThreadPoolExecutor(2) as pool:
        for done, result in enumerate(pool.map(work, videos), 1):
            yield result
            if progress is not None:
                progress(done, len(videos))


def _open(size: str, cache: Path, progress: Progress | None) -> Corpus:
    # one folder per version and encoder, so that older ones do not matter
    return write_corpus(cache / corpus_key(), size, progress=progress)


@cache
def _encoders() -> CorpusEncoders:
    return CorpusEncoders(ToyEncoder().identity, ToyText().identity, FPS, 2 * DIM, WORD_DIM, DIM)


def _frames(corpus: Corpus, split: str, count: int) -> Callable[[str, float, float], np.ndarray]:
    from prvr.plot.figures import evenly  # which needs matplotlib, and training does not

    videos = {video.id: video for video in read_toy_scenes(corpus)[split].videos}

    def frames(video_id: str, start: float, end: float) -> np.ndarray:
        """Frames spread evenly from the first to the last that lie in a moment, or the one that is nearest to it."""
        video = videos[video_id]
        times = (np.arange(video.frame_count) + 0.5) / FPS
        inside = np.flatnonzero((times >= start) & (times < end))
        if not inside.size:
            inside = np.array([np.abs(times - (start + end) / 2).argmin()])
        return render_frames(video, inside[evenly(len(inside), count)].tolist())

    return frames


for _size in SPLITS:
    _collection = DrawnCollection(GENERATOR, partial(_open, _size), _encoders, _frames)
    DRAWN_COLLECTIONS.register(f"toy-{_size}", _collection, f"the toy corpus, size {_size}")
