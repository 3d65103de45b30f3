"""Features of a video to what an index keeps of it."""

import numpy as np
from jaxtyping import Float

from prvr.errors import DataError
from prvr.search.manifest import Manifest
from prvr.search.model import SearchModel
from prvr.search.segments import VideoVectors
from prvr.search.vectors import PackedRows, WindowRows, concatenate_rows, pack_rows
from prvr.search.windows import cut
from prvr.video import VideoEntry

__all__ = ["embed"]

_AT_ONCE = 32  # windows whose vectors are held as float32


def embed(
    model: SearchModel, about: Manifest, entry: VideoEntry, features: Float[np.ndarray, "n f"], first_key: int
) -> VideoVectors:
    """The windows of a video, encoded and packed.

    Args:
        model: of the index.
        about: the index.
        entry: of the video.
        features: `(n, f)` as they are in the store.
        first_key: of its first window.

    Raises:
        DataError: the model gives NaN or infinity for it.
    """
    windows = cut(len(features), entry.duration, about.encoder.rate, about.window, about.stride)
    packed: dict[str, list[PackedRows]] = {name: [] for name in about.row_sets}
    steps = []
    for first in range(0, len(windows), _AT_ONCE):
        for one in model.encode_windows([window.of(features) for window in windows[first : first + _AT_ONCE]]):
            given = {**one.stored, "clips": one.clips, "frames": one.frames}
            if not all(np.isfinite(rows).all() for rows in given.values()):
                raise DataError(f"{entry.id}: the model gives NaN or infinity for this video. Use another model.")
            for name, kind in about.row_sets.items():
                packed[name].append(pack_rows(given[name], about.dtype, kind.lengths))
            steps.append(one.steps)
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
