"""Reads all of an index and says what is wrong with it."""

from pathlib import Path

import numpy as np

from prvr.data.errors import DataError
from prvr.search.manifest import MODEL, SEGMENTS, Manifest, SegmentRecord
from prvr.search.segments import Segment, check_files

__all__ = ["verify_index"]


def verify_index(folder: Path | str) -> tuple[str, ...]:
    """What is wrong with an index: each message names a file. Nothing, if all is well.

    Compares the hash of every file that the manifest names, and whether the tables of the segments agree with each
    other. Works where the index is too damaged to be opened.

    Args:
        folder: of the index.
    """
    root = Path(folder).expanduser()
    try:
        manifest = Manifest.read(root)
    except DataError as error:
        return (str(error),)
    said = check_files(root / MODEL, manifest.model_files)
    keys: set[int] = set()
    videos: set[str] = set()
    for record in manifest.segments:
        there = root / SEGMENTS / record.name
        wrong = check_files(there, record.files)
        said += wrong or _disagreements(root, manifest, record, keys, videos)
    return tuple(said)


def _disagreements(
    root: Path, manifest: Manifest, record: SegmentRecord, keys: set[int], videos: set[str]
) -> list[str]:
    """What in the tables of a segment, whose files are intact, cannot be; adds its keys and live videos to the sets."""
    try:
        one = Segment.open(root, record)
    except DataError as error:
        return [str(error)]
    live = [one.entries[number].id for number in one.live]
    mine = one.keys[~np.isin(one.owners, record.removed)].tolist()
    checks = {
        "a video stands twice in the index": videos.isdisjoint(live) and len(set(live)) == len(live),
        "a key stands twice in the index": keys.isdisjoint(mine) and len(set(mine)) == len(mine),
        "a key is one that was never given": bool((one.keys < manifest.next_key).all()),
        "its tables are of different lengths": len(one.entries) == record.videos
        and len(one.keys) == len(one.owners) == len(one.spans) == len(one.steps) == record.windows
        and len(one.clips.values) == record.windows * manifest.clips
        and len(one.frames.values) == record.frames == int(one.frame_offsets[-1]),
        "its vectors are of another width": one.clips.values.shape[1] == one.frames.values.shape[1] == manifest.dim,
    }
    keys.update(mine)
    videos.update(live)
    return [f"{root / SEGMENTS / record.name}: {what}." for what, good in checks.items() if not good]
