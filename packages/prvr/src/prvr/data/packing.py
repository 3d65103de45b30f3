"""Packing: a split is read once from its source files and written as memory-mapped files."""

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from prvr.config import AnyModelConfig
from prvr.data.atomic import discard, publish, temporary_folder
from prvr.data.corpus import TEXT_FILES, Corpus, Split
from prvr.data.features import FeatureReader, feature_files
from prvr.data.layout import Caption, MomentTimes
from prvr.data.packed import PackedSplit, PackSource, longest_durations
from prvr.data.packed_files import FILES, FORMAT, STREAM, PackedFiles, PackedWriter
from prvr.data.sampling import normalise_rows, sample_video
from prvr.errors import DataError, InputError

logger = logging.getLogger(__name__)

_ADDED = ("keep_length", "stored_words", "stream")  # stores that were packed without these settings are the same


@dataclass(frozen=True)
class PackSettings:
    """How videos and queries are sampled.

    Args:
        clips: coarse segments per video.
        frames: most frames kept per video; longer videos become this many segment means.
        words: most words kept per query.
        keep_last: the last frame counts in the last segment mean (False: as in the released code).
        dtype: ``float32`` or ``float16``, on disk only.
        unit: scale rows to unit length. False for pictures and token numbers, which are kept as they are.
        keep_length: all the same, frames stay as long as they are, for a model that scales them itself.
        stored_words: all the same, words stay as they are: token numbers.
        stream: folder or HDF5 file under FeatureData of a second stream; None: there is none.
        stream_rows: most rows of it kept per video.
    """

    clips: int = 32
    frames: int = 128
    words: int = 30
    keep_last: bool = True
    dtype: str = "float32"
    unit: bool = True
    keep_length: bool = False
    stored_words: bool = False
    stream: str | None = None
    stream_rows: int = 128

    @classmethod
    def of(cls, model: AnyModelConfig, keep_last: bool) -> "PackSettings":
        """How the videos and queries of a model are sampled."""
        sizes = model.num_clips, model.max_frames, model.max_words
        unit, words = model.unit_rows, model.stored_words and model.unit_rows
        settings = cls(*sizes, keep_last, unit=unit, keep_length=model.frame_lengths, stored_words=words)
        stream = model.stream
        return settings if stream is None else replace(settings, stream=stream.feature, stream_rows=stream.max_rows)

    def __post_init__(self) -> None:
        if min(self.clips, self.frames, self.words) < 1:
            raise InputError(f"PackSettings: clips, frames and words must be at least 1, got {self}")
        if self.dtype not in ("float32", "float16"):
            raise InputError(f"PackSettings.dtype: {self.dtype!r} is not one of float32, float16")
        if self.dtype == "float16" and (self.keep_length or self.stored_words or not self.unit):
            raise InputError(
                "PackSettings: float16 rounds token numbers beyond 2048 and ends at 65504: with unit=False, "
                "keep_length=True or stored_words=True use float32"
            )

    def video(self, rows: Float[np.ndarray, "n f"]) -> tuple[Float[np.ndarray, "c f"], Float[np.ndarray, "l f"]]:
        """Clips and frames of a video, from its features as they are stored, see `sample_video`."""
        return sample_video(rows, self.clips, self.frames, self.keep_last, self.unit, self.keep_length)

    def query(self, rows: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "w e"]:
        """The words of a query, from its features as they are stored."""
        return (rows if self.stored_words or not self.unit else normalise_rows(rows.astype(np.float64)))[: self.words]


def pack(
    corpus: Corpus,
    split: str,
    *,
    cache_dir: Path | str,
    settings: PackSettings | None = None,
    feature_dim: int | None = None,
    query_dim: int | None = None,
    skip_missing: bool = False,
) -> PackedSplit:
    """Opens the packed form of a split, building it first where it does not exist.

    The files lie in a folder of ``cache_dir`` whose name is made of the collection, the split, and the sha256 of names,
    sizes and times of the source files and of the settings: a changed source gives a new folder. It is written beside
    its final place and renamed, so two processes may pack at once (the slower one drops its copy). Damaged files are
    built again.

    Args:
        corpus: where the source files are.
        split: ``train``, ``val``, ``test``.
        cache_dir: folder of packed splits.
        settings: how to sample; default as published, with the last frame kept.
        feature_dim: width of frame features that the model expects (None: any).
        query_dim: width of query features that the model expects (None: any).
        skip_missing: leave videos without features out, with their captions, instead of refusing the split.

    Raises:
        DataError: bad source data, another width than expected, or a full disk; or something else stands
            where it should be.
    """
    settings = settings or PackSettings()
    source = _source_files(corpus, split, settings.stream)
    values = {key: value for key, value in asdict(settings).items() if value or key not in _ADDED}
    if settings.stream is None:
        del values["stream_rows"]
    values |= {"skip_missing": True} if skip_missing else {}
    key = hashlib.sha256(json.dumps([FORMAT, corpus.name, split, source, values], sort_keys=True).encode()).hexdigest()
    origin = PackSource(corpus, split, Path(cache_dir).expanduser(), skip_missing)
    target = origin.cache_dir / f"{corpus.name}-{split}-{key[:16]}"

    def check_widths(frames: int, words: int) -> None:
        widths = (
            (corpus.feature_folder, "frame", "video_dim", frames, feature_dim),
            (corpus.query_file, "query", "query_dim", words, query_dim),
        )
        wrong = [row for row in widths if row[4] not in (None, row[3])]
        if wrong:
            problems = "; ".join(
                f"{path}: {kind} features are {width} wide, but the model expects {expected}"
                for path, kind, _, width, expected in wrong
            )
            keys = " and ".join(f"model.{key}={width}" for _, _, key, width, _ in wrong)
            raise DataError(f"{problems}. Set {keys}, or choose the preset made for these features.")

    packed = None
    if target.exists():
        try:
            packed = PackedSplit(PackedFiles(target), source=origin)
        except DataError as error:
            logger.warning("%s Building it again now.", error)
            discard(target, FILES)
    if packed is None:
        about = {"collection": corpus.name, "split": split, "settings": values, "source": source}
        with corpus.open_features() as videos, corpus.open_queries() as queries, temporary_folder(target) as folder:
            check_widths(videos.dim, queries.dim)
            with PackedWriter(folder, settings.dtype, [STREAM] if settings.stream else []) as writer:
                read = corpus.split(split)
                lacking = {name for name in read.video_ids if name not in videos} if skip_missing else set[str]()
                if 0 < len(lacking) < len(read.video_ids):
                    about["left_out"] = len(lacking)
                    read = replace(read, captions=tuple(c for c in read.captions if c.video_id not in lacking))
                _write(writer, corpus, read, videos, queries, settings, about)
            if not publish(folder, target, _is_good):
                logger.info("%s: already packed by another process; using that", target)
        packed = PackedSplit(PackedFiles(target, verify=False), source=origin)
    for sentence in (
        *packed.files.about["notes"],
        *(f"{text} Extract the features again." for text in packed.constant),
    ):
        logger.warning("%s", sentence)  # whenever it is opened, so before every training
    check_widths(packed.feature_dim, packed.query_dim)
    return packed


def holdout(packed: PackedSplit, fraction: float = 0.1) -> tuple[PackedSplit, PackedSplit]:
    """Splits by a hash of the video id, so that a video always falls on the same side, whatever else is there.

    A video is held out if the first 64 bits of sha256 of its id, read as a number in [0, 1), lie below ``fraction``. On
    very few videos the one nearest to the border changes sides where a side would be empty.

    Args:
        packed: at least two videos.
        fraction: expected share that is held out, in (0, 1).

    Returns:
        (train, validation), with the queries of their videos; they share the files.

    Raises:
        DataError: fewer than two videos.
        ValueError: ``fraction`` out of range.
    """
    if not 0 < fraction < 1:
        raise InputError(f"holdout: fraction must lie in (0, 1), got {fraction}")
    if len(packed) < 2:
        raise DataError(f"{packed.name}: a hold-out needs at least two videos, got {len(packed)}.")
    hashes = (hashlib.sha256(video_id.encode()).digest() for video_id in packed.video_ids)
    place = np.array([int.from_bytes(digest[:8], "big") / 2**64 for digest in hashes])
    is_held_out = place < fraction
    if not is_held_out.any():
        is_held_out[place.argmin()] = True
    if is_held_out.all():
        is_held_out[place.argmax()] = False
    return packed.subset(np.flatnonzero(~is_held_out)), packed.subset(np.flatnonzero(is_held_out))


def repack(packed: PackedSplit, model: AnyModelConfig, keep_last: bool) -> PackedSplit:
    """The same videos and queries as a packed split, sampled for another model.

    Args:
        packed: what `pack` returned, or a part of it.
        model: how to sample, and the widths of the features.
        keep_last: see `PackSettings`.

    Raises:
        DataError: it is not known which corpus it was packed from; or as `pack`.
    """
    origin = packed.source
    whole = pack(
        origin.corpus,
        origin.split,
        cache_dir=origin.cache_dir,
        settings=PackSettings.of(model, keep_last),
        feature_dim=model.video_dim,
        query_dim=model.query_dim,
        skip_missing=origin.skip_missing,
    )
    if whole.video_ids == packed.video_ids:
        return whole
    index_of = {video: i for i, video in enumerate(whole.video_ids)}
    return whole.subset([index_of[video] for video in packed.video_ids])


def _is_good(folder: Path) -> bool:
    try:
        PackedFiles(folder).close()
    except DataError:
        return False
    return True


def _source_files(corpus: Corpus, split: str, stream: str | None) -> list[list[str | int]]:
    """Names, sizes and times of the files that a packed split is made from."""
    if not corpus.caption_file(split).is_file():
        corpus.split(split)  # raises, and names the splits
    files = [*feature_files(corpus.feature_folder), corpus.query_file, corpus.caption_file(split)]
    files += [path for path in map(corpus.text_file, TEXT_FILES) if path.is_file()]
    files += [] if stream is None else feature_files(corpus.stream_folder(stream))
    try:
        stats = [path.stat() for path in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}). Check its permissions.") from error
    names = [path.relative_to(corpus.folder).as_posix() for path in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in zip(names, stats, strict=True)]


class _Survey:
    """What is unusual about the rows of a split: noticed as they are read, told when all are.

    Args:
        captions: the queries of the split; equal ones have equal features.
    """

    def __init__(self, captions: Sequence[Caption]) -> None:
        self.zero_rows: dict[str, int] = {}
        self.still: list[str] = []  # items of several rows, which are all the same
        self.first: dict[tuple[str, bytes], str] = {}  # the first item with these features
        self.repeated: dict[str, list[str]] = {}
        self.sentences = {caption.id: " ".join(re.findall(r"\w+", caption.text.casefold())) for caption in captions}

    def add(self, item: str, name: str, rows: np.ndarray, tokens: bool) -> None:
        """Looks at the rows of a video or a caption; of token numbers, 0 is one like any other."""
        if not tokens and (zeros := len(rows) - int(rows.any(axis=1).sum())):
            self.zero_rows[name] = zeros
        elif len(rows) > 1 and (rows == rows[0]).all():
            self.still.append(name)
        first = self.first.setdefault((item, hashlib.sha256(rows.tobytes()).digest()), name)
        if self.sentences.get(first, first) != self.sentences.get(name, name):
            self.repeated.setdefault(item, []).append(f"{name} those of {first}")

    def notes(self, unit: bool) -> Iterator[str]:
        """A sentence for each kind; `unit`: rows have a length, so that those of zeros count."""
        if unit and self.zero_rows:
            yield (
                f"{sum(self.zero_rows.values())} feature rows are all zero, in {len(self.zero_rows)} videos or "
                f"captions ({next(iter(self.zero_rows))} ...). They are kept."
            )
        if unit and self.still:
            yield (
                f"the features of {len(self.still)} videos or captions are the same in all their rows "
                f"({self.still[0]} ...)."
            )
        for item, pairs in self.repeated.items():
            yield f"{len(pairs)} {item}s have the features of another {item} ({pairs[0]} ...)."


def _write(
    writer: PackedWriter,
    corpus: Corpus,
    split: Split,
    videos: FeatureReader,
    queries: FeatureReader,
    settings: PackSettings,
    about: dict[str, Any],
) -> None:
    captions, where, survey = split.captions, f"{corpus.name} {split.name}", _Survey(split.captions)

    def read(features: FeatureReader, ids: Sequence[str]) -> Iterator[np.ndarray]:
        missing = [name for name in ids if name not in features]
        if missing:
            raise DataError(
                f"{where}: {len(missing)} of {len(ids)} {features.item}s have no features in "
                f"{features.files[0].parent}, among them {missing[:3]}. Add their features, remove their captions, or "
                "of videos set data.missing=skip."
            )
        for name in ids:
            rows = features.read(name)
            survey.add(features.item, name, rows, settings.stored_words and features is queries)
            yield rows

    for rows in read(videos, split.video_ids):
        clips, frames = settings.video(rows)
        writer.append("clips", clips)
        writer.append("frames", frames)
    for rows in read(queries, [caption.id for caption in captions]):
        writer.append("words", settings.query(rows))
    notes = [*survey.notes(settings.unit)]
    if "left_out" in about:
        notes.insert(0, f"{about['left_out']} videos have no features and are left out, with their captions.")
    index, wrong = _index(split)
    if settings.stream is not None:
        for rows in _stream_rows(corpus, split, settings):
            writer.append(STREAM, rows)
        lacking = writer.lengths[STREAM].count(0)
        lack = f"{lacking} of {len(split.video_ids)} videos have no {settings.stream}."
        if lacking == len(split.video_ids):
            raise DataError(f"{where}: {lack} Name its rows by the ids of the videos.")
        notes += [lack] * bool(lacking)
    if len(wrong):
        notes.append(
            f"the moments of {len(wrong)} videos state different lengths of their video "
            f"({split.video_ids[wrong[0]]} ...). The longest one is used."
        )
    place = {video: i for i, video in enumerate(split.video_ids)}
    text = {
        "video_ids": split.video_ids,
        "query_ids": [caption.id for caption in captions],
        "own_ids": [split.own_ids.get(caption.id, "") for caption in captions],
        "captions": [caption.text for caption in captions],
        "relevant": [sorted(place[video] for video in split.relevant(caption)) for caption in captions],
        "tags": [sorted(split.tags.get(caption.id, ())) for caption in captions],
    }
    writer.finish(index, text, about | {"notes": [f"{where}: {note}" for note in notes]})


def _index(split: Split) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Videos and moments of the queries, and the videos of which moments state different lengths."""
    place = {video: i for i, video in enumerate(split.video_ids)}
    moments = [split.moments.get(caption.id, MomentTimes(math.nan, math.nan, math.nan)) for caption in split.captions]
    owner = np.array([place[caption.video_id] for caption in split.captions], np.int64)
    times = np.array([(m.start, m.end, m.duration) for m in moments], np.float64)
    more = np.array([(q, *parts) for q, m in enumerate(moments) for parts in m.more]).reshape(-1, 3)
    longest = longest_durations(owner, times[:, 2], len(split.video_ids))
    wrong = np.unique(owner[longest[owner] - times[:, 2] > 1.0])  # seconds: lengths may be rounded
    return {"query_to_video": owner, "moments": times, "more_moments": more}, wrong


def _stream_rows(corpus: Corpus, split: Split, settings: PackSettings) -> Iterator[np.ndarray]:
    """The rows of a second stream of each video, which may have none."""
    with corpus.open_features(settings.stream) as stream:
        for video in split.video_ids:
            rows = np.empty((0, stream.dim), np.float32)
            if video in stream:
                rows = sample_video(stream.read(video), 1, settings.stream_rows, settings.keep_last)[1]
            yield rows
