"""Segments of an index: folders of vectors that appear whole, are named by their content, and never change."""

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from prvr.data.atomic import MARK, publish, temporary_folder
from prvr.data.hashes import hash_file
from prvr.errors import DataError
from prvr.reading import parse_record, read_array, read_json
from prvr.search.manifest import (
    BANK_SCORES,
    MEND,
    SEGMENTS,
    TABLES,
    VIDEOS,
    FileStamp,
    Manifest,
    SegmentRecord,
    counts_file,
    segment_name,
)
from prvr.search.vectors import PackedRows, WindowRows
from prvr.video import VideoEntry
from prvr.video.store import check_entry


class VideoVectors(NamedTuple):
    """A video as it is written to a segment.

    Args:
        entry: the record of the video.
        keys: `(w)` keys of its windows.
        spans: `(w, 2)` start and end of each window, in seconds.
        steps: `(w)`, see `prvr.search.model.WindowVectors`.
        sets: rows of all windows by the name of their set: `clips`, `frames`, and what else the index stores.
    """

    entry: VideoEntry
    keys: Int64[np.ndarray, " w"]
    spans: Float64[np.ndarray, "w 2"]
    steps: Int64[np.ndarray, " w"]
    sets: Mapping[str, WindowRows]

    @property
    def bytes(self) -> int:
        """Size of its vectors."""
        return sum(rows.packed.values.nbytes for rows in self.sets.values())


@dataclass(frozen=True)
class _Videos:
    videos: tuple[VideoEntry, ...]


@dataclass(frozen=True)
class Segment:
    """An open segment; vectors are mapped, not read.

    Args:
        record: what the manifest says of it.
        entries: the records of its videos.
        keys: `(w)` keys of its windows.
        owners: `(w)` number of the video of each window; windows of a video lie together, in time order.
        spans: `(w, 2)` start and end of each window, in seconds.
        steps: `(w)` how many of the first frames share the time of the window evenly.
        sets: rows of all windows by the name of their set.
    """

    record: SegmentRecord
    entries: tuple[VideoEntry, ...]
    keys: np.ndarray
    owners: np.ndarray
    spans: np.ndarray
    steps: np.ndarray
    sets: Mapping[str, WindowRows]

    @classmethod
    def open(cls, index: Path, manifest: Manifest, record: SegmentRecord) -> "Segment":
        """Opens a segment of an index.

        The tables are read and checked. Of the vectors, which are large, only the sizes are checked.

        Args:
            index: the folder of the index.
            manifest: the manifest of the index.
            record: the record of the segment.

        Raises:
            DataError: a file of the segment is missing or damaged; the message names it.
        """
        folder = index / SEGMENTS / record.name
        tables = {VIDEOS, *(f"{name}.npy" for name in TABLES), *(counts_file(name) for name in manifest.row_sets)}
        small = {name: stamp for name, stamp in record.files.items() if name in tables}
        if problems := check_files(folder, record.files, sizes_only=True) or check_files(folder, small):
            raise DataError(f"{problems[0]}. {MEND}")
        try:
            entries = {"videos": read_json(folder / VIDEOS, record.files[VIDEOS].size)}
            found = cls(
                record,
                parse_record(_Videos, entries, str(folder / VIDEOS), file_names=True).videos,
                sets={name: _mapped(folder, name, manifest, record) for name in manifest.row_sets},
                **{name: read_array(folder / f"{name}.npy", *kind) for name, kind in TABLES.items()},
            )
        except (DataError, OSError) as error:
            raise DataError(f"{error} {MEND}") from error
        for name, problem in found._contradictions(manifest):
            raise DataError(f"{folder / name}: {problem}. {MEND}")
        return found

    def _contradictions(self, manifest: Manifest) -> Iterator[tuple[str, str]]:
        """Names of files and what is impossible in them; each check relies on those before it."""
        videos, windows, frames = self.record.videos, self.record.windows, self.record.frames
        if len(self.entries) != videos:
            yield VIDEOS, f"{len(self.entries)} videos, expected {videos}"
        for name in TABLES:
            expected = (windows, 2) if name == "spans" else (windows,)
            if getattr(self, name).shape != expected:
                yield f"{name}.npy", f"shape {getattr(self, name).shape}, expected {expected}"
        for name, kind in manifest.row_sets.items():
            rows, counts = self.sets[name].packed, self.sets[name].counts
            known = {"clips": windows * manifest.clips, "frames": frames, BANK_SCORES: windows}
            length = known.get(name, len(rows))
            if rows.values.shape != (length, kind.dim):
                yield f"{name}.npy", f"shape {rows.values.shape}, expected {(length, kind.dim)}"
            for suffix, numbers in rows.arrays.items():
                if suffix and (numbers.shape != (length,) or not ((numbers >= 0) & np.isfinite(numbers)).all()):
                    yield f"{name}{suffix}.npy", f"expected {length} numbers from 0"
            if counts.shape != (windows,) or ((counts < 0) | (counts > length)).any() or counts.sum() != length:
                yield counts_file(name), f"expected the numbers of rows of {windows} windows, {length} in all"
            if name == BANK_SCORES and (counts != 1).any():
                yield counts_file(name), "expected one row for each window"
        for entry in self.entries:
            try:
                check_entry(entry, manifest.encoder.rate)
            except ValueError as error:
                yield VIDEOS, f"invalid video: {error}"
        if len({entry.id for entry in self.entries}) != videos:
            yield VIDEOS, "it contains a video twice"
        if self.keys[0] < 0 or (self.keys[1:] <= self.keys[:-1]).any() or self.keys[-1] >= manifest.next_key:
            yield "keys.npy", "keys are not in ascending order, or beyond those that were given"
        if self.owners[0] != 0 or self.owners[-1] != videos - 1 or not np.isin(np.diff(self.owners), (0, 1)).all():
            yield "owners.npy", "windows are not in the order of the videos"
        if ((self.steps < 0) | (self.steps > self.sets["frames"].counts)).any():
            yield "steps.npy", "a window has more steps than frames"
        ends = np.array([entry.duration for entry in self.entries])[self.owners] * (1 + 1e-9)
        starts, stops = self.spans.T
        if not ((starts >= 0) & (starts < stops) & (stops <= ends)).all():
            yield "spans.npy", "the time of a window is not within its video"

    @property
    def live(self) -> list[int]:
        """Numbers of the videos that were not removed."""
        return sorted(set(range(len(self.entries))) - set(self.record.removed))

    def windows_of(self, number: int) -> tuple[int, int]:
        """The first window of a video, and the one after its last."""
        first, stop = np.searchsorted(self.owners, [number, number + 1]).tolist()
        return first, stop

    def video(self, number: int) -> VideoVectors:
        """One of its videos, as it was written."""
        first, stop = self.windows_of(number)
        return VideoVectors(
            self.entries[number],
            self.keys[first:stop],
            self.spans[first:stop],
            self.steps[first:stop],
            {name: rows.windows(first, stop) for name, rows in self.sets.items()},
        )


def write_segment(index: Path, videos: Sequence[VideoVectors]) -> SegmentRecord:
    """Writes a segment, marked as unfinished until a manifest names it; one that exists already is kept.

    Args:
        index: the folder of the index.
        videos: at least one video; they are written one at a time, so that mapped vectors need no memory.

    Raises:
        DataError: the disk is full, or the place cannot be written.
    """
    with temporary_folder(index / SEGMENTS / "new") as folder:
        tables = {name: np.concatenate([getattr(one, name) for one in videos]) for name in ("keys", "spans", "steps")}
        tables["owners"] = np.repeat(np.arange(len(videos)), [len(one.keys) for one in videos])
        for name, table in tables.items():
            _write_rows(folder / f"{name}.npy", [table.astype(TABLES[name][0])])
        for name in videos[0].sets:
            parts = [one.sets[name] for one in videos]
            for suffix in parts[0].packed.arrays:
                _write_rows(folder / f"{name}{suffix}.npy", [part.packed.arrays[suffix] for part in parts])
            if name != "clips":
                _write_rows(folder / counts_file(name), [np.concatenate([part.counts for part in parts]).astype("<i8")])
        text = json.dumps([asdict(one.entry) for one in videos])
        _write(folder / VIDEOS, [text.encode()])
        files = stamp_files(folder)
        name = segment_name(files)
        publish(folder, index / SEGMENTS / name, lambda there: not check_files(there, files), marked=True)
    frames = sum(len(one.sets["frames"].packed) for one in videos)
    return SegmentRecord(name, files, len(videos), len(tables["owners"]), frames)


def stamp_files(folder: Path) -> dict[str, FileStamp]:
    """The files in a folder, and in the folders inside it, with what `check_files` compares them with."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MARK]
    return {path.relative_to(folder).as_posix(): FileStamp(path.stat().st_size, hash_file(path)) for path in files}


def check_files(folder: Path, files: Mapping[str, FileStamp], *, sizes_only: bool = False) -> list[str]:
    """Files that differ from their stamps, a message for each; with `sizes_only` their contents are not read."""
    problems = []
    for name, known in files.items():
        path = folder / name
        if not path.is_file():  # opening a pipe would wait for somebody to write to it
            problems.append(f"{path}: {'is not a regular file' if path.exists() else 'is missing'}")
        elif (size := path.stat().st_size) != known.size:
            problems.append(f"{path}: has {size} bytes, expected {known.size}")
        elif not sizes_only and hash_file(path) != known.sha256:
            problems.append(f"{path}: does not match its hash")
    return problems


def _write_rows(path: Path, parts: Sequence[np.ndarray]) -> None:
    """Arrays one after the other as one `.npy`."""
    first = parts[0]
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
    start = io.BytesIO()
    np.lib.format.write_array_header_1_0(start, header)
    _write(path, chain([start.getvalue()], (np.ascontiguousarray(part, first.dtype).tobytes() for part in parts)))


def _write(path: Path, parts: Iterable[bytes]) -> None:
    """Writes a file and waits until it is on disk."""
    with path.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def _mapped(folder: Path, name: str, manifest: Manifest, record: SegmentRecord) -> WindowRows:
    """A set of rows; the vectors are mapped, their counts, scales and lengths are read."""
    kinds = {"": (np.dtype(manifest.dtype).newbyteorder("<"), 2), "_scales": ("<f4", 1), "_lengths": ("<f4", 1)}
    arrays = {
        suffix: read_array(folder / file, *kind, mapped=not suffix)
        for suffix, kind in kinds.items()
        if (file := f"{name}{suffix}.npy") in record.files
    }
    if name == "clips":
        counts = np.full(record.windows, manifest.clips)
    else:
        counts = read_array(folder / counts_file(name), "<i8", 1)
    return WindowRows(PackedRows(arrays), counts)
