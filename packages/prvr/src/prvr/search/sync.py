"""Bringing an index up to date with features: videos are cut into windows, encoded, and written a few at a time."""

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from prvr.errors import DataError
from prvr.search.confidence import bank_scores, bank_vectors
from prvr.search.manifest import BANK_SCORES, Manifest
from prvr.search.model import SearchModel
from prvr.search.segments import VideoVectors
from prvr.search.vectors import PackedRows, WindowRows, concatenate_rows, pack_rows
from prvr.search.writing import IndexWriter
from prvr.video import VideoEntry, VideoFeatures

logger = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]
"""Called with the id of a video, the number of videos that are done, and the number of all."""

VIDEOS, BYTES = 64, 64 * 2**20
"""A segment is written when so many videos, or so many bytes of vectors, are waiting: what a kill may lose."""
_AT_ONCE = 32  # windows whose vectors are held as float32


def sync(
    writer: IndexWriter,
    model: SearchModel,
    features: VideoFeatures,
    progress: Progress | None = None,
) -> None:
    """Makes an index hold the videos of some features: adds new ones, replaces changed ones, removes the others.

    Args:
        writer: the writer of the index.
        model: the model of the index.
        features: what the encoder of the index made.
        progress: called before each video that is encoded, and when all is done.
    """
    known = writer.entries
    todo = [video for video, entry in features.entries.items() if video not in known or _differs(known[video], entry)]
    if removed := [video for video in known if video not in features.entries]:
        writer.drop(removed)
    bank = bank_vectors(model) if todo and writer.manifest.bank else None
    waiting: list[VideoVectors] = []
    next_key = writer.manifest.next_key
    for done, video in enumerate(todo):
        if progress is not None:
            progress(video, done, len(todo))
        try:
            rows = features.read(video)
        except DataError as error:
            logger.warning("%s", error)  # the next update encodes it again
            continue
        waiting.append(embed(model, bank, writer.manifest, features.entries[video], rows, next_key))
        next_key = int(waiting[-1].keys[-1]) + 1
        if len(waiting) >= VIDEOS or sum(one.bytes for one in waiting) >= BYTES:
            writer.put(waiting)
            waiting = []
    if waiting:
        writer.put(waiting)
    if progress is not None and todo:
        progress(todo[-1], len(todo), len(todo))


def _differs(known: VideoEntry, now: VideoEntry) -> bool:
    """Whether the file has changed, or lies elsewhere."""
    return (known.sha256, known.path, known.frames) != (now.sha256, now.path, now.frames)


def embed(
    model: SearchModel,
    bank: Float32[np.ndarray, "s d"] | None,
    manifest: Manifest,
    entry: VideoEntry,
    features: Float[np.ndarray, "n f"],
    first_key: int,
) -> VideoVectors:
    """Encodes the windows of a video and packs their vectors, with the scores that the bank reaches in them.

    Args:
        model: the model of the index.
        bank: `(s, d)` vectors of the unrelated sentences of the index; None if it has none.
        manifest: the manifest of the index.
        entry: what is known of the video.
        features: `(n, f)` the features of the video.
        first_key: the key of its first window.

    Raises:
        DataError: the model gives NaN or infinity for it.
    """
    windows = cut(len(features), entry.duration, manifest.rate, manifest.window, manifest.stride)
    packed: dict[str, list[PackedRows]] = {name: [] for name in manifest.row_sets}
    steps = []
    for first in range(0, len(windows), _AT_ONCE):
        some = [features[window.first : window.stop] for window in windows[first : first + _AT_ONCE]]
        for vectors in model.encode_windows(some):
            rows = {**vectors.stored, "clips": vectors.clips, "frames": vectors.frames}
            if not all(np.isfinite(values).all() for values in rows.values()):
                raise DataError(f"{entry.id}: the model gives NaN or infinity for this video. Use another model.")
            for name in packed.keys() - {BANK_SCORES}:
                packed[name].append(pack_rows(rows[name], manifest.row_sets[name].lengths))
            steps.append(vectors.steps)
        if bank is not None:
            scores = bank_scores(manifest, bank, packed["clips"][first:], packed["frames"][first:])
            packed[BANK_SCORES] += [pack_rows(row[None], lengths=True) for row in scores]
    return VideoVectors(
        entry,
        np.arange(first_key, first_key + len(windows)),
        np.array([(window.start, window.end) for window in windows]),
        np.array(steps, np.int64),
        {
            name: WindowRows(concatenate_rows(parts), np.array([len(part) for part in parts], np.int64))
            for name, parts in packed.items()
        },
    )


class Window(NamedTuple):
    """A run of rows of a video: rows `first` to `stop - 1`, and the time that they stand for, in seconds."""

    first: int
    stop: int
    start: float
    end: float


def cut(rows: int, duration: float, rate: float, window: float | None, stride: float | None) -> list[Window]:
    """The overlapping windows of a video; one, if it is not longer than a window. The last one ends where it does.

    Args:
        rows: number of rows of features, at least one; row k stands for the time from `k / rate` to `(k + 1) / rate`.
        duration: the duration of the video, in seconds.
        rate: rows per second.
        window: the length of a window in seconds; None: the video is one window.
        stride: seconds from the start of one window to that of the next, at most `window`.

    Examples:
        >>> [(w.first, w.stop) for w in cut(300, 300.0, 1.0, 120.0, 60.0)]
        [(0, 120), (60, 180), (120, 240), (180, 300)]
        >>> [(w.start, w.end) for w in cut(250, 250.4, 1.0, 120.0, 60.0)]
        [(0.0, 120.0), (60.0, 180.0), (120.0, 240.0), (130.0, 250.4)]
        >>> cut(120, 119.6, 1.0, 120.0, 60.0)
        [Window(first=0, stop=120, start=0.0, end=119.6)]
    """
    if window is None or stride is None:
        return [Window(0, rows, 0.0, duration)]
    size, step = max(1, round(window * rate)), max(1, round(stride * rate))
    if rows <= size:
        return [Window(0, rows, 0.0, duration)]
    firsts = [*range(0, rows - size, step), rows - size]
    ends = [(first + size) / rate for first in firsts[:-1]] + [duration]
    return [Window(first, first + size, first / rate, end) for first, end in zip(firsts, ends, strict=True)]
