"""Segments: folders of vectors that appear whole, are named by their content, and never change."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from prvr.data.files import MARK, publish, temporary_folder
from prvr.data.hashes import hash_file
from prvr.errors import DataError
from prvr.reading import parse_record, read_array, read_json
from prvr.search.manifest import MEND, SEGMENTS, TABLES, VIDEOS, FileStamp, Manifest, SegmentRecord, segment_name
from prvr.search.vectors import Dtype, PackedRows
from prvr.video import VideoEntry
from prvr.video.store import check_entry

__all__ = ["Segment", "VideoVectors", "check_files", "write_segment"]


class VideoVectors(NamedTuple):
    """A video as it goes into a segment.

    Args:
        entry: what is known of it.
        keys: `(w)` of its windows.
        spans: `(w, 2)` start and end of each, in seconds.
        clips: `(w * c, d)` of all windows, one after the other.
        frames: the same, `frame_counts` of each.
        frame_counts, steps: `(w)`, see `prvr.search.model.WindowVectors`.
    """

    entry: VideoEntry
    keys: Int64[np.ndarray, " w"]
    spans: Float64[np.ndarray, "w 2"]
    clips: PackedRows
    frames: PackedRows
    frame_counts: Int64[np.ndarray, " w"]
    steps: Int64[np.ndarray, " w"]

    @property
    def bytes(self) -> int:
        """Of its vectors."""
        return self.clips.values.nbytes + self.frames.values.nbytes


@dataclass(frozen=True)
class _Videos:
    videos: tuple[VideoEntry, ...]


@dataclass(frozen=True)
class Segment:
    """An open segment; vectors are mapped, not read.

    Args:
        record: as it must be.
        entries: of its videos.
        keys: `(w)` of its windows.
        owners: `(w)` number of the video of each window; windows of a video lie together, in time order.
        spans: `(w, 2)` start and end in seconds.
        clips: `(w * c, d)`.
        frames: of all windows, one after the other.
        frame_counts: `(w)` how many each window has.
        steps: `(w)` how many of the first frames share the time of the window evenly.
    """

    record: SegmentRecord
    entries: tuple[VideoEntry, ...]
    keys: np.ndarray
    owners: np.ndarray
    spans: np.ndarray
    clips: PackedRows
    frames: PackedRows
    frame_counts: np.ndarray
    steps: np.ndarray

    @classmethod
    def open(cls, index: Path, about: Manifest, record: SegmentRecord) -> "Segment":
        """A segment of an index.

        Its tables are read, and all that they say is checked. Of the vectors, which are large, only the sizes are.

        Args:
            index: its folder.
            about: what it is.
            record: of the segment.

        Raises:
            DataError: a file of it is missing or damaged; names it.
        """
        folder = index / SEGMENTS / record.name
        small = {name: stamp for name, stamp in record.files.items() if name in (VIDEOS, *TABLES)}
        said = check_files(folder, record.files, sizes_only=True) or check_files(folder, small)
        if said:
            raise DataError(f"{said[0]}. {MEND}")
        try:
            entries = {"videos": read_json(folder / VIDEOS, record.files[VIDEOS].size)}
            found = cls(
                record,
                parse_record(_Videos, entries, str(folder / VIDEOS), file_names=True).videos,
                clips=_mapped(folder, "clips", about.dtype),
                frames=_mapped(folder, "frames", about.dtype),
                **{name: read_array(folder / f"{name}.npy", *TABLES[f"{name}.npy"]) for name in _NAMES},
            )
        except (DataError, OSError) as error:
            raise DataError(f"{error} {MEND}") from error
        if (wrong := next(found._contradictions(about), None)) is not None:
            raise DataError(f"{folder / wrong[0]}: {wrong[1]}. {MEND}")
        return found

    def _contradictions(self, about: Manifest) -> Iterator[tuple[str, str]]:
        """What in the tables cannot be, after the name of a file; what follows takes for granted what was before it."""
        videos, windows, frames = self.record.videos, self.record.windows, self.record.frames
        if len(self.entries) != videos:
            yield VIDEOS, f"{len(self.entries)} videos, expected {videos}"
        for name in _NAMES:
            expected = (windows, 2) if name == "spans" else (windows,)
            if getattr(self, name).shape != expected:
                yield f"{name}.npy", f"shape {getattr(self, name).shape}, expected {expected}"
        for name, rows, length in (("clips", self.clips, windows * about.clips), ("frames", self.frames, frames)):
            if rows.values.shape != (length, about.dim):
                yield f"{name}.npy", f"shape {rows.values.shape}, expected {(length, about.dim)}"
            if rows.scales is None:
                continue
            if rows.scales.shape != (length,) or not ((rows.scales >= 0) & np.isfinite(rows.scales)).all():
                yield f"{name}_scales.npy", f"expected {length} numbers from 0"
        for entry in self.entries:
            try:
                check_entry(entry, about.encoder.rate)
            except ValueError as error:
                yield VIDEOS, f"a video that cannot be: {error}"
        if len({entry.id for entry in self.entries}) != videos:
            yield VIDEOS, "a video stands twice in it"
        if self.keys[0] < 0 or (self.keys[1:] <= self.keys[:-1]).any() or self.keys[-1] >= about.next_key:
            yield "keys.npy", "keys are not in ascending order, or one was never given"
        if self.owners[0] != 0 or self.owners[-1] != videos - 1 or not np.isin(np.diff(self.owners), (0, 1)).all():
            yield "owners.npy", "windows are not in the order of the videos"
        if ((self.frame_counts < 0) | (self.frame_counts > frames)).any() or self.frame_counts.sum() != frames:
            yield "frame_counts.npy", f"windows have other numbers of frames than {frames} in all"
        if ((self.steps < 0) | (self.steps > self.frame_counts)).any():
            yield "steps.npy", "a window has more frames that share its time than it has frames"
        ends = np.array([entry.duration for entry in self.entries])[self.owners] * (1 + 1e-9)
        starts, stops = self.spans.T
        if not ((starts >= 0) & (starts < stops) & (stops <= ends)).all():
            yield "spans.npy", "the time of a window is not within its video"

    @cached_property
    def frame_offsets(self) -> Int64[np.ndarray, " _"]:
        """`(w + 1)`: the frames of window i are rows `frame_offsets[i]` to `frame_offsets[i + 1]`."""
        return np.concatenate([[0], np.cumsum(self.frame_counts)])

    @property
    def live(self) -> list[int]:
        """Numbers of the videos that count."""
        removed = set(self.record.removed)
        return [number for number in range(len(self.entries)) if number not in removed]

    def windows_of(self, number: int) -> tuple[int, int]:
        """The first window of a video, and the one after its last."""
        first, stop = np.searchsorted(self.owners, [number, number + 1]).tolist()
        return first, stop

    def video(self, number: int) -> VideoVectors:
        """One of its videos, as it was put in."""
        first, stop = self.windows_of(number)
        clips = len(self.clips.values) // len(self.keys)
        return VideoVectors(
            self.entries[number],
            self.keys[first:stop],
            self.spans[first:stop],
            self.clips[first * clips : stop * clips],
            self.frames[int(self.frame_offsets[first]) : int(self.frame_offsets[stop])],
            self.frame_counts[first:stop],
            self.steps[first:stop],
        )


def write_segment(index: Path, videos: Sequence[VideoVectors]) -> SegmentRecord:
    """Writes a segment, marked as unfinished until a manifest names it; where it stands already, that one stays.

    Args:
        index: folder of the index.
        videos: at least one; written one at a time, so that mapped ones need no memory.

    Raises:
        DataError: the disk is full, or the place cannot be written.
    """
    with temporary_folder(index / SEGMENTS / "new") as folder:
        for kind in ("clips", "frames"):
            parts = [getattr(one, kind) for one in videos]
            _write_rows(folder / f"{kind}.npy", [part.values for part in parts])
            if parts[0].scales is not None:
                _write_rows(folder / f"{kind}_scales.npy", [part.scales for part in parts])
        tables = {name: np.concatenate([getattr(one, name) for one in videos]) for name in _NAMES if name != "owners"}
        tables["owners"] = np.repeat(np.arange(len(videos)), [len(one.keys) for one in videos])
        for name, table in tables.items():
            _write_rows(folder / f"{name}.npy", [table.astype(TABLES[f"{name}.npy"][0])])
        text = json.dumps([asdict(one.entry) for one in videos])
        _synced(folder / VIDEOS, [text.encode()])
        written = [path for path in sorted(folder.iterdir()) if path.name != MARK]
        files = {path.name: FileStamp(path.stat().st_size, hash_file(path)) for path in written}
        name = segment_name(files)
        publish(folder, index / SEGMENTS / name, lambda there: not check_files(there, files), marked=True)
    frames = sum(len(one.frames.values) for one in videos)
    return SegmentRecord(name, files, len(videos), len(tables["owners"]), frames)


def check_files(folder: Path, files: Mapping[str, FileStamp], *, sizes_only: bool = False) -> list[str]:
    """What is wrong with files that must be as they were stamped: reads all of them, unless only sizes are compared."""
    said = []
    for name, known in files.items():
        path = folder / name
        if not path.is_file():  # opening a pipe would wait for somebody to write to it
            said.append(f"{path}: {'is a folder, a pipe or a device' if path.exists() else 'is missing'}")
        elif (size := path.stat().st_size) != known.size:
            said.append(f"{path}: has {size} bytes, expected {known.size}")
        elif not sizes_only and hash_file(path) != known.sha256:
            said.append(f"{path}: does not match its hash")
    return said


def _write_rows(path: Path, parts: Sequence[np.ndarray]) -> None:
    """Arrays one after the other as one `.npy`."""
    first = parts[0]
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(np.ascontiguousarray(part, first.dtype).tobytes())
        file.flush()
        os.fsync(file.fileno())


def _synced(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def _mapped(folder: Path, kind: str, dtype: Dtype) -> PackedRows:
    values = read_array(folder / f"{kind}.npy", np.dtype(dtype).newbyteorder("<"), 2, mapped=True)
    return PackedRows(values, read_array(folder / f"{kind}_scales.npy", "<f4", 1) if dtype == "int8" else None)


_NAMES = tuple(name.removesuffix(".npy") for name in TABLES)
