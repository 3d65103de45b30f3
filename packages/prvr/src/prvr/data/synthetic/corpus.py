"""The embedded corpus on disk: made by seed in a few seconds, in the public layout."""

import hashlib
import json
from pathlib import Path

import numpy as np

from prvr.data.captions import Caption, Moment
from prvr.data.corpus import Corpus, open_corpus
from prvr.data.errors import DataError
from prvr.data.layout import write_layout
from prvr.data.synthetic.encoder import FEATURE_DIM, SceneEncoder
from prvr.data.synthetic.grammar import Claim, describe, matching_videos
from prvr.data.synthetic.text import WORD_DIM, embed_text
from prvr.data.synthetic.world import FPS, Event, Video, draw_video

VERSION = 1
COLLECTION = "embedded"
SIZES = {"tiny": {"train": 60, "val": 20, "test": 20}}
CAPTIONS_PER_VIDEO = 5


def write_corpus(root: Path | str, size: str = "tiny", seed: int = 0) -> Corpus:
    """Makes the embedded corpus under ``root/embedded``, or opens it where the same one stands already.

    Untrimmed videos of 20-120 s at 2 frames per second, in each 3-5 moments of 3-15 s that captions speak of and others
    that none does. Frame features (96 wide) are *simulated* from the scene, word features (64 wide) are hashed: it
    shows that the machinery learns partial relevance and is no evidence about natural video. Every video that a
    caption is true of stands in its relevance set.

    Args:
        root: folder that holds collections.
        size: ``tiny``: 60 / 20 / 20 videos, 5 captions each.
        seed: of everything.

    Returns:
        the open corpus.

    Raises:
        DataError: ``root/embedded`` holds another corpus (version, size or seed), or the disk is full.
        ValueError: unknown size.
    """
    if size not in SIZES:
        raise ValueError(f"write_corpus: size {size!r} is not one of {sorted(SIZES)}")
    about = {"generator": "prvr.data.synthetic", "version": VERSION, "size": size, "seed": seed}
    target = Path(root).expanduser() / COLLECTION
    if target.exists():
        return _open_existing(target, about)
    videos = {split: _draw_split(split, count, seed) for split, count in SIZES[size].items()}
    gallery = [video for part in videos.values() for video in part]
    captions: dict[str, list[Caption]] = {split: [] for split in videos}
    moments: dict[str, Moment] = {}
    claims: dict[str, Claim] = {}
    for split, part in videos.items():
        for video in part:
            rng = _generator(seed, "captions", video.id)
            for k, event in enumerate(_told_events(video, rng)):
                text, claim = describe(event, rng)
                caption = Caption(f"{video.id}#enc#{k}", video.id, text)
                captions[split].append(caption)
                moments[caption.id] = Moment(event.start, event.end, video.duration)
                claims[caption.id] = claim
    encoder = SceneEncoder(seed)
    facts = {"seconds_per_frame": 1 / FPS, "feature_dim": FEATURE_DIM, "query_dim": WORD_DIM, "visual": "SIMULATED"}
    try:
        write_layout(
            root,
            COLLECTION,
            captions=captions,
            videos=((v.id, encoder.encode(v, _generator(seed, "frames", v.id))) for v in gallery),
            queries=((c.id, embed_text(c.text)) for part in captions.values() for c in part),
            moments=moments,
            relevance=matching_videos(claims, gallery),
            about=about | facts,
        )
    except DataError:
        if target.exists():  # another process made it meanwhile
            return _open_existing(target, about)
        raise
    return open_corpus(root, COLLECTION)


def _open_existing(target: Path, about: dict[str, object]) -> Corpus:
    try:
        found = json.loads((target / "corpus.json").read_text(encoding="utf-8"))
        found = {key: found.get(key) for key in about}
    except (OSError, ValueError, AttributeError) as error:
        found = repr(error)
    if found != about:
        raise DataError(
            f"{target}: holds another corpus ({found}), expected {about}. Delete this folder or choose another root."
        )
    return open_corpus(target.parent, target.name)


def _draw_split(split: str, count: int, seed: int) -> list[Video]:
    names = [f"{split}{i:04d}" for i in range(count)]
    return [draw_video(name, _generator(seed, "world", name)) for name in names]


def _told_events(video: Video, rng: np.random.Generator) -> list[Event]:
    """Events to caption: each captioned one at least once, in time order, then some again."""
    again = rng.integers(len(video.captioned), size=CAPTIONS_PER_VIDEO - len(video.captioned))
    return [*video.captioned, *(video.captioned[i] for i in again)]


def _generator(seed: int, *names: str) -> np.random.Generator:
    digest = hashlib.sha256("/".join(names).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
