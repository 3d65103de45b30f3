"""The files of an index that hold rows: arrays that are mapped by readers, and only grow."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from prvr.encoders import VideoEntry
from prvr_search.manifest import ROWS, WINDOWS, IndexedVideo, Manifest, StaleIndex


class VideoVectors(NamedTuple):
    """A video as it is written.

    Args:
        entry: what is known of it.
        files: what is its own of each file of `Manifest.files`.
    """

    entry: VideoEntry
    files: Mapping[str, np.ndarray]

    @property
    def bytes(self) -> int:
        """Size of its rows."""
        return sum(rows.nbytes for rows in self.files.values())


def append_rows(folder: Path, manifest: Manifest, videos: Sequence[VideoVectors]) -> Manifest:
    """Writes videos behind the rows that count; they count as soon as the manifest that is returned is written.

    Args:
        folder: the folder of the index.
        manifest: its manifest.
        videos: the videos; they replace those with the same ids.
    """
    place, sizes = folder / ROWS / manifest.generation, dict(manifest.sizes)
    place.mkdir(parents=True, exist_ok=True)
    for name, kind in manifest.files.items():
        parts = [np.ascontiguousarray(video.files[name], kind.base) for video in videos]
        with (place / name).open("r+b" if (place / name).exists() else "xb") as file:
            file.seek(sizes.get(name, 0) * kind.itemsize)
            for part in parts:
                file.write(part.reshape(-1).view(np.uint8).data)  # without a copy
            file.flush()
            os.fsync(file.fileno())
        sizes[name] = sizes.get(name, 0) + sum(map(len, parts))
    counts = [len(video.files[WINDOWS]) for video in videos]
    firsts = manifest.windows + np.cumsum([0, *counts])
    added = [IndexedVideo(one.entry, *at) for one, *at in zip(videos, firsts.tolist(), counts, strict=False)]
    kept = manifest.without({one.entry.id for one in videos})
    return replace(kept, sizes=sizes, videos=(*kept.videos, *added))


def open_rows(folder: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    """The files of rows: all are mapped but the table of windows, which is read.

    Raises:
        StaleIndex: a file is missing or damaged.
    """
    place = folder / ROWS / manifest.generation
    try:
        files = {
            name: _mapped(place / name, kind, manifest.sizes.get(name, 0)) for name, kind in manifest.files.items()
        }
    except (OSError, ValueError) as error:
        raise StaleIndex(f"{place}: cannot be used ({error})") from error
    windows = files[WINDOWS] = np.array(files[WINDOWS])
    counts = {name: (windows[name].sum(), windows[name].min(initial=0)) for name in manifest.row_sets}
    if any(least < 0 or total != len(files[name]) for name, (total, least) in counts.items()):
        raise StaleIndex(f"{place}: its files do not fit each other")
    return files


def _mapped(path: Path, kind: np.dtype, size: int) -> np.ndarray:
    if path.is_symlink() or path.parent.is_symlink():  # what is appended would go into somebody else's file
        raise ValueError(f"{path}: is a symbolic link")
    if not size:
        return np.empty(0, kind)
    if not path.is_file():  # opening a pipe would wait
        raise ValueError(f"{path.name}: no such file")
    # "c": torch takes no read-only array. A plain view costs less to slice than a memmap.
    return np.memmap(path, kind, "c", shape=size).view(np.ndarray)
