"""A snapshot of an index: one state, open for reading, which no writer changes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float16, Float32, Float64, Int64

from prvr.encoders import VideoEntry
from prvr.errors import DataError
from prvr_search.backends import ClipBlock
from prvr_search.manifest import WINDOWS, IndexedVideo, Manifest, StaleIndex, read_manifest
from prvr_search.model import CLIP_TIMES
from prvr_search.row_files import VideoVectors, open_rows
from prvr_search.vectors import unpack_rows

_BLOCK_ROWS = 1 << 12  # vectors that are unpacked at a time: 6 MB at width 384, which stay in the cache and in the heap
_TRIES = 5


class RowBlock(NamedTuple):
    """Windows that are scored together.

    Args:
        rows: `(w)` numbers of the windows.
        clips: `(w, c, d)` unit rows.
        frames: `(n, d)` unit rows of all windows, one after the other; window i has `frames[offsets[i]:offsets[i+1]]`.
        offsets: `(w + 1)`.
    """

    rows: Int64[np.ndarray, " w"]
    clips: Float32[np.ndarray, "w c d"]
    frames: Float32[np.ndarray, "n d"]
    offsets: Int64[np.ndarray, " _"]


def first_copies(hashes: Iterable[str]) -> Int64[np.ndarray, " v"]:
    """For each hash the number of the first equal one.

    Examples:
        >>> first_copies(["a", "b", "a"]).tolist()
        [0, 1, 0]
    """
    first: dict[str, int] = {}
    return np.array([first.setdefault(sha256, number) for number, sha256 in enumerate(hashes)], np.int64)


@dataclass(frozen=True)
class Snapshot:
    """The videos and vectors of an index, for the scoring and for backends (`prvr_search.backends.ClipSource`).

    Windows have numbers; those of a video lie together, and those of removed videos stay until the files are rewritten.

    Args:
        folder: the folder of the index.
        manifest: the manifest of the index.
        files: the files of rows, by name, see `Manifest.files`.
    """

    folder: Path
    manifest: Manifest
    files: Mapping[str, np.ndarray] = field(repr=False)

    @classmethod
    def open(cls, folder: Path) -> "Snapshot":
        """Opens the current state. If a writer rewrites the files meanwhile, the next state is opened.

        Raises:
            StaleIndex: there is no index, or it is damaged.
        """
        for _ in range(_TRIES):
            content = read_manifest(folder)
            try:
                manifest = Manifest.parse(content, str(folder))
                return cls(folder, manifest, open_rows(folder, manifest))
            except DataError as error:
                if read_manifest(folder) == content:
                    raise StaleIndex(str(error)) from error
        raise StaleIndex(f"{folder}: changes while it is read")

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.manifest.dim

    @property
    def clips(self) -> int:
        """Number of clips of every window."""
        return self.manifest.clips

    @property
    def index_id(self) -> str:
        """The random id of the index."""
        return self.manifest.index_id

    @property
    def generation(self) -> str:
        """The random id of the numbering of windows."""
        return self.manifest.generation

    @property
    def windows(self) -> int:
        """Number of windows, those of removed videos included."""
        return self.manifest.windows

    @cached_property
    def videos(self) -> dict[str, IndexedVideo]:
        """The videos by id, in order of ids."""
        return {video.entry.id: video for video in sorted(self.manifest.videos, key=lambda video: video.entry.id)}

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Ids of the videos, in order; the number of a video is its position here."""
        return tuple(self.videos)

    def video(self, video_id: str) -> VideoEntry:
        """The record of a video.

        Raises:
            KeyError: it is not in the index.
        """
        return self.videos[video_id].entry

    def vectors(self, video_id: str) -> VideoVectors:
        """A video as it was written."""
        video, files = self.videos[video_id], {}
        windows = slice(video.first, video.first + video.windows)
        for name in self.manifest.row_sets:
            rows = slice(*self._offsets[name][[windows.start, windows.stop]].tolist())
            files |= {file: self.files[file][rows] for file in (name, f"{name}_lengths") if file in self.files}
        return VideoVectors(video.entry, {WINDOWS: self.files[WINDOWS][windows], **files})

    def blocks(self, first: int = 0) -> Iterator[ClipBlock]:
        """Clips of all windows from a number on, a bounded number at a time, see `ClipSource`."""
        step = max(1, _BLOCK_ROWS // self.clips)
        for start in range(first, self.windows, step):
            rows = np.arange(start, min(start + step, self.windows))
            vectors = np.array(self.unpacked("clips", rows)).reshape(len(rows), self.clips, self.dim)
            yield ClipBlock(rows, vectors)  # a copy: a backend may work on it

    def live_keys(self) -> Int64[np.ndarray, " n"]:
        """Numbers of the windows of all videos, in ascending order."""
        return self.rows_of_videos(None)

    @cached_property
    def originals(self) -> Int64[np.ndarray, " v"]:
        """For each video the number of the first one whose file has the same content: its own, if it is no copy."""
        return first_copies(video.entry.sha256 for video in self.videos.values())

    def rows_of_videos(self, videos: Int64[np.ndarray, " v"] | None) -> Int64[np.ndarray, " n"]:
        """Numbers of the windows of these videos (None = all), ascending: the order of time within a video."""
        if videos is None:
            return np.flatnonzero(self.owners >= 0)
        spans = [self._spans[number] for number in videos.tolist()]
        return np.sort(np.concatenate([np.empty(0, np.int64), *(np.arange(*span) for span in spans)]))

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """The first window of each video, and the one after its last."""
        return [(video.first, video.first + video.windows) for video in self.videos.values()]

    @cached_property
    def owners(self) -> Int64[np.ndarray, " w"]:
        """Number of the video of every window; -1 where the video was removed."""
        owners = np.full(self.windows, -1, np.int64)
        for number, (first, stop) in enumerate(self._spans):
            owners[first:stop] = number
        return owners

    @cached_property
    def spans(self) -> Float64[np.ndarray, "w 2"]:
        """Start and end of every window, in seconds."""
        return np.stack([self.files[WINDOWS]["start"], self.files[WINDOWS]["end"]], 1)

    @property
    def steps(self) -> Int64[np.ndarray, " w"]:
        """How many of the first frames of every window share its time evenly."""
        return self.files[WINDOWS]["steps"]

    @property
    def frame_counts(self) -> Int64[np.ndarray, " w"]:
        """Number of frames of every window."""
        return self.files[WINDOWS]["frames"]

    @cached_property
    def _offsets(self) -> dict[str, Int64[np.ndarray, " _"]]:
        """For each set `(w + 1)`: the rows of window i are `offsets[i]` to `offsets[i + 1] - 1`."""
        table = self.files[WINDOWS]
        return {name: np.concatenate([[0], np.cumsum(table[name])]) for name in self.manifest.row_sets}

    def row_blocks(self, rows: Int64[np.ndarray, " n"]) -> Iterator[RowBlock]:
        """The vectors of some windows that are scored, in order, a bounded number at a time.

        Args:
            rows: numbers of windows, ascending.
        """
        manifest, nothing = self.manifest, np.empty((0, self.dim), np.float32)
        full = np.cumsum(self.frame_counts[rows] + manifest.clips) // _BLOCK_ROWS
        for block in np.split(rows, np.flatnonzero(np.diff(full)) + 1) if len(rows) else ():
            clips = self.unpacked("clips", block) if manifest.clip_weight or manifest.frames_by_clip else nothing
            yield RowBlock(
                block,
                clips.reshape(len(block), len(clips) // len(block), self.dim),
                self.unpacked("frames", block) if manifest.frame_weight else nothing,
                np.concatenate([[0], np.cumsum(self.frame_counts[block])]),
            )

    def packed(self, name: str, rows: Int64[np.ndarray, " n"]) -> Iterator[Float16[np.ndarray, "m d"]]:
        """Rows of a set for some windows, ascending, as they are stored: each run of neighbours, without a copy."""
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            yield self.files[name][self._places(name, run)]

    def _places(self, name: str, rows: Int64[np.ndarray, " n"]) -> slice | Int64[np.ndarray, " m"]:
        """Where the rows of a set for some windows, ascending, lie: a slice where there are no gaps between them."""
        offsets = self._offsets[name]
        if not len(rows) or rows[-1] - rows[0] + 1 == len(rows):
            return slice(*offsets[[rows[0], rows[-1] + 1]].tolist()) if len(rows) else slice(0)
        counts = offsets[rows + 1] - offsets[rows]
        return np.arange(counts.sum()) + np.repeat(offsets[rows] - np.cumsum(counts) + counts, counts)

    def unpacked(self, name: str, rows: Int64[np.ndarray, " n"], *, raw: bool = False) -> Float32[np.ndarray, "m d"]:
        """Rows of a set for some windows, ascending, one window after the other.

        Args:
            name: the name of the set: `clips`, `frames`, or one of `Manifest.stored`.
            rows: numbers of windows.
            raw: give the rows as they were before they were scaled to unit length; needs a set that keeps lengths.

        Raises:
            ValueError: `raw`, and the set does not keep lengths.
        """
        if raw and f"{name}_lengths" not in self.files:
            raise ValueError("the lengths of these rows are not stored; only unit rows are available")
        places = self._places(name, rows)
        return unpack_rows(self.files[name][places], self.files[f"{name}_lengths"][places] if raw else None)

    def clip_spans(self, rows: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n c 2"] | None:
        """Where the clips of some windows, ascending, begin and end, as shares of the window; None for equal parts."""
        if CLIP_TIMES not in self.manifest.stored:
            return None
        times = self.unpacked(CLIP_TIMES, rows, raw=True)
        return np.ascontiguousarray(times.reshape(len(rows), 2, self.clips).swapaxes(1, 2))

    @cached_property
    def mean_frame(self) -> Float32[np.ndarray, " d"] | None:
        """The mean over videos of the mean of their frames; None where windows do not store it, or without videos."""
        rows = self.live_keys()
        if not self.manifest.frame_means or not len(rows):
            return None
        shares = 1 / np.bincount(self.owners[rows])[self.owners[rows]] / len(self.videos)
        mean, lasts = np.zeros(self.dim), self._offsets["frames"][rows + 1] - 1  # the last row of a window is its mean
        for first in range(0, len(rows), _BLOCK_ROWS):
            part = slice(first, first + _BLOCK_ROWS)
            mean += shares[part] @ unpack_rows(self.files["frames"][lasts[part]])
        return mean.astype(np.float32)

    def stored_rows(
        self, name: str, windows: Sequence[int] | Int64[np.ndarray, " n"], *, raw: bool = False
    ) -> list[Float32[np.ndarray, "l d"]]:
        """Rows of a set for each of some windows, in any order, see `unpacked`.

        Raises:
            KeyError: the index has no such set.
            ValueError: as `unpacked`.
        """
        if name not in self.manifest.row_sets:
            raise KeyError(f"{name!r}: the index stores {', '.join(self.manifest.row_sets)}")
        return [self.unpacked(name, np.array([window]), raw=raw) for window in windows]
