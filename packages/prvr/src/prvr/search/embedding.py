"""Features of a video to what an index keeps of it."""

import numpy as np
from jaxtyping import Float

from prvr.errors import DataError
from prvr.search.manifest import Manifest
from prvr.search.model import SearchModel
from prvr.search.segments import VideoVectors
from prvr.search.vectors import concatenate_rows, pack_rows
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
    clips, frames, counts, steps = [], [], [], []
    for first in range(0, len(windows), _AT_ONCE):
        for one in model.encode_windows([window.of(features) for window in windows[first : first + _AT_ONCE]]):
            if not (np.isfinite(one.clips).all() and np.isfinite(one.frames).all()):
                raise DataError(f"{entry.id}: the model gives NaN or infinity for this video. Use another model.")
            clips.append(pack_rows(one.clips, about.dtype))
            frames.append(pack_rows(one.frames, about.dtype))
            counts.append(len(one.frames))
            steps.append(one.steps)
    return VideoVectors(
        entry,
        np.arange(first_key, first_key + len(windows)),
        np.array([(window.start, window.end) for window in windows]),
        concatenate_rows(clips),
        concatenate_rows(frames),
        np.array(counts, np.int64),
        np.array(steps, np.int64),
    )
