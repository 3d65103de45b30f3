"""A snapshot of an index: one state, open for reading, which no writer changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int64

from prvr.search.backends import ClipBlock
from prvr.search.manifest import BANK_SCORES, Manifest, StaleIndex
from prvr.search.segments import Segment
from prvr.search.vectors import PackedRows, unpack_rows
from prvr.video import VideoEntry

_BLOCK_ROWS = 1 << 12  # vectors that are unpacked at a time: 6 MB at width 384, which stay in the cache and in the heap
_TRIES = 5


class Place(NamedTuple):
    """The place of a video: the number of its segment, and its number in the segment."""

    segment: int
    number: int


class RowBlock(NamedTuple):
    """Windows that are scored together.

    Args:
        rows: `(w)` numbers of the windows, counted through all segments of the snapshot.
        clips: `(w, c, d)` unit rows.
        frames: `(n, d)` unit rows of all windows, one after the other; window i has `frames[offsets[i]:offsets[i+1]]`.
        offsets: `(w + 1)`.
    """

    rows: Int64[np.ndarray, " w"]
    clips: Float32[np.ndarray, "w c d"]
    frames: Float32[np.ndarray, "n d"]
    offsets: Int64[np.ndarray, " _"]


@dataclass(frozen=True)
class Snapshot:
    """The videos and vectors of an index, for the scoring and for backends (`prvr.search.backends.ClipSource`).

    Args:
        folder: the folder of the index.
        manifest: the manifest of the index.
        opened: the segments of the index.
    """

    folder: Path
    manifest: Manifest
    opened: tuple[Segment, ...]

    @classmethod
    def open(cls, folder: Path) -> "Snapshot":
        """Opens the current state. If a writer removes a segment meanwhile, the next state is opened.

        Raises:
            StaleIndex: there is no index, or it is damaged.
        """
        for _ in range(_TRIES):
            manifest = Manifest.read(folder)
            try:
                return cls(folder, manifest, tuple(Segment.open(folder, manifest, one) for one in manifest.segments))
            except StaleIndex:
                if Manifest.read(folder) == manifest:
                    raise
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
    def segments(self) -> tuple[str, ...]:
        """Names of the segments."""
        return tuple(one.name for one in self.manifest.segments)

    @cached_property
    def places(self) -> dict[str, Place]:
        """The place of each video, in order of ids."""
        found = [(segment.entries[v].id, Place(s, v)) for s, segment in enumerate(self.opened) for v in segment.live]
        return dict(sorted(found))

    @cached_property
    def video_ids(self) -> tuple[str, ...]:
        """Ids of the videos, in order; the number of a video is its position here."""
        return tuple(self.places)

    def video(self, video_id: str) -> VideoEntry:
        """The record of a video.

        Raises:
            KeyError: it is not in the index.
        """
        place = self.places[video_id]
        return self.opened[place.segment].entries[place.number]

    def windows_of(self, video_id: str) -> int:
        """Number of windows of a video."""
        place = self.places[video_id]
        first, stop = self.opened[place.segment].windows_of(place.number)
        return stop - first

    def keys(self, segment: str) -> Int64[np.ndarray, " w"]:
        """Keys of all windows of a segment, see `ClipSource`."""
        return self.opened[self.segments.index(segment)].keys

    def blocks(self, segment: str) -> Iterator[ClipBlock]:
        """Keys and clips of all windows of a segment, a bounded number at a time, see `ClipSource`."""
        one = self.opened[self.segments.index(segment)]
        clips = self.manifest.clips
        step = max(1, _BLOCK_ROWS // clips)
        for first in range(0, len(one.keys), step):
            stop = min(first + step, len(one.keys))
            rows = unpack_rows(one.sets["clips"].windows(first, stop).packed)
            vectors = np.array(rows).reshape(stop - first, clips, self.dim)  # a copy: a backend may work on it
            yield ClipBlock(one.keys[first:stop].copy(), vectors)

    def live_keys(self) -> Int64[np.ndarray, " n"]:
        """Keys of the windows of all videos, in ascending order."""
        return self._live[0]

    def videos_of(self, keys: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Number of the video of each window; -1 where the video was removed."""
        live, rows = self._live
        if not len(live):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(live, keys), len(live) - 1)
        return np.where(live[at] == keys, self.owners[rows[at]], -1)

    @cached_property
    def originals(self) -> Int64[np.ndarray, " v"]:
        """For each video the number of the first one whose file has the same content: its own, if it is no copy."""
        first: dict[str, int] = {}
        hashes = (self.video(video).sha256 for video in self.video_ids)
        return np.array([first.setdefault(one, number) for number, one in enumerate(hashes)], np.int64)

    def rows_of_videos(self, videos: Int64[np.ndarray, " v"] | None) -> Int64[np.ndarray, " n"]:
        """Numbers of the windows of these videos (None = all), ascending: the order of time within a video."""
        if videos is None:
            return np.flatnonzero(self.owners >= 0)
        owners, order = self._by_owner
        firsts, stops = np.searchsorted(owners, videos), np.searchsorted(owners, videos, side="right")
        parts = [order[first:stop] for first, stop in zip(firsts, stops, strict=True)]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    @cached_property
    def _by_owner(self) -> tuple[np.ndarray, np.ndarray]:
        """The windows sorted by video: the number of the video of each, and the number of the window."""
        order = np.argsort(self.owners, kind="stable")
        return self.owners[order], order

    @cached_property
    def owners(self) -> Int64[np.ndarray, " w"]:
        """Number of the video of every window of all segments; -1 where the video was removed."""
        number = {place: i for i, place in enumerate(self.places.values())}
        parts = [
            np.array([number.get(Place(s, v), -1) for v in range(len(segment.entries))], np.int64)[segment.owners]
            for s, segment in enumerate(self.opened)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    @cached_property
    def spans(self) -> Float64[np.ndarray, "w 2"]:
        """Start and end of every window of all segments, in seconds."""
        return np.concatenate([np.empty((0, 2)), *(one.spans for one in self.opened)])

    @cached_property
    def steps(self) -> Int64[np.ndarray, " w"]:
        """How many of the first frames of every window of all segments share its time evenly."""
        return np.concatenate([np.empty(0, np.int64), *(one.steps for one in self.opened)])

    @cached_property
    def _live(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the windows of all videos in ascending order, and the numbers of these windows."""
        keys = np.concatenate([np.empty(0, np.int64), *(one.keys for one in self.opened)])
        rows = self.rows_of_videos(None)
        order = np.argsort(keys[rows], kind="stable")
        return keys[rows][order], rows[order]

    @cached_property
    def _firsts(self) -> np.ndarray:
        """Number of the first window of each segment, and of all windows."""
        return np.concatenate([[0], np.cumsum([len(one.keys) for one in self.opened], dtype=np.int64)])

    @cached_property
    def frame_counts(self) -> Int64[np.ndarray, " w"]:
        """Number of frames of every window of all segments."""
        return np.concatenate([np.empty(0, np.int64), *(one.sets["frames"].counts for one in self.opened)])

    def row_blocks(self, rows: Int64[np.ndarray, " n"]) -> Iterator[RowBlock]:
        """The vectors of some windows that are scored, in order, a bounded number at a time.

        Args:
            rows: numbers of windows, ascending.
        """
        manifest, nothing = self.manifest, np.empty((0, self.dim), np.float32)
        full = np.cumsum(self.frame_counts[rows] + manifest.clips) // _BLOCK_ROWS
        for block in np.split(rows, np.flatnonzero(np.diff(full)) + 1) if len(rows) else ():
            clips = self.unpacked("clips", block) if manifest.clip_weight else nothing
            yield RowBlock(
                block,
                clips.reshape(len(block), len(clips) // len(block), self.dim),
                self.unpacked("frames", block) if manifest.frame_weight else nothing,
                np.concatenate([[0], np.cumsum(self.frame_counts[block])]),
            )

    def packed(self, name: str, rows: Int64[np.ndarray, " n"]) -> Iterator[PackedRows]:
        """Rows of a set for some windows, ascending, as they are stored: each run of neighbours, without a copy."""
        for segment, own in self._by_segment(rows):
            for run in np.split(own, np.flatnonzero(np.diff(own) > 1) + 1):
                yield segment.sets[name].take(run)

    def _by_segment(self, rows: np.ndarray) -> Iterator[tuple[Segment, np.ndarray]]:
        """The segments that hold some windows, and the numbers of these windows in each."""
        bounds = np.searchsorted(rows, self._firsts)
        for s in np.flatnonzero(np.diff(bounds)).tolist():
            yield self.opened[s], rows[bounds[s] : bounds[s + 1]] - self._firsts[s]

    def unpacked(self, name: str, rows: Int64[np.ndarray, " n"], *, raw: bool = False) -> Float32[np.ndarray, "m d"]:
        """Rows of a set for some windows, ascending, one window after the other; unit rows unless they are `raw`."""
        parts = [unpack_rows(segment.sets[name].take(own), raw=raw) for segment, own in self._by_segment(rows)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @cached_property
    def bank_best(self) -> Float32[np.ndarray, " s"] | None:
        """The best score of each unrelated sentence over all videos; None without such a bank, or without videos."""
        if not self.manifest.bank or not self.places:
            return None
        best, rows = np.full(self.manifest.bank, -np.inf, np.float32), self.rows_of_videos(None)
        for first in range(0, len(rows), _BLOCK_ROWS):
            scores = self.unpacked(BANK_SCORES, rows[first : first + _BLOCK_ROWS], raw=True)
            best = np.maximum(best, scores.max(0))
        return best

    def stored_rows(
        self, name: str, windows: Sequence[int] | Int64[np.ndarray, " n"], *, raw: bool = False
    ) -> list[Float32[np.ndarray, "l d"]]:
        """Rows of a set for each of some windows.

        Args:
            name: the name of the set: `clips`, `frames`, or one of `Manifest.stored`.
            windows: numbers of windows through the whole snapshot, as `rows_of_videos` gives them, in any order.
            raw: give the rows as they were before they were scaled to unit length; needs a set that keeps lengths.

        Raises:
            KeyError: the index has no such set.
            ValueError: `raw`, and the set does not keep lengths.
        """
        if name not in self.manifest.row_sets:
            raise KeyError(f"{name!r}: the index stores {', '.join(self.manifest.row_sets)}")
        found = []
        for window in windows:
            segment = int(np.searchsorted(self._firsts, window, side="right")) - 1
            first = int(window - self._firsts[segment])
            found.append(unpack_rows(self.opened[segment].sets[name].windows(first, first + 1).packed, raw=raw))
        return found
