"""The test videos of a corpus in a large gallery: other videos are spliced from shots of its training videos."""

import hashlib
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from _vectors import PER_SEGMENT
from prvr.corpora.corpus_encoders import corpus_encoders
from prvr.data.corpus import Corpus
from prvr.errors import DataError, InputError
from prvr.search import VideoIndex
from prvr.search.confidence import read_bank
from prvr.search.manifest import MODEL, Manifest
from prvr.search.model import SearchModel
from prvr.search.segments import VideoVectors, write_segment
from prvr.search.sync import cut, cut_at_shots, embed
from prvr.search.vectors import Dtype
from prvr.video import StoreHeader, VideoEntry

AT_ONCE = 32  # videos that are encoded together


def header_of(corpus: Corpus) -> StoreHeader:
    """What a store of the features of a corpus says of them."""
    encoders = corpus_encoders(corpus)
    if encoders is None:
        raise DataError(
            f"{corpus.folder}: does not say which encoders its features are of, so an index cannot read queries. Name "
            "a system of a toy corpus (prvr data make) or of one of your own captions (prvr convert captions)."
        )
    return StoreHeader(encoders.frames, encoders.rate, encoders.dim, encoders.joint_dim)


def entry_of(video: str, rows: np.ndarray, rate: float) -> VideoEntry:
    """The record of a video of which only the features are known."""
    about: dict[str, Any] = {"size": 1, "mtime_ns": 0, "width": 64, "height": 48, "codec": "h264"}
    digest = hashlib.sha256(rows.tobytes()).hexdigest()
    return VideoEntry(video, f"/videos/{video}", sha256=digest, duration=len(rows) / rate, frames=len(rows), **about)


def gallery_videos(corpus: Corpus, split: str, videos: int, seed: int = 0) -> Iterator[tuple[VideoEntry, np.ndarray]]:
    """The videos of a split, then spliced ones until there are enough, each with its features.

    A spliced video is a row of random shots of random training videos, as long as one of these is.
    """
    real, training, header = corpus.split(split).video_ids, corpus.split("train").video_ids, header_of(corpus)
    if videos < len(real):
        raise InputError(f"a gallery of {videos} videos: expected at least {len(real)}, those of {corpus.name} {split}")
    generator, lengths, shots = np.random.default_rng(seed), [], []
    with corpus.open_features() as features:
        for video in real:
            rows = features.read(video).astype(np.float32)
            yield entry_of(video, rows, header.rate), rows
        for video in training if videos > len(real) else ():
            rows = features.read(video)
            lengths.append(len(rows))
            cuts = cut_at_shots(rows[:, : header.joint_dim or None], len(rows) / header.rate, header.rate)
            shots += [(video, shot.first, shot.stop) for shot in cuts]
        for number in range(videos - len(real)):
            parts, missing = [], int(generator.choice(lengths))
            while missing > 0:
                video, first, stop = shots[generator.integers(len(shots))]
                parts.append(features.read(video)[first : min(stop, first + missing)])
                missing -= len(parts[-1])
            rows = np.concatenate(parts).astype(np.float32)
            yield entry_of(f"spliced-{number:09d}", rows, header.rate), rows


def write_gallery(
    folder: Path,
    model: SearchModel,
    header: StoreHeader,
    given: Iterable[tuple[VideoEntry, np.ndarray]],
    videos: int,
    dtype: Dtype = "float16",
    most_bytes: float = np.inf,
) -> Manifest:
    """Writes an index of many videos a segment at a time; it is made as `VideoIndex.create` makes it by default."""
    VideoIndex.create(folder, model, header, dtype=dtype)
    manifest, records, next_key = Manifest.read(folder), [], 0
    made = embedded(model, manifest, read_bank(folder / MODEL, manifest), iter(given))
    while segment := list(islice(made, PER_SEGMENT)):
        next_key = int(segment[-1].keys[-1]) + 1
        records.append(write_segment(folder, segment))
        if (expected := records[0].bytes / records[0].videos * videos) > most_bytes:
            raise InputError(f"{videos:,} videos would take {expected / 1e9:.1f} GB of disk; --gigabytes allows more")
    manifest = replace(manifest, segments=tuple(records), next_key=next_key)
    manifest.write(folder)
    return manifest


def embedded(
    model: SearchModel, manifest: Manifest, bank: np.ndarray | None, given: Iterator[tuple[VideoEntry, np.ndarray]]
) -> Iterator[VideoVectors]:
    """What `prvr.search.sync.embed` gives for each video; the model encodes the windows of many together."""
    rate, window, stride, next_key = manifest.encoder.rate, manifest.window, manifest.stride, 0
    assert not isinstance(window, str)
    while some := list(islice(given, AT_ONCE)):
        cuts = [(rows, cut(len(rows), entry.duration, rate, window, stride)) for entry, rows in some]
        encoded = iter(model.encode_windows([rows[one.first : one.stop] for rows, ones in cuts for one in ones]))
        ahead: Any = copy(model)
        ahead.encode_windows = lambda windows, encoded=encoded: list(islice(encoded, len(windows)))
        for (entry, rows), (_, ones) in zip(some, cuts, strict=True):
            yield embed(ahead, bank, manifest, entry, rows, next_key)
            next_key += len(ones)
