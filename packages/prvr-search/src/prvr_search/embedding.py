"""Vectors of a video by a model: it is cut into windows, which are encoded and packed."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from prvr.encoders import FeatureSpec, VideoEntry
from prvr.errors import DataError, InputError
from prvr_search.model import EncodesMoments, EncodesWindows, SearchModel, WindowVectors
from prvr_search.vector_files import Content, VideoVectors, row_sets
from prvr_search.vectors import pack_rows

_AT_ONCE = 32  # windows whose vectors are held as float32
_FORMAT = 4  # raise it when files change: those of another format are not read


def embed(
    model: SearchModel,
    cut: Callable[[int, float], list["Window"]],
    entry: VideoEntry,
    features: Float[np.ndarray, "n f"],
) -> VideoVectors:
    """Encodes the windows of a video and packs their vectors.

    Args:
        model: the model of the index.
        cut: gives the windows of a number of rows and a duration, see `cut_windows`.
        entry: what is known of the video.
        features: `(n, f)` the features of the video.

    Raises:
        DataError: the model gives NaN or infinity for it.
    """
    windows, encoded = _windows(model, cut, entry, features)
    sets = row_sets(model)
    rows: dict[str, list[np.ndarray]] = {name: [] for name in sets}
    lengths: dict[str, list[np.ndarray]] = {name: [] for name, kind in sets.items() if kind.lengths}
    steps = []
    for vectors in encoded:
        steps.append(vectors.steps)
        for name in sets:
            raw = getattr(vectors, name) if name in ("clips", "frames") else vectors.stored[name]
            if not np.isfinite(raw).all():
                raise DataError(f"{entry.id}: the model gives NaN or infinity for this video. Use another model.")
            rows[name].append(pack_rows(raw))
            if name in lengths:
                lengths[name].append(np.linalg.norm(raw, axis=1))
    arrays = {
        "times": np.array([(window.start, window.end) for window in windows], np.float64),
        "steps": np.array(steps, np.int64),
        **{name: np.concatenate(parts) for name, parts in rows.items()},
        **{f"{name}.counts": np.array([*map(len, parts)], np.int64) for name, parts in rows.items()},
        **{f"{name}.lengths": np.concatenate(parts).astype(np.float32) for name, parts in lengths.items()},
    }
    return VideoVectors({Content.of(entry): len(windows)}, arrays)


def _windows(
    model: SearchModel,
    cut: Callable[[int, float], list["Window"]],
    entry: VideoEntry,
    features: Float[np.ndarray, "n f"],
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
    windows = cut(len(features), entry.duration)
    groups = (windows[first : first + _AT_ONCE] for first in range(0, len(windows), _AT_ONCE))
    return windows, (vectors for group in groups for vectors in encode([features[w.first : w.stop] for w in group]))


class Window(NamedTuple):
    """A run of rows of a video: rows `first` to `stop - 1`, and the time that they stand for, in seconds."""

    first: int
    stop: int
    start: float
    end: float


def cut_windows(rows: int, duration: float, rate: float, window: float | None, stride: float | None) -> list[Window]:
    """The overlapping windows of a video; one, if it is not longer than a window. The last one ends where it does.

    Args:
        rows: number of rows of features, at least one; row k stands for the time from `k / rate` to `(k + 1) / rate`.
        duration: the duration of the video, in seconds.
        rate: rows per second.
        window: the length of a window in seconds; None: the video is one window.
        stride: seconds from the start of one window to that of the next, at most `window`.

    Examples:
        >>> [(w.first, w.stop) for w in cut_windows(300, 300.0, 1.0, 120.0, 60.0)]
        [(0, 120), (60, 180), (120, 240), (180, 300)]
        >>> [(w.start, w.end) for w in cut_windows(250, 250.4, 1.0, 120.0, 60.0)]
        [(0.0, 120.0), (60.0, 180.0), (120.0, 240.0), (130.0, 250.4)]
        >>> cut_windows(120, 119.6, 1.0, 120.0, 60.0)
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


def index_key(model: SearchModel, features: FeatureSpec, window: float | None, stride: float | None) -> str:
    """A hash of all that the vectors of an index depend on.

    Raises:
        ValueError: there would be gaps between windows, or their length is not positive.
    """
    if (window is None) != (stride is None) or (window is not None and stride is not None and not 0 < stride <= window):
        raise InputError(f"window={window}, stride={stride} seconds: expected 0 < stride <= window, or None for both")
    values = {"model": asdict(model.identity), "features": asdict(features)}
    for identity in (
        values["model"],
        values["model"]["frames"],
        values["model"]["text"],
        values["features"]["encoder"],
    ):
        identity.pop("name")  # a model may lie in two places
    body = json.dumps([_FORMAT, values, window, stride], sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()
