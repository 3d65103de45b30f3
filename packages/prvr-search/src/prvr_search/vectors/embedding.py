"""Vectors of a video by a model: it is cut into windows, which are encoded and packed."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
from jaxtyping import Float, Float64

from prvr.encoders import FeatureSpec, VideoEntry
from prvr.errors import DataError, InputError
from prvr_search.store.features import nameless
from prvr_search.vectors.files import Arrays
from prvr_search.vectors.model import RowSet, SearchModel, Spans, unit

_FORMAT = 7  # raise it when files change: those of another format are not read


def embed(
    model: SearchModel,
    cut: Callable[[int, float], tuple[Spans, Float64[np.ndarray, "w 2"]]],
    entry: VideoEntry,
    features: Float[np.ndarray, "n f"],
) -> Arrays:
    """Encodes the windows of a video and packs their vectors.

    Args:
        model: the model of the index.
        cut: gives the windows of a number of rows and a duration, see `cut_windows`.
        entry: what is known of the video.
        features: `(n, f)` the features of the video.

    Raises:
        DataError: the model gives NaN or infinity for it.
    """
    windows, times = cut(len(features), entry.duration)
    spans, encoded = model.encode_video(features, windows)
    if spans is not windows:  # the model has divided the video itself
        edges = np.append(spans[:, 0] * (entry.duration / len(features)), entry.duration)
        times = np.stack([edges[:-1], edges[1:]], 1)
    weights = {"clips": model.clip_weight or model.frames_by_clip, "frames": model.frame_weight}
    sets = {name: RowSet(model.dim) for name, weight in weights.items() if weight} | {**model.stored}
    parts = defaultdict[str, list[np.ndarray]](list)
    for vectors in encoded:
        parts["steps"].append(np.array([vectors.steps], np.int32))
        for name, kind in sets.items():
            raw = getattr(vectors, name) if name in ("clips", "frames") else vectors.stored[name]
            if not np.isfinite(raw).all():
                raise DataError(f"{entry.id}: the model gives NaN or infinity for this video. Use another model.")
            parts[name].append(unit(raw).astype("<f2"))
            parts[f"{name}.counts"].append(np.array([len(raw)], np.int32))
            if kind.lengths:
                parts[f"{name}.lengths"].append(np.linalg.norm(raw, axis=1).astype(np.float32))
    return {"times": times, **{name: np.concatenate(of_windows) for name, of_windows in parts.items()}}


def cut_windows(
    rows: int, duration: float, rate: float, window: float | None, stride: float | None
) -> tuple[Spans, Float64[np.ndarray, "w 2"]]:
    """The overlapping windows of a video; one, if it is not longer than a window. The last one ends where it does.

    Args:
        rows: number of rows of features, at least one; row k stands for the time from `k / rate` to `(k + 1) / rate`.
        duration: the duration of the video, in seconds.
        rate: rows per second.
        window: the length of a window in seconds; None: the video is one window.
        stride: seconds from the start of one window to that of the next, at most `window`.

    Returns:
        Of each window the first row and the one after its last, and the start and the end in seconds.

    Examples:
        >>> spans, times = cut_windows(250, 250.4, 1.0, 120.0, 60.0)
        >>> spans.tolist()
        [[0, 120], [60, 180], [120, 240], [130, 250]]
        >>> times.tolist()
        [[0.0, 120.0], [60.0, 180.0], [120.0, 240.0], [130.0, 250.4]]
    """
    size = rows if window is None else max(1, round(window * rate))
    step = rows if stride is None else max(1, round(stride * rate))
    firsts = np.array([*range(0, rows - size, step), max(0, rows - size)], np.int64)
    spans = np.stack([firsts, np.minimum(firsts + size, rows)], 1)
    times = spans / rate
    times[-1, 1] = duration
    return spans, times


def index_key(model: SearchModel, features: FeatureSpec, window: float | None, stride: float | None) -> str:
    """A hash of all that the vectors of an index depend on.

    Raises:
        ValueError: there would be gaps between windows, or their length is not positive.
    """
    if (window is None) != (stride is None) or (window is not None and stride is not None and not 0 < stride <= window):
        raise InputError(f"window={window}, stride={stride} seconds: expected 0 < stride <= window, or None for both")
    values = nameless({"model": asdict(model.identity), "features": asdict(features)})
    body = json.dumps([_FORMAT, values, window, stride], sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()
