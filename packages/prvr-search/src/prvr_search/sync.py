"""Bringing an index up to date with features: videos are cut into windows, encoded, and written a few at a time."""

import logging
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from prvr.encoders import VideoEntry, VideoFeatures
from prvr.errors import DataError
from prvr_search.manifest import ROWS, WINDOWS, Manifest
from prvr_search.model import EncodesMoments, EncodesWindows, SearchModel, WindowVectors
from prvr_search.row_files import VideoVectors, append_rows
from prvr_search.snapshot import Snapshot
from prvr_search.vectors import pack_rows

logger = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]
"""Called with the id of a video, the number of videos that are done, and the number of all."""

VIDEOS, BYTES = 64, 64 * 2**20
"""Videos are written when so many, or so many bytes of vectors, are waiting: what a kill may lose."""
_AT_ONCE = 32  # windows whose vectors are held as float32
_LIVE = 0.75  # files of which fewer windows are of videos that are there are rewritten: search compares all of them


def sync(
    snapshot: Snapshot,
    model: SearchModel,
    features: VideoFeatures,
    progress: Progress | None,
) -> Snapshot:
    """Makes an index hold the videos of some features: adds new ones, replaces changed ones, removes the others.

    The vectors of a video that was renamed, moved or copied are taken over.

    Args:
        snapshot: the state of the index, which no other process changes meanwhile.
        model: the model of the index.
        features: what the encoder of the index made.
        progress: called before each video that is encoded, and when all is done.

    Returns:
        The new state; the same one if nothing has changed.
    """
    folder, manifest = snapshot.folder, snapshot.manifest
    indexed = {video_id: record.entry for video_id, record in snapshot.videos.items()}
    todo = [video for video, entry in features.entries.items() if _differs(indexed.get(video), entry)]
    if removed := indexed.keys() - features.entries.keys():
        manifest = commit(folder, manifest.without(removed))
    names = {_content(record.entry): name for name, record in snapshot.videos.items()}
    waiting: list[VideoVectors] = []
    for done, video in enumerate(todo):
        if progress is not None:
            progress(video, done, len(todo))
        entry = features.entries[video]
        if same := names.get(_content(entry)):
            waiting.append(snapshot.vectors(same)._replace(entry=entry))
        else:
            try:
                rows = features.read(video)
            except DataError as error:
                logger.warning("%s", error)  # the next update encodes it again
                continue
            waiting.append(embed(model, manifest, entry, rows))
        if len(waiting) >= VIDEOS or sum(vectors.bytes for vectors in waiting) >= BYTES:
            manifest = commit(folder, append_rows(folder, manifest, waiting))
            waiting = []
    if waiting:
        manifest = commit(folder, append_rows(folder, manifest, waiting))
    if progress is not None and todo:
        progress(todo[-1], len(todo), len(todo))
    if manifest is snapshot.manifest:
        return snapshot
    snapshot = Snapshot.open(folder)
    if len(snapshot.live_keys()) >= _LIVE * snapshot.windows:
        return snapshot
    empty = replace(manifest, generation=secrets.token_hex(8), sizes={}, videos=())
    commit(folder, append_rows(folder, empty, [snapshot.vectors(record.entry.id) for record in manifest.videos]))
    return Snapshot.open(folder)


def commit(folder: Path, manifest: Manifest) -> Manifest:
    """Writes a manifest, then deletes the files of other generations; readers that have one open keep it."""
    manifest.write(folder)
    for path in (folder / ROWS).iterdir():
        if path.name != manifest.generation and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
    return manifest


def _content(entry: VideoEntry) -> tuple[str, int, float]:
    """Equal for videos with the same vectors."""
    return entry.sha256, entry.frames, entry.duration


def _differs(indexed: VideoEntry | None, now: VideoEntry) -> bool:
    """Whether the file is new, has changed, or lies elsewhere."""
    return indexed is None or (indexed.sha256, indexed.path, indexed.frames) != (now.sha256, now.path, now.frames)


def embed(
    model: SearchModel,
    manifest: Manifest,
    entry: VideoEntry,
    features: Float[np.ndarray, "n f"],
) -> VideoVectors:
    """Encodes the windows of a video and packs their vectors.

    Args:
        model: the model of the index.
        manifest: the manifest of the index.
        entry: what is known of the video.
        features: `(n, f)` the features of the video.

    Raises:
        DataError: the model gives NaN or infinity for it.
    """
    windows, encoded = _windows(model, manifest, entry, features)
    table = np.zeros(len(windows), manifest.files[WINDOWS])
    table["start"], table["end"] = [window.start for window in windows], [window.end for window in windows]
    files: dict[str, list[np.ndarray]] = {name: [] for name in manifest.files}
    for number, vectors in enumerate(encoded):
        sets = {**vectors.stored, "clips": vectors.clips, "frames": vectors.frames}
        if not all(np.isfinite(rows).all() for rows in sets.values()):
            raise DataError(f"{entry.id}: the model gives NaN or infinity for this video. Use another model.")
        table["steps"][number] = vectors.steps
        for name in manifest.row_sets:
            table[name][number] = len(sets[name])
            files[name].append(pack_rows(sets[name]))
            if f"{name}_lengths" in files:
                files[f"{name}_lengths"].append(np.linalg.norm(sets[name], axis=1))
    files[WINDOWS] = [table]
    return VideoVectors(
        entry,
        {name: np.concatenate(parts).astype(manifest.files[name].base, copy=False) for name, parts in files.items()},
    )


def _windows(
    model: SearchModel, manifest: Manifest, entry: VideoEntry, features: Float[np.ndarray, "n f"]
) -> tuple[list["Window"], Iterator[WindowVectors]]:
    """The windows of a video and their vectors: moments where the model divides the video, or of equal lengths.

    Raises:
        TypeError: the model encodes neither.
    """
    if isinstance(model, EncodesMoments):
        vectors, spans = model.encode_moments(features)
        edges = [*(spans[:, 0] * (entry.duration / len(features))).tolist(), entry.duration]
        windows = [Window(*span, *edges[i : i + 2]) for i, span in enumerate(spans.tolist())]
        return windows, (WindowVectors(row[None], row[None][:0], 0) for row in vectors)
    if not isinstance(model, EncodesWindows):
        raise TypeError(f"{type(model).__name__}: expected a model with encode_windows or encode_moments")
    encode = model.encode_windows
    windows = cut(len(features), entry.duration, manifest.rate, manifest.window, manifest.stride)
    groups = (windows[first : first + _AT_ONCE] for first in range(0, len(windows), _AT_ONCE))
    return windows, (vectors for group in groups for vectors in encode([features[w.first : w.stop] for w in group]))


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
