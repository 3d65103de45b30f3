"""Segments: folders of vectors that appear whole, are named by their content, and never change."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from prvr.data.atomic import MARK, publish, temporary_folder
from prvr.data.errors import DataError
from prvr.search.manifest import SEGMENTS, FileStamp, SegmentRecord
from prvr.search.vectors import PackedRows
from prvr.video import VideoEntry

__all__ = ["Segment", "VideoVectors", "check_files", "hash_file", "write_segment"]

_VIDEOS, _KEYS, _OWNERS, _FRAMES, _STEPS, _SPANS = (
    "videos.json", "keys.npy", "owners.npy", "frame_counts.npy", "steps.npy", "spans.npy",
)  # fmt: skip
_BLOCK = 1 << 22


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
class Segment:
    """An open segment; vectors are mapped, not read.

    Args:
        record: as it must be.
        entries: of its videos.
        keys: `(w)` of its windows.
        owners: `(w)` number of the video of each window; windows of a video lie together, in time order.
        spans: `(w, 2)` start and end in seconds.
        clips: `(w * c, d)`.
        frames: of window i: rows `frame_offsets[i]` to `frame_offsets[i + 1]`.
        frame_offsets: `(w + 1)`.
        steps: `(w)` how many of the first frames share the time of the window evenly.
    """

    record: SegmentRecord
    entries: tuple[VideoEntry, ...]
    keys: np.ndarray
    owners: np.ndarray
    spans: np.ndarray
    clips: PackedRows
    frames: PackedRows
    frame_offsets: np.ndarray
    steps: np.ndarray

    @classmethod
    def open(cls, index: Path, record: SegmentRecord) -> "Segment":
        """A segment of an index. Sizes are checked, hashes are not.

        Raises:
            DataError: a file of it is missing, truncated or damaged; names it.
        """
        folder = index / SEGMENTS / record.name
        for name, known in record.files.items():
            size = _size(folder / name)
            if size != known.size:
                raise _damaged(folder / name, f"{size} bytes, expected {known.size}")
        try:
            entries = tuple(_entry(one) for one in json.loads((folder / _VIDEOS).read_text(encoding="utf-8")))
            small = {name: np.load(folder / name) for name in (_KEYS, _OWNERS, _SPANS, _FRAMES, _STEPS)}
            clips, frames = (_mapped(folder, kind) for kind in ("clips", "frames"))
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise _damaged(folder, repr(error)) from error
        return cls(
            record,
            entries,
            small[_KEYS],
            small[_OWNERS],
            small[_SPANS],
            clips,
            frames,
            np.concatenate([[0], np.cumsum(small[_FRAMES])]),
            small[_STEPS],
        )

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
            np.diff(self.frame_offsets[first : stop + 1]),
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
        owners = np.repeat(np.arange(len(videos)), [len(one.keys) for one in videos])
        _write_rows(folder / _OWNERS, [owners])
        for name, field in ((_KEYS, "keys"), (_SPANS, "spans"), (_FRAMES, "frame_counts"), (_STEPS, "steps")):
            _write_rows(folder / name, [getattr(one, field) for one in videos])
        text = json.dumps([asdict(one.entry) for one in videos])
        _synced(folder / _VIDEOS, [text.encode()])
        written = [path for path in sorted(folder.iterdir()) if path.name != MARK]
        files = {path.name: FileStamp(path.stat().st_size, hash_file(path)) for path in written}
        name = hashlib.sha256("".join(f"{k}:{f.sha256}\n" for k, f in files.items()).encode()).hexdigest()[:32]
        publish(folder, index / SEGMENTS / name, lambda there: not check_files(there, files), marked=True)
    frames = sum(len(one.frames.values) for one in videos)
    return SegmentRecord(name, files, len(videos), len(owners), frames)


def check_files(folder: Path, files: dict[str, FileStamp] | Any) -> list[str]:
    """What is wrong with files that must be as they were stamped: reads all of them."""
    said = []
    for name, known in files.items():
        path = folder / name
        size = _size(path)
        if size is None:
            said.append(f"{path}: is missing")
        elif size != known.size:
            said.append(f"{path}: has {size} bytes, expected {known.size}")
        elif hash_file(path) != known.sha256:
            said.append(f"{path}: does not match its hash")
    return said


def hash_file(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _mapped(folder: Path, kind: str) -> PackedRows:
    scales = folder / f"{kind}_scales.npy"
    # "c": what is written stays in memory; torch takes no array that cannot be written. A plain view costs less to cut.
    values = np.load(folder / f"{kind}.npy", mmap_mode="c").view(np.ndarray)
    return PackedRows(values, np.load(scales) if scales.exists() else None)


def _entry(about: dict[str, Any]) -> VideoEntry:
    about["warnings"] = tuple(about["warnings"])
    return VideoEntry(**about)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path}: damaged: {why}. Put back a copy of it, or delete the index and make it anew.")
