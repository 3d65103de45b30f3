"""The manifest of an index: one file, replaced as a whole, that says what the index is and names its segments."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from prvr.data.atomic import is_real_folder, replace_file
from prvr.data.hashes import read_signed, signed
from prvr.errors import DataError, InputError
from prvr.reading import parse_record
from prvr.search.model import ModelIdentity, RowSet, Score
from prvr.search.vectors import Dtype
from prvr.video import StoreHeader
from prvr.video.store import check_header

FORMATS = range(1, 4)
"""Versions of the manifest that are read: 1; 2 says that the index stores more rows than those of the score; 3 says
that it has a bank of unrelated sentences."""
MANIFEST, MODEL, SEGMENTS = "index.json", "model", "segments"
VIDEOS, BANK_SCORES = "videos.json", "bank_scores"
MEND = "Restore it from a backup, or delete the index and rebuild it."
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

    @property
    def score(self) -> Score:
        """The score of its model."""
        return Score(self.dim, self.clips, self.clip_weight, self.frame_weight)

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
        values = asdict(self)
        body: dict[str, Any] = {
            "format": 3 if self.bank or self.window == SHOTS else 2 if self.stored else 1,
            "index": values,
        }
        if not self.bank:  # older formats have no such keys
            del values["bank"]
            if not self.stored:
                del values["stored"]
        replace_file(folder / MANIFEST, lambda file: file.write((signed(body) + "\n").encode()))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads the manifest of an index.

        Raises:
            DataError: there is none, it is damaged or of another format, or the segments are not a folder beside it.
        """
        path = folder / MANIFEST
        body = read_signed(
            path, FORMATS, MEND, f"{folder}: index not found, there is no {MANIFEST}. Create one with prvr index add."
        )
        try:
            found = parse_record(cls, body.get("index"), str(path), file_names=True)
            _check(found)
        except ValueError as error:
            raise DataError(f"{path}: cannot be used ({error}). {MEND}") from error
        if not is_real_folder(segments := folder / SEGMENTS):
            what = "a symbolic link" if segments.is_symlink() else "none"
            raise DataError(
                f"{segments}: expected a folder inside the index, found {what}. Put the folder itself there."
            )
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
    """Checks that a manifest is possible.

    Raises:
        ValueError: it is not; the message says why.
    """
    check_windows(manifest.window, manifest.stride)
    check_header(manifest.encoder)
    names = [one.name for one in manifest.segments]
    for true, what in (
        (0 < manifest.dim < _MOST and 0 < manifest.clips < _MOST, f"dim={manifest.dim}, clips={manifest.clips}"),
        (0 <= manifest.next_key < _MOST, f"next_key={manifest.next_key}"),
        (0 <= manifest.bank < _MOST, f"bank={manifest.bank}"),
        (
            all(_PLAIN.fullmatch(name) for name in manifest.model_files),
            "a model file that is not a plain name",
        ),
        (len(set(names)) == len(names), "the same segment twice"),
        (manifest.model.frames == manifest.encoder.encoder, "a model of another encoder"),
        (
            all(_ROW_SET.fullmatch(name) for name in manifest.stored),
            f"sets of rows named {[*manifest.stored]}",
        ),
        (all(0 < rows.dim < _MOST for rows in manifest.stored.values()), "a set of rows without a width"),
        (
            all(manifest.row_sets[name].dim == manifest.dim for name in ("clips", "frames")),
            "clips or frames of another width than that of the score",
        ),
    ):
        if not true:
            raise ValueError(f"it has {what}")
    for one in manifest.segments:
        bounds = zip(one.removed, one.removed[1:], strict=False)
        for true, what in (
            (one.name == segment_name(one.files), "another name than its files have together"),
            (one.files.keys() == manifest.segment_files, f"the files {sorted(one.files)}"),
            (0 < one.videos <= one.windows < _MOST and 0 <= one.frames < _MOST, "impossible numbers of vectors"),
            (all(first < second for first, second in bounds), "removed videos that are not in ascending order"),
            (not one.removed or 0 <= one.removed[0] <= one.removed[-1] < one.videos, "removed videos beyond its own"),
        ):
            if not true:
                raise ValueError(f"segment {one.name[:40]!r} has {what}")


_PLAIN = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
_ROW_SET = re.compile(r"(?!(?:keys|owners|spans|steps|videos)$)[a-z][a-z0-9-]{0,63}", re.ASCII)
_MOST = 2**48
