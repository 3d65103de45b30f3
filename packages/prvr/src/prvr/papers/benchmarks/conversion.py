"""Corpora of the public text-to-video benchmarks, from their annotation files and features of their videos."""

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Float32

from prvr.corpora.annotations import Conversion, lengths
from prvr.corpora.corpus_encoders import CorpusEncoders, Progress, joint_side, write_encoded
from prvr.data import Caption, FeatureReader, TextData
from prvr.encoders import TextFeaturizer, VideoFeatures
from prvr.encoders.entries import SUFFIXES
from prvr.errors import DataError
from prvr.papers.benchmarks.definition import BENCHMARKS, CaptionedVideo

logger = logging.getLogger(__name__)

MISSING = "missing.txt"
_NAMED = 10  # videos named in a message


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
) -> Conversion:
    """Writes a corpus of a benchmark, whole or not at all, with one query for each caption.

    Video ids are those of the annotation files. `corpus.json` holds the name of the data set, under `benchmark` if
    captions are of whole videos, so that tables are those of text-to-video retrieval, and counts all that was left out
    or cut, `missing.txt` names every missing video.

    Args:
        name: one of `prvr.papers.benchmarks.BENCHMARKS`.
        annotations: folder of the public annotation files.
        features: the features of the videos, under names that `match_videos` recognises: a `VideoFeatures`, or a folder
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
        >>> features, text = read_export("features"), open_featurizer("openai/clip-vit-base-patch32")  # doctest: +SKIP
        >>> convert_benchmark("msvd", "annotations", features, text, "data/msvd").counts["videos"]  # doctest: +SKIP
        {'train': 1200, 'val': 100, 'test': 670}
    """
    rules, folder = BENCHMARKS[name].part, Path(folder).expanduser()
    most = rules.max_words if max_words is None else max_words
    content = rules.read(Path(annotations).expanduser())
    entry_of = match_videos((v.id for videos in content.splits.values() for v in videos), features.video_ids)
    missing = _missing(content.splits, entry_of, features, allow_missing)
    available = {split: [video for video in videos if video.id in entry_of] for split, videos in content.splits.items()}
    captions = {
        split: [
            Caption(f"{video.id}#enc#{number}", video.id, line)
            for video in videos
            for number, line in enumerate(video.captions)
        ]
        for split, videos in available.items()
    }
    moments = {
        f"{video.id}#enc#{number}": moment
        for videos in available.values()
        for video in videos
        for number, moment in enumerate(video.moments)
    }
    about: dict[str, Any] = {
        "generator": "prvr convert benchmark",
        "data_set" if rules.untrimmed else "benchmark": name,
        "max_words": most,
        "videos": lengths(available),
        "captions": lengths(captions),
        "missing": lengths(missing),
        "uncaptioned": lengths(content.uncaptioned),
        "wordless": content.wordless,
        "cut": 0,
    }
    joint = joint_side(features, text)
    if isinstance(features, VideoFeatures):
        about["encoders"] = asdict(CorpusEncoders.of(features, text, joint))

    def queries() -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
        for caption in (caption for lines in captions.values() for caption in lines):
            line, rows = fit_words(text, caption, most)
            about["cut"] += line != caption.text
            yield caption.id, rows, None if joint is None else joint.sentence(line)

    lines = [f"{split} {video}\n" for split, ids in missing.items() for video in ids]
    files = {MISSING: "".join(lines)} if missing else {}
    videos = ((video, features.read(entry)) for video, entry in entry_of.items())
    write_encoded(folder, TextData(captions, moments or None), videos, queries(), about, files, progress)
    kinds = ("videos", "captions", "missing", "uncaptioned")
    notes = {
        f"{about['wordless']:,} captions without a letter or digit omitted": about["wordless"],
        f"{about['cut']:,} captions cut to {most} rows of text features": about["cut"],
        f"incomplete benchmark: see {MISSING} for the videos": missing,
    }
    return Conversion(folder, {kind: about[kind] for kind in kinds}, [note for note, holds in notes.items() if holds])


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
    entries = defaultdict[str, list[str]](list)
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
    missing = dict[str, tuple[str, ...]]()
    for split, videos in splits.items():
        ids, total = tuple(video.id for video in videos if video.id not in entry_of), len(videos)
        if not ids:
            continue
        missing[split] = ids
        names = ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
        message = f"{features.files[0].parent}: no features for {len(ids)} of {total} videos of {split}: {names}."
        if not allowed or len(ids) == total:
            hint = "These features are of other videos" if len(ids) == total else "Extract them or allow missing videos"
            raise DataError(f"{message} {hint} (available: {', '.join(features.video_ids[:3])} ...).")
        logger.warning("%s They are omitted; do not compare with published numbers of the whole benchmark.", message)
    return missing
