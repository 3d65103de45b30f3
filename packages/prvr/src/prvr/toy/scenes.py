"""The scene graphs of a split: its videos and the sentences about them, drawn by seed and stored as JSON lines."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from numpy.random import Generator, default_rng

from prvr.data.corpus import Corpus
from prvr.errors import DataError, InputError
from prvr.reading import LARGE, parse_json, parse_record, read_text
from prvr.toy.grammar import describe
from prvr.toy.near_misses import plant_near_misses
from prvr.toy.timelines import draw_videos
from prvr.toy.world import Sentence, Video, in_training

SPLITS = {
    "tiny": {"train": 60, "val": 20, "test": 20},
    "demo": {"train": 480, "val": 80, "test": 160},
    "bench": {"train": 2000, "val": 200, "test": 500},
    "large": {"test": 500},
}
"""Videos of each split, by size. `large` is another test for what was trained on `demo`."""
SENTENCES_PER_VIDEO = 5
TRIES = 50
SCENES = "scenes.jsonl"


@dataclass(frozen=True)
class Scenes:
    """The scene graphs of a split: its videos, and the sentences about them in the order of the videos."""

    videos: tuple[Video, ...]
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True)
class _Record:
    """A line of the file of scene graphs."""

    split: str
    video: Video
    sentences: tuple[Sentence, ...]


def draw_split(split: str, count: int, seed: int, name: str | None = None) -> Scenes:
    """Draws a split; the result depends on the arguments alone.

    Training and validation videos and sentences keep to what training may show; test ones do not. For every sentence of
    a test or validation gallery at least 4 videos hold a moment that differs in one factor, and 2 hold all its words
    bound to other things.

    Args:
        split: ``train``, ``val`` or ``test``.
        count: number of videos; at least 20 outside of training, because fewer have no room for near misses.
        seed: the seed of the corpus.
        name: what the ids of the videos begin with; another name draws other videos. Default: the split.

    Raises:
        ValueError: there is no room for near misses.
    """
    name, training = name or split, split != "test"
    allowed = in_training if training else lambda _: True
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    for attempt in range(TRIES):
        rng = default_rng([seed, attempt, number])
        videos = draw_videos([f"{name}{i:04d}" for i in range(count)], rng, allowed)
        sentences = tuple(sentence for video in videos for sentence in _write_sentences(video, rng, training))
        claims = [sentence.claim for sentence in sentences]
        if split == "train" or plant_near_misses(videos, claims, rng, allowed):
            return Scenes(tuple(videos), sentences)
    raise InputError(
        f"draw_split: {count} videos have no room for the near misses of their sentences; ask for 20 or more"
    )


def write_scenes(path: Path, splits: Mapping[str, Scenes]) -> None:
    """Writes one JSON object a line: ``{"split", "video", "sentences"}``."""
    lines = list[str]()
    for split, scenes in splits.items():
        sentences = defaultdict[str, list[Sentence]](list)
        for sentence in scenes.sentences:
            sentences[sentence.video_id].append(sentence)
        records = (_Record(split, video, tuple(sentences[video.id])) for video in scenes.videos)
        lines += [f"{json.dumps(asdict(record))}\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")


def read_toy_scenes(corpus: Corpus) -> dict[str, Scenes]:
    """The scene graphs of each split of a toy corpus.

    Raises:
        DataError: the corpus has none, or they are damaged.
    """
    path = corpus.folder / SCENES
    try:
        records = [
            parse_record(_Record, parse_json(line, source := f"{path}, line {number}"), source)
            for number, line in enumerate(read_text(path, LARGE).splitlines(), 1)
        ]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Only a corpus of `prvr data make` has scene graphs.") from None
    except DataError as error:
        raise DataError(f"{error} Delete the corpus and make it again.") from error
    if not records:
        raise DataError(f"{path}: holds no video. Delete the corpus and make it again.")
    splits = defaultdict[str, list[_Record]](list)
    for record in records:
        splits[record.split].append(record)
    return {
        split: Scenes(tuple(line.video for line in lines), tuple(s for line in lines for s in line.sentences))
        for split, lines in splits.items()
    }


def _write_sentences(video: Video, rng: Generator, training: bool) -> Iterable[Sentence]:
    """Five sentences: one about each captioned moment in order of time, then more about random ones."""
    moments = video.moments()
    again = rng.integers(len(moments), size=SENTENCES_PER_VIDEO - len(moments)).tolist()
    sentences: dict[str, Sentence] = {}
    for shot in [*moments, *(moments[i] for i in again)]:
        while (said := describe(shot, video.background, rng, training))[0] in sentences:
            pass
        name = f"{video.id}#enc#{len(sentences)}"
        sentences[said[0]] = Sentence(name, video.id, said[0], shot.start, shot.end, *said[1:])
    return sentences.values()
