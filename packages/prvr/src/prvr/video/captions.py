"""Captions of one's own videos and a store of their features, made into a corpus that can be trained on."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np

from prvr.data.division import SPLITS, divide, plain_ids
from prvr.data.layout import Caption, Moment, write_layout
from prvr.data.own import OwnCaption, Problems, read_own_captions
from prvr.errors import DataError
from prvr.video.encoders import TextFeaturizer
from prvr.video.joint import CorpusEncoders, about_encoders, write_sentences
from prvr.video.store import VideoStore

__all__ = ["CaptionsReport", "convert_captions"]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
VIDEOS = "videos.jsonl"
_BEYOND = 1.0  # seconds that a moment may end after its video: times are rounded, and players differ
_MEND = "Mend these lines; nothing was written."


@dataclass(frozen=True)
class CaptionsReport:
    """What became of a table of captions.

    Args:
        folder: of the corpus.
        videos, captions: how many each split has.
        timed: captions whose moment is known.
        cut: moments that ended up to a second after their video, and end with it now.
        repeated: lines that said what another said of the same video.
        left_out: ids of the videos of the store that no line speaks of.
        zero_shot: whether the corpus can be searched without training.
    """

    folder: Path
    videos: Mapping[str, int]
    captions: Mapping[str, int]
    timed: int
    cut: int
    repeated: int
    left_out: tuple[str, ...]
    zero_shot: bool


@dataclass(frozen=True)
class _Line:
    """A caption, the video it is of, and its moment cut to the video."""

    given: OwnCaption
    video: str
    moment: Moment
    cut: bool


def convert_captions(
    path: Path | str,
    store: VideoStore,
    text: TextFeaturizer,
    root: Path | str,
    name: str,
    *,
    joint: TextFeaturizer | None = None,
    test: float = 0.2,
    val: float = 0.1,
    seed: int = 0,
    progress: Progress | None = None,
) -> CaptionsReport:
    """Writes `root/name` whole or not at all: captions and features in the layout that `prvr.data.open_corpus` reads.

    Videos are divided, never captions: no video is in two splits, and no copy of one either. All videos with the same
    caption count as right for it. `corpus.json` says which encoders the features are of, `videos.jsonl` what each video
    is called in the store.

    Args:
        path: a table that [read_own_captions][prvr.data.own.read_own_captions] reads.
        store: of the videos that it speaks of; they are named as `VideoStore.find` takes it.
        text: what reads the captions.
        root: folder that holds corpora.
        name: of the new one: letters, digits, `-`, `_`, `.`.
        joint: the text side of the encoder of the frames, for the zero-shot score; default: `text`, if it is that.
        test, val: shares of the videos.
        seed: draws other splits.
        progress: called with (texts and videos done, all of them).

    Raises:
        DataError: lines that cannot be used, each with its number; too few videos; `root/name` exists; a full disk.
        ValueError: a share out of range.

    Example:
        >>> store, text = VideoStore("store"), open_featurizer("embedded")  # doctest: +SKIP
        >>> convert_captions("captions.csv", store, text, "data", "films").captions  # doctest: +SKIP
        {'train': 80, 'val': 10, 'test': 20}
    """
    path, target = Path(path).expanduser(), Path(root).expanduser() / name
    _check_name(name)
    if target.exists():
        raise DataError(f"{target}: exists already. Choose another root or name, or delete it.")
    joint = text if joint is None else joint
    if not store.joint_dim or joint.identity.weights != store.encoder.weights:
        joint = None
    table = read_own_captions(path)
    lines = _lines(path, table, store)
    captioned = sorted({line.video for line in lines})
    splits = divide({video: store.entries[video].sha256 for video in captioned}, test, val, seed)
    ids = plain_ids(captioned)
    ordered, count = dict[str, list[tuple[Caption, _Line]]]({split: [] for split in SPLITS}), Counter[str]()
    for line in lines:
        caption = Caption(f"{ids[line.video]}#enc#{count[line.video]}", ids[line.video], line.given.text)
        count[line.video] += 1
        ordered[splits[line.video]].append((caption, line))
    encoders = CorpusEncoders(
        store.encoder, text.identity, store.rate, store.dim, text.word_dim, store.joint_dim if joint else 0
    )
    pairs = [pair for split in SPLITS for pair in ordered[split]]
    sentences: dict[str, np.ndarray] = {}
    tick = _ticks(progress, len(pairs) + len(captioned))
    write_layout(
        root,
        name,
        captions={split: [caption for caption, _ in some] for split, some in ordered.items()},
        videos=_tell(((ids[video], store.read(video)) for video in captioned), tick),
        queries=_tell(_words(path, pairs, text, joint, sentences), tick),
        moments={caption.id: line.moment for caption, line in pairs},
        relevance=_relevance(pairs, ids, store),
        about={
            "generator": "prvr convert captions",
            "version": 1,
            "encoders": about_encoders(encoders),
            "captions": {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
            "splits": {"test": test, "val": val, "seed": seed},
        },
        extras=lambda folder: _write_extras(folder, store, ids, splits, ordered, sentences if joint else None),
    )
    return CaptionsReport(
        folder=target,
        videos={split: sum(side == split for side in splits.values()) for split in SPLITS},
        captions={split: len(some) for split, some in ordered.items()},
        timed=sum(line.given.start is not None for line in lines),
        cut=sum(line.cut for line in lines),
        repeated=len(table) - len(lines),
        left_out=tuple(video for video in store.video_ids if video not in ids),
        zero_shot=joint is not None,
    )


def _check_name(name: str) -> None:
    if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
        raise DataError(f"name {name!r}: expected letters, digits, '-', '_' and '.', for example 'films'.")


def _lines(path: Path, table: Sequence[OwnCaption], store: VideoStore) -> list[_Line]:
    """Each caption with the video that it names; what is said twice of a video counts once."""
    problems, known = Problems(path), dict[str, str]()  # what each name stands for
    found: dict[tuple[object, ...], _Line] = {}
    for given in table:
        if problems.full:  # to find what a name is close to takes time
            break
        name = given.video.replace("\\", "/").removeprefix("./")
        try:
            if name not in known:
                known[name] = store.find(name)
        except DataError as error:
            problems.add(given.line, str(error).removeprefix(f"{store.folder}: "))
            continue
        video = known[name]
        duration = store.duration(video)
        if given.start is None or given.end is None:
            moment, cut = Moment(nan, nan, duration), False
        elif given.start >= duration or given.end > duration + _BEYOND:
            times = f"{given.start:g} - {given.end:g} s"
            problems.add(given.line, f"{times} lies beyond the end of {video!r}, which is {duration:.2f} s long")
            continue
        else:
            moment, cut = Moment(given.start, min(given.end, duration), duration), given.end > duration
        found.setdefault((video, given.text, given.start, given.end), _Line(given, video, moment, cut))
    problems.refuse(_MEND)
    return list(found.values())


def _words(
    path: Path,
    pairs: Sequence[tuple[Caption, _Line]],
    text: TextFeaturizer,
    joint: TextFeaturizer | None,
    sentences: dict[str, np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
    """Features of each caption; all that cannot be read are named at the end. Fills `sentences`."""
    problems = Problems(path)
    for caption, line in pairs:
        try:
            words = text.words(caption.text)
            if joint is not None:
                sentences[caption.id] = joint.sentence(caption.text)
        except ValueError as error:
            problems.add(line.given.line, str(error))
            continue
        yield caption.id, words
    problems.refuse(_MEND)


def _relevance(
    pairs: Sequence[tuple[Caption, _Line]], ids: Mapping[str, str], store: VideoStore
) -> dict[str, set[str]]:
    """Of captions that more than one video has, or a copy of it: all of these videos."""
    same: dict[str, set[str]] = {}
    for video, plain in ids.items():
        same.setdefault(store.entries[video].sha256, set()).add(plain)
    said: dict[str, set[str]] = {}
    for caption, line in pairs:
        said.setdefault(caption.text.casefold(), set()).update(same[store.entries[line.video].sha256])
    return {c.id: said[c.text.casefold()] for c, _ in pairs if len(said[c.text.casefold()]) > 1}


def _write_extras(
    folder: Path,
    store: VideoStore,
    ids: Mapping[str, str],
    splits: Mapping[str, str],
    ordered: Mapping[str, Sequence[tuple[Caption, _Line]]],
    sentences: Mapping[str, np.ndarray] | None,
) -> None:
    rows = [
        {
            "id": plain,
            "video": video,
            "split": splits[video],
            "path": store.entries[video].path,
            "sha256": store.entries[video].sha256,
            "duration": store.duration(video),
        }
        for video, plain in ids.items()
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)  # ASCII: a name may hold bytes that are no UTF-8
    (folder / VIDEOS).write_text(lines, encoding="ascii", newline="\n")
    if sentences is not None:
        write_sentences(folder, {split: [caption for caption, _ in some] for split, some in ordered.items()}, sentences)


def _ticks(progress: Progress | None, total: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tick


def _tell(items: Iterator[tuple[str, np.ndarray]], tick: Callable[[], None]) -> Iterator[tuple[str, np.ndarray]]:
    for item in items:
        yield item
        tick()
