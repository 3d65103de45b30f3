"""A part of the training videos set aside to choose the checkpoint."""

import hashlib

import numpy as np

from prvr.data.packed import PackedSplit
from prvr.errors import DataError, InputError


def holdout(packed: PackedSplit, fraction: float = 0.1) -> tuple[PackedSplit, PackedSplit]:
    """Splits by a hash of the video id, so that a video always falls on the same side, whatever else is there.

    A video is held out if the first 64 bits of sha256 of its id, read as a number in [0, 1), lie below ``fraction``. On
    very few videos the one nearest to the border changes sides where a side would be empty.

    Args:
        packed: at least two videos.
        fraction: expected share that is held out, in (0, 1).

    Returns:
        (train, validation), with the queries of their videos; they share the store.

    Raises:
        DataError: fewer than two videos.
        ValueError: ``fraction`` out of range.
    """
    if not 0 < fraction < 1:
        raise InputError(f"holdout: fraction must lie in (0, 1), got {fraction}")
    if len(packed) < 2:
        raise DataError(f"{packed.name}: a hold-out needs at least two videos, got {len(packed)}.")
    place = np.array([_place(video_id) for video_id in packed.video_ids])
    held = place < fraction
    if not held.any():
        held[place.argmin()] = True
    if held.all():
        held[place.argmax()] = False
    return packed.subset(np.flatnonzero(~held)), packed.subset(np.flatnonzero(held))


def _place(video_id: str) -> float:
    return int.from_bytes(hashlib.sha256(video_id.encode()).digest()[:8], "big") / 2**64
