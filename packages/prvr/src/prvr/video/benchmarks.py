"""Text-to-video benchmarks, from annotation files and features to a corpus that can be trained and tested on."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from prvr.data.benchmarks import Annotations, CaptionedVideo, benchmark, match_videos
from prvr.data.features import FeatureReader
from prvr.data.layout import Caption, write_layout
from prvr.errors import DataError
from prvr.video.encoders import TextFeaturizer
from prvr.video.joint import CorpusEncoders, about_encoders, write_sentences
from prvr.video.store import VideoStore

__all__ = ["BenchmarkReport", "convert_benchmark", "fit_words"]

logger = logging.getLogger(__name__)

MISSING = "missing.txt"
_NAMED = 10  # videos named in a message


@dataclass(frozen=True)
class BenchmarkReport:
    """What became of a benchmark.

    Args:
        folder: of the corpus.
        videos, captions: how many each split has.
        missing: by split, videos that have captions but no features; they are left out.
        uncaptioned: by split, listed videos that nobody wrote a caption for.
        wordless: captions without a letter or digit, which are left out.
        cut: captions of which only the first words have features.
    """

    folder: Path
    videos: Mapping[str, int]
    captions: Mapping[str, int]
    missing: Mapping[str, tuple[str, ...]]
    uncaptioned: Mapping[str, tuple[str, ...]]
    wordless: int
    cut: int


def convert_benchmark(
    name: str,
    annotations: Path | str,
    features: FeatureReader,
    text: TextFeaturizer,
    root: Path | str,
    collection: str | None = None,
    *,
    max_words: int | None = None,
    allow_missing: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> BenchmarkReport:
    """Writes `root/collection`, whole or not at all, with one query for each caption.

    Video ids are those of the annotation files. `corpus.json` holds the name of the benchmark and all that was left out
    or cut, `missing.txt` names every missing video.

    Args:
        name: one of `prvr.data.benchmarks.BENCHMARKS`.
        annotations: folder of the public annotation files.
        features: of the videos, under names that `prvr.data.benchmarks.match_videos` can tell: a `VideoStore`, or what
            `prvr.data.open_features` gives. Only of the former is it known which encoder they are of.
        text: what reads the captions.
        root: folder that holds corpora.
        collection: of the new one; default: the name of the benchmark.
        max_words: most rows of text features; default: that of the benchmark. Of a longer caption, the first words.
        allow_missing: go on without videos that have no features; queries and gallery are then smaller than those of
            published numbers.
        progress: called with (videos and captions done, in all).

    Raises:
        DataError: the annotations are missing or bad, videos have no features, or the folder exists.

    Example:
        >>> store, text = VideoStore("store"), open_featurizer("openai/clip-vit-base-patch32")  # doctest: +SKIP
        >>> convert_benchmark("msvd", "annotations", store, text, "data").videos  # doctest: +SKIP
        {'train': 1200, 'val': 100, 'test': 670}
    """
    rules, target = benchmark(name), collection or name
    folder = Path(root).expanduser() / target
    if folder.exists():
        raise DataError(f"{folder}: exists already. Choose another root or collection, or delete it.")
    most = rules.max_words if max_words is None else max_words
    if most < 1:
        raise DataError(f"max_words={most}: expected at least 1.")
    read = rules.read(Path(annotations).expanduser())
    _check_ids(read)
    entry_of = match_videos((v.id for videos in read.splits.values() for v in videos), features.video_ids)
    missing = _missing(read, entry_of, features, allow_missing)
    splits = {split: [v for v in videos if v.id in entry_of] for split, videos in read.splits.items()}
    captions = {split: _captions(videos) for split, videos in splits.items()}
    sizes = {"videos": _sizes(splits), "captions": _sizes(captions)}
    about: dict[str, Any] = {"generator": "prvr convert benchmark", "benchmark": name, "max_words": most, **sizes}
    about |= {"missing": _sizes(missing), "uncaptioned": _sizes(read.uncaptioned), "wordless": read.wordless, "cut": 0}
    encoders = _encoders(features, text)
    joint = encoders is not None and encoders.joint_dim > 0
    if encoders is not None:
        about["encoders"] = about_encoders(encoders)
    sentences: dict[str, np.ndarray] = {}
    tick = _ticks(progress, len(entry_of) + sum(map(len, captions.values())))

    def queries() -> Iterator[tuple[str, np.ndarray]]:
        for caption in (caption for some in captions.values() for caption in some):
            kept, rows = fit_words(text, caption, most)
            about["cut"] += kept != caption.text
            if joint:
                sentences[caption.id] = text.sentence(kept)
            yield caption.id, rows
            tick()

    def videos() -> Iterator[tuple[str, np.ndarray]]:
        for video, entry in entry_of.items():
            yield video, np.asarray(features.read(entry), np.float32)
            tick()

    def extras(new: Path) -> None:
        if missing:
            lines = [f"{split} {video}\n" for split, ids in missing.items() for video in ids]
            (new / MISSING).write_text("".join(lines), encoding="utf-8", newline="\n")
        if joint:
            write_sentences(new, captions, sentences)

    write_layout(
        root,
        target,
        captions=captions,
        videos=videos(),
        queries=queries(),
        formats=("hdf5",),
        about=about,  # written last, when it is known how many captions were cut
        extras=extras,
    )
    return BenchmarkReport(
        folder, **sizes, missing=missing, uncaptioned=read.uncaptioned, wordless=read.wordless, cut=about["cut"]
    )


def _encoders(features: FeatureReader, text: TextFeaturizer) -> CorpusEncoders | None:
    """What is known of the encoders; sentences count only if they are of the model of the frames."""
    if not isinstance(features, VideoStore):
        return None
    joint = text.joint_dim > 0 and text.identity.weights == features.encoder.weights
    return CorpusEncoders(
        frames=features.encoder,
        text=text.identity,
        rate=features.rate,
        dim=features.dim,
        word_dim=text.word_dim,
        joint_dim=features.joint_dim if joint else 0,
    )


def fit_words(text: TextFeaturizer, caption: Caption, most: int) -> tuple[str, Float32[np.ndarray, "w e"]]:
    """A caption, or as many of its first words as give at most so many rows, and its features.

    Whole words are left out and not rows, since the row of the token that ends a text may stand for all of it (CLIP).

    Args:
        text: what reads it.
        caption: of any length.
        most: rows.

    Raises:
        DataError: not even the first word has features.
    """
    rows = _rows(text, caption.text)
    if rows is not None and len(rows) <= most:
        return caption.text, rows
    parts = caption.text.split()
    low, high, kept = 0, len(parts), None
    while high - low > 1:
        middle = (low + high) // 2
        rows = _rows(text, " ".join(parts[:middle]))
        if rows is not None and len(rows) <= most:
            low, kept = middle, rows
        else:
            high = middle
    if kept is None:
        raise DataError(
            f"caption {caption.id!r}: its first word has no features, or more than {most} rows: {caption.text[:60]!r}. "
            "Raise max_words, or mend the caption in the annotation file."
        )
    return " ".join(parts[:low]), kept


def _rows(text: TextFeaturizer, line: str) -> np.ndarray | None:
    """Features of a text; None where the model does not read it, being too long."""
    try:
        return text.words(line)
    except ValueError:
        return None


def _captions(videos: Sequence[CaptionedVideo]) -> list[Caption]:
    return [Caption(f"{v.id}#enc#{number}", v.id, line) for v in videos for number, line in enumerate(v.captions)]


def _check_ids(read: Annotations) -> None:
    bad = [v.id for videos in read.splits.values() for v in videos if not v.id or set(v.id) & set("#/ \t")]
    if bad:
        raise DataError(f"{len(bad)} video ids are empty or hold '#', '/' or a space, among them {bad[:3]}.")


def _missing(
    read: Annotations, entry_of: Mapping[str, str], features: FeatureReader, allowed: bool
) -> dict[str, tuple[str, ...]]:
    """By split, the videos without features; refuses them, or says so."""
    found = {split: tuple(v.id for v in videos if v.id not in entry_of) for split, videos in read.splits.items()}
    found = {split: ids for split, ids in found.items() if ids}
    for split, ids in found.items():
        of = len(read.splits[split])
        named = ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
        message = f"{features.files[0].parent}: no features for {len(ids)} of {of} videos of {split}: {named}."
        if not allowed or len(ids) == of:
            mend = "These features are of other videos" if len(ids) == of else "Extract them, or allow missing videos"
            raise DataError(f"{message} {mend} (ids there: {', '.join(features.video_ids[:3])} ...).")
        logger.warning("%s They are left out: numbers on this corpus are not those of the whole benchmark.", message)
    return found


def _sizes(by_split: Mapping[str, Sequence[object]]) -> dict[str, int]:
    return {split: len(some) for split, some in by_split.items()}


def _ticks(progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tick
