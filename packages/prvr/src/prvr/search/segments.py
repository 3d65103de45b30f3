"""Segments of an index: folders of vectors that appear whole and never change."""

import io
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from prvr.data.atomic import MARK, publish, temporary_folder
from prvr.reading import parse_record, read_array, read_json
from prvr.search.manifest import SEGMENTS, Manifest, SegmentRecord, StaleIndex
from prvr.search.vectors import PackedRows, WindowRows
from prvr.video import VideoEntry

_VIDEOS = "videos.json"
TABLES = {"keys": ("<i8", 1), "owners": ("<i8", 1), "spans": ("<f8", 2), "steps": ("<i8", 1)}
"""The tables of every segment that are not of a set of rows, with their types and numbers of axes."""


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

        Args:
            index: the folder of the index.
            manifest: the manifest of the index.
            record: the record of the segment.

        Raises:
            StaleIndex: a file of the segment is missing or damaged.
        """
        folder = index / SEGMENTS / record.name
        try:
            videos = {"videos": read_json(folder / _VIDEOS)}
            segment = cls(
                record,
                parse_record(_Videos, videos, str(folder / _VIDEOS), file_names=True).videos,
                sets={name: _mapped(folder, name, manifest) for name in manifest.row_sets},
                **{name: read_array(folder / f"{name}.npy", *kind) for name, kind in TABLES.items()},
            )
        except (OSError, ValueError) as error:
            raise StaleIndex(f"{folder}: cannot be used ({error})") from error
        counts = {"clips": record.windows * manifest.clips, "frames": record.frames}
        fits = [
            len(segment.entries) == record.videos,
            all(len(getattr(segment, name)) == record.windows for name in TABLES),
            all(len(rows.counts) == record.windows for rows in segment.sets.values()),
            all(
                rows.packed.values.shape == (counts.get(name, rows.counts.sum()), manifest.row_sets[name].dim)
                for name, rows in segment.sets.items()
            ),
        ]
        if not all(fits):
            raise StaleIndex(f"{folder}: its files do not fit each other")
        return segment

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
    """Writes a segment, whole or not at all; it counts when a manifest names it.

    Args:
        index: the folder of the index.
        videos: at least one video; they are written one at a time, so that mapped vectors need no memory.

    Raises:
        DataError: the disk is full, or the place cannot be written.
    """
    name = secrets.token_hex(16)
    with temporary_folder(index / SEGMENTS / name) as folder:
        tables = {name: np.concatenate([getattr(one, name) for one in videos]) for name in ("keys", "spans", "steps")}
        tables["owners"] = np.repeat(np.arange(len(videos)), [len(one.keys) for one in videos])
        for table, values in tables.items():
            _write_rows(folder / f"{table}.npy", [values.astype(TABLES[table][0])])
        for kind in videos[0].sets:
            parts = [one.sets[kind] for one in videos]
            for suffix in parts[0].packed.arrays:
                _write_rows(folder / f"{kind}{suffix}.npy", [part.packed.arrays[suffix] for part in parts])
            _write_rows(folder / f"{kind}_counts.npy", [np.concatenate([part.counts for part in parts]).astype("<i8")])
        (folder / _VIDEOS).write_text(json.dumps([asdict(one.entry) for one in videos]), encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.glob("*.*") if path.name != MARK)
        publish(folder, index / SEGMENTS / name, lambda _: True)
    frames = sum(len(one.sets["frames"].packed) for one in videos)
    return SegmentRecord(name, len(videos), len(tables["owners"]), frames, size)


def _write_rows(path: Path, parts: Sequence[np.ndarray]) -> None:
    """Arrays one after the other as one `.npy`."""
    first = parts[0]
    shape = (sum(len(part) for part in parts), *first.shape[1:])
    header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
    start = io.BytesIO()
    np.lib.format.write_array_header_1_0(start, header)
    _write(path, chain([start.getvalue()], (np.ascontiguousarray(part, first.dtype).tobytes() for part in parts)))


def _write(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)


def _mapped(folder: Path, name: str, manifest: Manifest) -> WindowRows:
    """A set of rows; the vectors are mapped, their counts and lengths are read."""
    arrays = {"": read_array(folder / f"{name}.npy", "<f2", 2, mapped=True)}
    if manifest.row_sets[name].lengths:
        arrays["_lengths"] = read_array(folder / f"{name}_lengths.npy", "<f4", 1)
    return WindowRows(PackedRows(arrays), read_array(folder / f"{name}_counts.npy", "<i8", 1))
