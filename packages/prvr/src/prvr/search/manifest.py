"""The manifest of an index: one file, replaced as a whole, that says what the index is and names its segments."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from prvr.data.files import is_real_folder, replace_file
from prvr.data.hashes import read_signed, signed
from prvr.errors import DataError, InputError
from prvr.reading import parse_record
from prvr.search.model import ModelIdentity, RowSet
from prvr.search.vectors import Dtype
from prvr.video import StoreHeader

FORMATS = range(1, 4)
"""Versions of the manifest that are read; the last one is written. 2 added `Manifest.stored`, and 3 `Manifest.bank`."""
MANIFEST, MODEL, SEGMENTS = "index.json", "model", "segments"
VIDEOS, BANK_SCORES = "videos.json", "bank_scores"
MEND = "Put back a copy of it, or delete the index and make it anew."
TABLES = {"keys": ("<i8", 1), "owners": ("<i8", 1), "spans": ("<f8", 2), "steps": ("<i8", 1)}
"""The tables of every segment that are not of a set of rows, with their types and numbers of axes."""
SHOTS: Literal["shots"] = "shots"
WindowLength = float | Literal["shots"] | None


@dataclass(frozen=True)
class FileStamp:
    """Size and hash that a file must have."""

    size: int
    sha256: str


@dataclass(frozen=True)
class SegmentRecord:
    """A segment and which of its videos were removed since it was written.

    Args:
        name: the name of its folder, which is a hash of its files.
        files: its files by name.
        videos, windows, frames: their numbers, those of removed videos included.
        removed: numbers of the removed videos, in ascending order.
    """

    name: str
    files: Mapping[str, FileStamp]
    videos: int
    windows: int
    frames: int
    removed: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files.values())

    @property
    def live(self) -> int:
        """Number of videos that were not removed."""
        return self.videos - len(self.removed)


@dataclass(frozen=True)
class Manifest:
    """What an index is.

    Args:
        index_id: random, fixed when the index is made.
        model: identity of the model that made the vectors.
        encoder: header of the stores that the model reads.
        dtype: the type of vectors on disk.
        window, stride: lengths in seconds; None: videos are not cut. `shots`, without a stride: videos are cut where
            their picture changes.
        dim: width of the vectors.
        clips: number of clips of each window.
        clip_weight, frame_weight: the weights of the two parts of the score.
        model_files: files of the copy of the model.
        next_key: the key of the next window.
        segments: the segments in the order in which they were written.
        stored: rows that are kept beside what the score needs, see `SearchModel.stored`.
        bank: number of unrelated sentences whose scores are kept for every window, see `prvr.search.confidence`; 0 =
            none, as in indexes of version 0.1.
    """

    index_id: str
    model: ModelIdentity
    encoder: StoreHeader
    dtype: Dtype
    window: WindowLength
    stride: float | None
    dim: int
    clips: int
    clip_weight: float
    frame_weight: float
    model_files: Mapping[str, FileStamp]
    next_key: int = 0
    segments: tuple[SegmentRecord, ...] = ()
    stored: Mapping[str, RowSet] = field(default_factory=dict)
    bank: int = 0

    @property
    def row_sets(self) -> dict[str, RowSet]:
        """All sets of rows of a segment, by name."""
        bank = {BANK_SCORES: RowSet(self.bank, lengths=True)} if self.bank else {}
        return {"clips": RowSet(self.dim), "frames": RowSet(self.dim), **self.stored, **bank}

    @property
    def segment_files(self) -> set[str]:
        """Names of the files of each segment."""
        names = {VIDEOS, *(f"{name}.npy" for name in TABLES)}
        for name, rows in self.row_sets.items():
            kept = ("", "_scales") if self.dtype == "int8" else ("",)
            names |= {f"{name}{suffix}.npy" for suffix in (*kept, *(("_lengths",) if rows.lengths else ()))}
            names |= set() if name == "clips" else {counts_file(name)}
        return names

    def without(self, removed: Mapping[str, set[int]]) -> "Manifest":
        """The manifest with more removed videos, given by their numbers in each segment.

        Segments of which every video is removed are left out.
        """
        records = [
            replace(one, removed=tuple(sorted({*one.removed, *removed.get(one.name, ())}))) for one in self.segments
        ]
        return replace(self, segments=tuple(one for one in records if one.live))

    def write(self, folder: Path) -> None:
        """Replaces the manifest in a folder, in one step."""
        body = {"format": FORMATS[-1], "index": asdict(self)}
        replace_file(folder / MANIFEST, lambda file: file.write((signed(body) + "\n").encode()))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads the manifest of an index.

        Raises:
            DataError: there is none, it is damaged or of another format, or the segments are not a folder beside it.
        """
        path = folder / MANIFEST
        body = read_signed(path, FORMATS, MEND, f"{folder}: no index, it has no {MANIFEST}. Make one: prvr index add.")
        try:
            found = parse_record(cls, body.get("index"), str(path), file_names=True)
            _check(found)
        except ValueError as error:
            raise DataError(f"{path}: cannot be used ({error}). {MEND}") from error
        if not is_real_folder(segments := folder / SEGMENTS):
            what = "a symbolic link" if segments.is_symlink() else "none"
            raise DataError(f"{segments}: expected a folder of the index, found {what}. Put the folder itself there.")
        return found


def segment_name(files: Mapping[str, FileStamp]) -> str:
    """The name of a segment with these files: a hash of their hashes."""
    lines = "".join(f"{name}:{stamp.sha256}\n" for name, stamp in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:32]


def counts_file(row_set: str) -> str:
    """The file that holds how many rows of a set each window has; `clips` needs none."""
    return "frame_counts.npy" if row_set == "frames" else f"{row_set}_counts.npy"


def check_windows(window: WindowLength, stride: float | None) -> None:
    """Checks the lengths of windows.

    Raises:
        ValueError: one of them is not positive, or there would be gaps between windows.
    """
    if window in (None, SHOTS) and stride is None:
        return
    if window is None or window == SHOTS or stride is None or not 0 < stride <= window < math.inf:
        raise InputError(
            f"window={window}, stride={stride} seconds: expected 0 < stride <= window, or, without a stride, None "
            "(whole videos) or 'shots'"
        )


def _check(manifest: Manifest) -> None:
    """Checks what a manifest names: its files lie inside the folder of the index, and belong to its segments.

    Raises:
        ValueError: they do not; the message says why.
    """
    check_windows(manifest.window, manifest.stride)
    for name in (*manifest.model_files, *manifest.segment_files):
        if not _PLAIN.fullmatch(name):
            raise ValueError(f"it names the file {name[:80]!r}, expected a plain name inside the index")
    for one in manifest.segments:
        if one.name != segment_name(one.files) or one.files.keys() != manifest.segment_files:
            raise ValueError(f"segment {one.name[:40]!r} has other files than it should, or another name")


_PLAIN = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
