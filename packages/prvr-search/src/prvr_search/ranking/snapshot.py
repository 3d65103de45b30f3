"""A snapshot of an index: some videos and their vectors, which no writer changes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int64

from prvr.encoders import VideoEntry
from prvr_search.ranking.backends import ClipBlock, ClipSource
from prvr_search.vectors.files import Content, VideoVectors, row_sets
from prvr_search.vectors.model import CLIP_TIMES, SearchModel
from prvr_search.vectors.rows import unpack_rows

_BLOCK_ROWS = 1 << 12  # vectors that are unpacked at a time: 6 MB at width 384, which stay in the cache and in the heap


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
class Videos:
    """Videos, of which lines of subtitles are searched.

    Args:
        entries: the videos by id, in order of ids.
    """

    entries: Mapping[str, VideoEntry]

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Ids of the videos, in order; the number of a video is its position here."""
        return tuple(self.entries)

    def video(self, video_id: str) -> VideoEntry:
        """The record of a video.

        Raises:
            KeyError: it is not in the index.
        """
        return self.entries[video_id]

    @cached_property
    def originals(self) -> Int64[np.ndarray, " v"]:
        """For each video the number of the first one whose file has the same content: its own, if it is no copy."""
        return first_copies(entry.sha256 for entry in self.entries.values())


@dataclass(frozen=True)
class Snapshot(Videos):
    """Videos and their vectors, for the scoring. Windows have numbers; those of a video lie together.

    Args:
        entries: the videos by id, in order of ids.
        model: the model of the vectors.
        parts: the vectors, of these videos and others perhaps; a pack is the first of them.
        folder: where the files of the vectors lie.
    """

    model: SearchModel
    parts: Sequence[VideoVectors] = field(default=(), repr=False)
    folder: Path = Path()

    @property
    def packed(self) -> int:
        """Number of windows of the pack, which come first; a backend sees no others."""
        return self.parts[0].windows if self.parts and self.parts[0].name else 0

    def clip_source(self) -> ClipSource:
        """What a backend sees: the pack."""
        return ClipSource(
            self.parts[0].name, self.model.dim, self.model.clips, self.packed,
            self.live[: np.searchsorted(self.live, self.packed)], self._blocks,
        )  # fmt: skip

    def _blocks(self) -> Iterator[ClipBlock]:
        step = max(1, _BLOCK_ROWS // self.model.clips)
        for start in range(0, self.packed, step):
            rows = np.arange(start, min(start + step, self.packed))
            vectors = np.array(self.unpacked("clips", rows)).reshape(len(rows), self.model.clips, self.model.dim)
            yield ClipBlock(rows, vectors)  # a copy: a backend may work on it

    @cached_property
    def windows(self) -> int:
        """Number of windows, those of other videos included."""
        return int(self._bases[-1])

    @cached_property
    def live(self) -> Int64[np.ndarray, " n"]:
        """Numbers of the windows of the videos, ascending."""
        return np.flatnonzero(self.owners >= 0)

    def rows_of_videos(self, videos: Int64[np.ndarray, " v"] | None) -> Int64[np.ndarray, " n"]:
        """Numbers of the windows of these videos (None = all), ascending: the order of time within a video."""
        if videos is None:
            return self.live
        spans = [self._spans[number] for number in videos.tolist()]
        return np.sort(np.concatenate([np.empty(0, np.int64), *(np.arange(*span) for span in spans)]))

    def owners_of(
        self, rows: Int64[np.ndarray, " n"], videos: Int64[np.ndarray, " v"] | None
    ) -> Int64[np.ndarray, " n"]:
        """Number of the video of each of these windows: one of these videos (None = all), of which none are copies."""
        owners = self.owners[rows]
        if videos is None:
            return owners
        numbers = np.arange(len(self.entries))
        numbers[self.originals[videos]] = videos
        return numbers[owners]

    @cached_property
    def _bases(self) -> Int64[np.ndarray, " _"]:
        """The number of the first window of each part, and of all windows."""
        return np.array([0, *accumulate(part.windows for part in self.parts)], np.int64)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """The first window of each video, and the one after its last."""
        places = {}
        for base, part in zip(self._bases.tolist(), self.parts, strict=False):
            edges = accumulate(part.videos.values(), initial=base)
            places |= {
                video: (first, first + part.videos[video]) for video, first in zip(part.videos, edges, strict=False)
            }
        return [places[Content.of(entry)] for entry in self.entries.values()]

    @cached_property
    def owners(self) -> Int64[np.ndarray, " w"]:
        """Number of the video of every window, of copies the first; -1 where it is of another video."""
        owners = np.full(self.windows, -1, np.int64)
        for number, (first, stop) in reversed([*enumerate(self._spans)]):
            owners[first:stop] = number
        return owners

    @cached_property
    def spans(self) -> Float64[np.ndarray, "w 2"]:
        """Start and end of every window, in seconds."""
        return self._joined("times", (2,), np.float64)

    @cached_property
    def steps(self) -> Int64[np.ndarray, " w"]:
        """How many of the first frames of every window share its time evenly."""
        return self._joined("steps")

    @property
    def frame_counts(self) -> Int64[np.ndarray, " w"]:
        """Number of frames of every window."""
        return np.diff(self._offsets["frames"])

    def _joined(self, name: str, shape: tuple[int, ...] = (), kind: type = np.int64) -> np.ndarray:
        nothing = np.empty((0, *shape), kind)
        return np.concatenate([nothing, *(part.arrays.get(name, nothing) for part in self.parts)])

    @cached_property
    def _offsets(self) -> dict[str, Int64[np.ndarray, " _"]]:
        """For each set `(w + 1)`: the rows of window i are `offsets[i]` to `offsets[i + 1] - 1`, through all parts."""
        return {name: np.append(0, np.cumsum(self._joined(f"{name}.counts"))) for name in row_sets(self.model)}

    def row_blocks(self, rows: Int64[np.ndarray, " n"]) -> Iterator[RowBlock]:
        """The vectors of some windows that are scored, in order, a bounded number at a time.

        Args:
            rows: numbers of windows, ascending.
        """
        model, nothing = self.model, np.empty((0, self.model.dim), np.float32)
        full = np.cumsum(self.frame_counts[rows] + model.clips) // _BLOCK_ROWS
        for block in np.split(rows, np.flatnonzero(np.diff(full)) + 1) if len(rows) else ():
            clips = self.unpacked("clips", block) if model.clip_weight or model.frames_by_clip else nothing
            yield RowBlock(
                block,
                clips.reshape(len(block), len(clips) // len(block), model.dim),
                self.unpacked("frames", block) if model.frame_weight else nothing,
                np.concatenate([[0], np.cumsum(self.frame_counts[block])]),
            )

    def stored(self, name: str, rows: Int64[np.ndarray, " n"]) -> Iterator[np.ndarray]:
        """What is stored of some windows, ascending: each run of neighbours in a part, without a copy.

        Args:
            name: the name of a set, or `NAME.lengths`.
            rows: numbers of windows.
        """
        offsets, of_part = self._offsets[name.removesuffix(".lengths")], self._part_of[rows]
        for run in np.split(rows, np.flatnonzero((np.diff(rows) > 1) | (np.diff(of_part) > 0)) + 1):
            if len(run):
                number = int(self._part_of[run[0]])
                base = offsets[self._bases[number]]
                yield self.parts[number].arrays[name][offsets[run[0]] - base : offsets[run[-1] + 1] - base]

    @cached_property
    def _part_of(self) -> Int64[np.ndarray, " w"]:
        return np.repeat(np.arange(len(self.parts)), np.diff(self._bases))

    def unpacked(self, name: str, rows: Int64[np.ndarray, " n"], *, raw: bool = False) -> Float32[np.ndarray, "m d"]:
        """Rows of a set for some windows, ascending, one window after the other.

        Args:
            name: the name of the set: `clips`, `frames`, or one of `SearchModel.stored`.
            rows: numbers of windows.
            raw: give the rows as they were before they were scaled to unit length; needs a set that keeps lengths.

        Raises:
            ValueError: `raw`, and the set does not keep lengths.
        """
        kind = row_sets(self.model)[name]
        if raw and not kind.lengths:
            raise ValueError("the lengths of these rows are not stored; only unit rows are available")
        runs = [*self.stored(name, rows)]
        if not runs:
            return np.empty((0, kind.dim), np.float32)
        lengths = np.concatenate([*self.stored(f"{name}.lengths", rows)]) if raw else None
        return unpack_rows(runs[0] if len(runs) == 1 else np.concatenate(runs), lengths)

    def clip_spans(self, rows: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n c 2"] | None:
        """Where the clips of some windows, ascending, begin and end, as shares of the window; None for equal parts."""
        if CLIP_TIMES not in self.model.stored:
            return None
        times = self.unpacked(CLIP_TIMES, rows, raw=True)
        return np.ascontiguousarray(times.reshape(len(rows), 2, self.model.clips).swapaxes(1, 2))

    @cached_property
    def mean_frame(self) -> Float32[np.ndarray, " d"] | None:
        """The mean over videos of the mean of their frames; None where windows do not store it, or without videos."""
        if not self.model.frame_means or not len(self.live):
            return None
        bases = self._offsets["frames"][self._bases]
        last = self._offsets["frames"][self.live + 1] - 1 - bases[self._part_of[self.live]]  # the row that is of all
        of_part = np.split(last, np.flatnonzero(np.diff(self._part_of[self.live])) + 1)
        numbers = np.unique(self._part_of[self.live]).tolist()
        means = [self.parts[n].arrays["frames"][rows] for n, rows in zip(numbers, of_part, strict=True)]
        owners = self.owners[self.live]
        shares = 1 / np.bincount(owners)[owners]
        return (shares @ unpack_rows(np.concatenate(means)) / len(np.unique(owners))).astype(np.float32)

    def stored_rows(
        self, name: str, windows: Sequence[int] | Int64[np.ndarray, " n"], *, raw: bool = False
    ) -> list[Float32[np.ndarray, "l d"]]:
        """Rows of a set for each of some windows, in any order, see `unpacked`.

        Raises:
            KeyError: the index has no such set.
            ValueError: as `unpacked`.
        """
        if name not in self._offsets:
            raise KeyError(f"{name!r}: the index stores {', '.join(self._offsets)}")
        return [self.unpacked(name, np.array([window]), raw=raw) for window in windows]
