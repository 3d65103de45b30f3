"""Corpora that can be trained and tested on, from captions and features of videos."""

import hashlib
import json
import logging
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from math import nan
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32

from prvr.corpora.annotations import CaptionedVideo, benchmark
from prvr.corpora.corpus_encoders import CorpusEncoders, write_sentences
from prvr.corpora.user_captions import (
    MEND,
    SPLITS,
    Problems,
    SplitShares,
    UserCaption,
    captions_of,
    plain_ids,
    split_videos,
)
from prvr.data.corpus import Corpus
from prvr.data.features import FeatureReader
from prvr.data.layout import Caption, Moment, TextData, write_layout
from prvr.errors import DataError
from prvr.reading import LARGE, parse_json, read_text
from prvr.video import TextFeaturizer, VideoStore
from prvr.video.extraction import SUFFIXES

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
_T = TypeVar("_T")
MISSING, VIDEOS = "missing.txt", "videos.jsonl"
_NAMED = 10  # videos named in a message
_BEYOND = 1.0  # seconds that a moment may end after its video: times are rounded, and players differ


@dataclass(frozen=True)
class BenchmarkReport:
    """The corpus that was made of a benchmark.

    Args:
        folder: the folder of the corpus.
        videos, captions: their number in each split.
        missing: by split, videos that have captions but no features; they are left out.
        uncaptioned: by split, listed videos without a caption.
        wordless: number of captions without a letter or digit; they are left out.
        cut: number of captions of which only the first words have features.
    """

    folder: Path
    videos: Mapping[str, int]
    captions: Mapping[str, int]
    missing: Mapping[str, tuple[str, ...]]
    uncaptioned: Mapping[str, tuple[str, ...]]
    wordless: int
    cut: int


@dataclass(frozen=True)
class CaptionsReport:
    """The corpus that was made of a table of captions.

    Args:
        folder: the folder of the corpus.
        videos, captions: their number in each split.
        timed: number of captions whose moment is known.
        cut: number of moments that ended up to a second after their video, and now end with it.
        repeated: number of lines that repeat another one of the same video.
        left_out: ids of the videos of the store without a caption.
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


def convert_benchmark(
    name: str,
    annotations: Path | str,
    features: FeatureReader,
    text: TextFeaturizer,
    folder: Path | str,
    *,
    max_words: int | None = None,
    allow_missing: bool = False,
    progress: Progress | None = None,
) -> BenchmarkReport:
    """Writes a corpus of a benchmark, whole or not at all, with one query for each caption.

    Video ids are those of the annotation files. `corpus.json` holds the name of the benchmark and counts all that was
    left out or cut, `missing.txt` names every missing video.

    Args:
        name: one of `prvr.corpora.BENCHMARKS`.
        annotations: folder of the public annotation files.
        features: the features of the videos, under names that `match_videos` recognises: a `VideoStore`, or a folder
            opened by `prvr.data.open_features`. Only a store states its encoder.
        text: encodes the captions.
        folder: `ROOT/COLLECTION`, the new corpus.
        max_words: most rows of text features; default: that of the benchmark. Of a longer caption, the first words.
        allow_missing: go on without videos that have no features; queries and gallery are then smaller than those of
            published numbers.
        progress: called with (videos and captions done, in all).

    Raises:
        DataError: the annotations are missing or bad, videos have no features, or the folder exists.

    Examples:
        >>> store, text = VideoStore("store"), open_featurizer("openai/clip-vit-base-patch32")  # doctest: +SKIP
        >>> convert_benchmark("msvd", "annotations", store, text, "data/msvd").videos  # doctest: +SKIP
        {'train': 1200, 'val': 100, 'test': 670}
    """
    rules, folder = benchmark(name), _new_folder(folder)
    most = rules.max_words if max_words is None else max_words
    if most < 1:
        raise DataError(f"max_words={most}: expected at least 1.")
    content = rules.read(Path(annotations).expanduser())
    ids = [video.id for videos in content.splits.values() for video in videos]
    invalid = [video for video in ids if not video or set(video) & set("#/ \t")]
    if invalid:
        raise DataError(f"{len(invalid)} video ids are empty or hold '#', '/' or a space, among them {invalid[:3]}.")
    entry_of = match_videos(ids, features.video_ids)
    missing = _missing(content.splits, entry_of, features, allow_missing)
    splits = {split: [v for v in videos if v.id in entry_of] for split, videos in content.splits.items()}
    captions = {
        split: [Caption(f"{v.id}#enc#{number}", v.id, line) for v in videos for number, line in enumerate(v.captions)]
        for split, videos in splits.items()
    }
    sizes = {"videos": _sizes(splits), "captions": _sizes(captions)}
    about: dict[str, Any] = {"generator": "prvr convert benchmark", "benchmark": name, "max_words": most, **sizes}
    about |= {
        "missing": _sizes(missing),
        "uncaptioned": _sizes(content.uncaptioned),
        "wordless": content.wordless,
        "cut": 0,
    }
    joint = _joint_side(features, text)
    if isinstance(features, VideoStore):
        about["encoders"] = asdict(_encoders(features, text, joint))

    def queries() -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
        for caption in (caption for lines in captions.values() for caption in lines):
            line, rows = fit_words(text, caption, most)
            about["cut"] += line != caption.text
            yield caption.id, rows, None if joint is None else joint.sentence(line)

    lines = [f"{split} {video}\n" for split, ids in missing.items() for video in ids]
    files = {MISSING: "".join(lines)} if missing else {}
    _write(folder, TextData(captions), _features(features, entry_of), queries(), about, files, progress)
    return BenchmarkReport(
        folder, **sizes, missing=missing, uncaptioned=content.uncaptioned, wordless=content.wordless, cut=about["cut"]
    )


def convert_captions(
    path: Path | str,
    store: VideoStore,
    text: TextFeaturizer,
    folder: Path | str,
    *,
    joint: TextFeaturizer | None = None,
    shares: SplitShares | None = None,
    progress: Progress | None = None,
) -> CaptionsReport:
    """Writes a corpus of captions of users' own videos, whole or not at all.

    Videos are split, never captions: no video is in two splits, and no copy of one either. All videos with the same
    caption are relevant for it. `corpus.json` states the encoders of the features, `videos.jsonl` the id of each video
    in the store.

    Args:
        path: a table that [read_user_captions][prvr.corpora.read_user_captions] reads.
        store: a store of the videos in the table, which are named as `VideoStore.find` accepts it.
        text: encodes the captions.
        folder: `ROOT/COLLECTION`, the new corpus; its name has letters, digits, `-`, `_` and `.`.
        joint: the text side of the encoder of the frames, for the zero-shot score; default: `text`, if it is that.
        shares: the shares of the splits; default: [SplitShares][prvr.corpora.SplitShares]().
        progress: called with (texts and videos done, in all).

    Raises:
        DataError: lines that cannot be used, each with its number; too few videos; the folder exists; a full disk.

    Examples:
        >>> store, text = VideoStore("store"), open_featurizer("toy")  # doctest: +SKIP
        >>> convert_captions("captions.csv", store, text, "data/mine").captions  # doctest: +SKIP
        {'train': 80, 'val': 10, 'test': 20}
    """
    path, folder, shares = Path(path).expanduser(), _new_folder(folder), shares or SplitShares()
    joint = _joint_side(store, text if joint is None else joint)
    table, lines = _table(path, store, text)
    captioned = sorted({line.video for line in lines})
    split_of = split_videos({video: store.entries[video].sha256 for video in captioned}, shares)
    ids = plain_ids(captioned)
    by_split, counts = {split: list[tuple[Caption, _Line]]() for split in SPLITS}, Counter[str]()
    for line in lines:
        caption = Caption(f"{ids[line.video]}#enc#{counts[line.video]}", ids[line.video], line.caption.text)
        counts[line.video] += 1
        by_split[split_of[line.video]].append((caption, line))
    pairs = [pair for group in by_split.values() for pair in group]
    texts = TextData(
        captions={split: [caption for caption, _ in group] for split, group in by_split.items()},
        moments={caption.id: line.moment for caption, line in pairs},
        relevance=_relevance(pairs, ids, store),
    )
    about = {
        "generator": "prvr convert captions",
        "version": 1,
        "encoders": asdict(_encoders(store, text, joint)),
        "captions": {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
        "splits": asdict(shares),
    }
    entry_of = {plain: video for video, plain in ids.items()}
    rows = (
        {"id": plain, "video": video, "split": split_of[video]}
        | {key: getattr(store.entries[video], key) for key in ("path", "sha256", "duration")}
        for plain, video in entry_of.items()
    )
    files = {VIDEOS: "".join(f"{json.dumps(row)}\n" for row in rows)}
    queries = _read_texts(path, pairs, text, joint)
    _write(folder, texts, _features(store, entry_of), queries, about, files, progress)
    return CaptionsReport(
        folder=folder,
        videos={split: sum(side == split for side in split_of.values()) for split in SPLITS},
        captions=_sizes(by_split),
        timed=sum(line.caption.start is not None for line in lines),
        cut=sum(line.cut for line in lines),
        repeated=table - len(lines),
        left_out=tuple(video for video in store.video_ids if video not in ids),
        zero_shot=joint is not None,
    )


def videos_folder(corpus: Corpus) -> Path | None:
    """The folder of the videos of a corpus of `prvr convert captions`, as it was given to `prvr extract`.

    None for another corpus, where the folder is gone, or where the videos came from several folders.

    Raises:
        DataError: the list of its videos cannot be read.
    """
    path = corpus.folder / VIDEOS
    if not path.is_file():
        return None
    folders = set[str]()
    for number, line in enumerate(read_text(path, LARGE).splitlines(), 1):
        row = parse_json(line, f"{path}, line {number}")
        video, file = (row.get(key) if isinstance(row, dict) else None for key in ("video", "path"))
        if not isinstance(video, str) or not isinstance(file, str):
            raise DataError(f"{path}, line {number}: expected an object with video and path. Make the corpus again.")
        file = Path(file).as_posix()
        folders.add(file.removesuffix(video) if file.endswith(f"/{video}") else "")
    folder = Path(folders.pop()).resolve() if len(folders) == 1 and "" not in folders else None
    return folder if folder is not None and folder.is_dir() else None


def match_videos(wanted: Iterable[str], available: Iterable[str]) -> Mapping[str, str]:
    """For each video, the entry that has its features; videos without one are not in the answer.

    An entry fits by its id, else by its file name without folders, without the suffix of a video file, and without the
    `v_` that ActivityNet puts before ids.

    Raises:
        DataError: several entries fit a video, or one fits several.

    Examples:
        >>> match_videos(["v_a1", "b.avi", "c"], ["videos/a1.mp4", "b.avi.mp4"])
        {'v_a1': 'videos/a1.mp4', 'b.avi': 'b.avi.mp4'}
    """
    names = set(available)
    entries: dict[str, list[str]] = defaultdict(list)
    for entry in sorted(names):
        entries[_key(entry)].append(entry)
    entry_of, video_of = dict[str, str](), dict[str, str]()
    for video in wanted:
        matches = [video] if video in names else entries.get(_key(video), [])
        if len(matches) > 1:
            raise DataError(f"video {video!r}: {len(matches)} entries of the features fit, {matches[:3]}. Remove one.")
        if matches:
            entry_of[video] = entry = matches[0]
            if (other := video_of.setdefault(entry, video)) != video:
                raise DataError(f"features {entry!r} fit two videos, {other!r} and {video!r}. Rename them.")
    return entry_of


def fit_words(text: TextFeaturizer, caption: Caption, most: int) -> tuple[str, Float32[np.ndarray, "w e"]]:
    """A caption, or as many of its first words as give at most `most` rows of features, and these features.

    Whole words are left out and not rows, because the row of the last token may stand for the whole text (CLIP).

    Args:
        text: encodes the caption.
        caption: a caption of any length.
        most: rows.

    Raises:
        DataError: not even the first word has features.
    """

    def fitting(line: str) -> np.ndarray | None:
        try:
            rows = text.words(line)
        except ValueError:  # longer than the model reads
            return None
        return rows if len(rows) <= most else None

    rows = fitting(caption.text)
    if rows is not None:
        return caption.text, rows
    words = caption.text.split()
    # Some first words fit and then, from some number on, no more do.
    fitted = bisect_left(range(1, len(words)), True, key=lambda n: fitting(" ".join(words[:n])) is None)
    if not fitted:
        raise DataError(
            f"caption {caption.id!r}: its first word has no features, or more than {most} rows: {caption.text[:60]!r}. "
            "Raise max_words, or correct the caption in the annotation file."
        )
    line = " ".join(words[:fitted])
    return line, text.words(line)


def _write(
    folder: Path,
    texts: TextData,
    videos: Iterable[tuple[str, np.ndarray]],
    queries: Iterable[tuple[str, np.ndarray, np.ndarray | None]],
    about: Mapping[str, object],
    files: Mapping[str, str],
    progress: Progress | None,
) -> None:
    """Writes a corpus, and calls `progress` after each caption and each video.

    Args:
        folder, texts, videos, about: as for `prvr.data.layout.write_layout`.
        queries: the id of each caption, its features, and its sentence where there is a joint space.
        files: further text files, by name.
        progress: called with (captions and videos done, in all).
    """
    captions = [caption for lines in texts.captions.values() for caption in lines]
    done, total = count(1), len(captions) + len({caption.video_id for caption in captions})
    sentences: dict[str, np.ndarray] = {}

    def reported(items: Iterable[_T]) -> Iterator[_T]:
        for item in items:
            yield item
            if progress is not None:
                progress(next(done), total)

    def words() -> Iterator[tuple[str, np.ndarray]]:
        for caption_id, rows, sentence in reported(queries):
            if sentence is not None:
                sentences[caption_id] = sentence
            yield caption_id, rows

    def extras(new: Path) -> None:
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8", newline="\n")
        if sentences:
            write_sentences(new, texts.captions, sentences)

    write_layout(folder, texts, videos=reported(videos), queries=words(), about=about, extras=extras)


def _features(features: FeatureReader, entry_of: Mapping[str, str]) -> Iterator[tuple[str, np.ndarray]]:
    """The features of each video, from the entry that has them."""
    return ((video, np.asarray(features.read(entry), np.float32)) for video, entry in entry_of.items())


def _new_folder(folder: Path | str) -> Path:
    folder = Path(folder).expanduser()
    if not all(c.isalnum() or c in "-_." for c in folder.name) or folder.name.startswith("."):
        raise DataError(f"name {folder.name!r}: expected letters, digits, '-', '_' and '.', for example 'videos'.")
    if folder.exists():
        raise DataError(f"{folder}: already exists. Choose another root or name, or delete it.")
    return folder


def _joint_side(features: FeatureReader, text: TextFeaturizer) -> TextFeaturizer | None:
    """The text side, if its sentences can be compared with the frames."""
    if not isinstance(features, VideoStore) or not features.joint_dim or not text.joint_dim:
        return None
    return text if text.identity.weights == features.encoder.weights else None


def _encoders(store: VideoStore, text: TextFeaturizer, joint: TextFeaturizer | None) -> CorpusEncoders:
    joint_dim = 0 if joint is None else store.joint_dim
    return CorpusEncoders(store.encoder, text.identity, store.rate, store.dim, text.word_dim, joint_dim)


def _sizes(by_split: Mapping[str, Sequence[object]]) -> dict[str, int]:
    return {split: len(items) for split, items in by_split.items()}


def _key(name: str) -> str:
    path = PurePosixPath(name)
    # Not whatever follows the last dot: the ids of LSMDC hold times, 00.00.32.161.
    while path.suffix.lower() in SUFFIXES and path.stem:
        path = path.with_suffix("")
    return path.name.removeprefix("v_")


def _missing(
    splits: Mapping[str, Sequence[CaptionedVideo]],
    entry_of: Mapping[str, str],
    features: FeatureReader,
    allowed: bool,
) -> dict[str, tuple[str, ...]]:
    """By split, the videos without features; refuses them, or logs a warning."""
    missing = {split: tuple(v.id for v in videos if v.id not in entry_of) for split, videos in splits.items()}
    missing = {split: ids for split, ids in missing.items() if ids}
    for split, ids in missing.items():
        total = len(splits[split])
        names = ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
        message = f"{features.files[0].parent}: no features for {len(ids)} of {total} videos of {split}: {names}."
        if not allowed or len(ids) == total:
            hint = "These features are of other videos" if len(ids) == total else "Extract them or allow missing videos"
            raise DataError(f"{message} {hint} (available: {', '.join(features.video_ids[:3])} ...).")
        logger.warning("%s They are omitted; do not compare with published numbers of the whole benchmark.", message)
    return missing


@dataclass(frozen=True)
class _Line:
    """A caption, the video that it is of, and its moment cut to the video."""

    caption: UserCaption
    video: str
    moment: Moment
    cut: bool


def _table(path: Path, store: VideoStore, text: TextFeaturizer) -> tuple[int, list[_Line]]:
    """The number of rows of a table, and each caption with the video that it names; a repeated one counts once.

    Raises:
        DataError: names whatever is wrong with the table, of whichever kind, in one message.
    """
    problems, captions = Problems(path), list[UserCaption]()
    lines: dict[tuple[object, ...], _Line] = {}
    for caption in captions_of(problems):
        captions.append(caption)
        if not caption.video:  # the row has a problem already
            continue
        name = caption.video.replace("\\", "/").removeprefix("./")
        if problems.full and len(store.named(name)) != 1:
            problems.add(caption.line, "")  # it is only counted: to look for similar names takes time
            continue
        try:
            video = store.find(name)
        except DataError as error:
            problems.add(caption.line, str(error).removeprefix(f"{store.folder}: "))
            continue
        duration, start, end = store.duration(video), caption.start, caption.end
        if start is None or end is None:
            start = end = nan
        elif start >= duration or end > duration + _BEYOND:
            times = f"{start:g} - {end:g} s"
            problems.add(caption.line, f"{times} lies beyond the end of {video!r}, which is {duration:.2f} s long")
            continue
        line = _Line(caption, video, Moment(start, end if end != end else min(end, duration), duration), end > duration)
        lines.setdefault((video, caption.text, caption.start, caption.end), line)
    if problems.count:  # nothing will be written: texts that cannot be read are named now, with all the rest
        deque(_encoded(captions, text.words, problems), 0)
    problems.refuse(MEND)
    return len(captions), list(lines.values())


def _encoded(
    captions: Iterable[UserCaption], encode: Callable[[str], _T], problems: Problems
) -> Iterator[tuple[UserCaption, _T]]:
    """What a model gives for the text of each caption; texts that it cannot read become problems."""
    for caption in captions:
        try:
            if caption.text:
                yield caption, encode(caption.text)
        except ValueError as error:
            problems.add(caption.line, str(error))


def _read_texts(
    path: Path, pairs: Sequence[tuple[Caption, _Line]], text: TextFeaturizer, joint: TextFeaturizer | None
) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Features of each caption; those that the models cannot read are refused at the end, all at once."""
    problems, id_of = Problems(path), {line.caption: caption.id for caption, line in pairs}

    def encode(line: str) -> tuple[np.ndarray, np.ndarray | None]:
        return text.words(line), None if joint is None else joint.sentence(line)

    for caption, (words, sentence) in _encoded(id_of, encode, problems):
        yield id_of[caption], words, sentence
    problems.refuse(MEND)


def _relevance(
    pairs: Sequence[tuple[Caption, _Line]], ids: Mapping[str, str], store: VideoStore
) -> dict[str, set[str]]:
    """The relevant videos of captions that several videos have, or of which there are copies."""
    copies, relevant = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for video, plain in ids.items():
        copies[store.entries[video].sha256].add(plain)
    for caption, line in pairs:
        relevant[caption.text.casefold()] |= copies[store.entries[line.video].sha256]
    return {c.id: videos for c, _ in pairs if len(videos := relevant[c.text.casefold()]) > 1}
