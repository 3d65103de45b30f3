"""The one file that says what an index is: replaced whole, it names the segments that count."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from prvr.data.files import is_real_folder, replace_file
from prvr.data.hashes import digest, read_signed
from prvr.errors import DataError, InputError
from prvr.reading import parse_record
from prvr.search.model import ModelIdentity, RowSet, Score
from prvr.search.vectors import Dtype
from prvr.video import StoreHeader
from prvr.video.store import check_header

__all__ = [
    "MANIFEST", "MEND", "MODEL", "SEGMENTS", "TABLES", "VIDEOS",
    "FileStamp", "Manifest", "SegmentRecord", "check_windows", "counts_file", "segment_name",
]  # fmt: skip

FORMATS = range(1, 3)
"""Versions of the manifest that are read: 1; 2 says that the index stores more rows than those of the score."""
MANIFEST, MODEL, SEGMENTS = "index.json", "model", "segments"
VIDEOS = "videos.json"
MEND = "Put back a copy of it, or delete the index and make it anew."
TABLES = {
    "keys.npy": ("<i8", 1),
    "owners.npy": ("<i8", 1),
    "spans.npy": ("<f8", 2),
    "steps.npy": ("<i8", 1),
}
"""The tables of every segment that are not of a set of rows, with their types and numbers of axes."""


@dataclass(frozen=True)
class FileStamp:
    """A file as it must be."""

    size: int
    sha256: str


@dataclass(frozen=True)
class SegmentRecord:
    """A segment as it must be, and what of it does not count any more.

    Args:
        name: of its folder: a hash of its files.
        files: by name.
        videos, windows, frames: how many, those that were removed included.
        removed: numbers of its videos that do not count any more, in ascending order.
    """

    name: str
    files: Mapping[str, FileStamp]
    videos: int
    windows: int
    frames: int
    removed: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.size for file in self.files.values())

    @property
    def live(self) -> int:
        """Videos that count."""
        return self.videos - len(self.removed)


@dataclass(frozen=True)
class Manifest:
    """What an index is.

    Args:
        index_id: random, fixed when the index is made.
        model: that made the vectors.
        encoder: of the features that the model read.
        dtype: of vectors on disk.
        window, stride: in seconds; None: videos are not cut.
        dim: width of the vectors.
        clips: of each window.
        clip_weight, frame_weight: of the score.
        model_files: of the copy of the model.
        stored: what is kept of the rows of windows beside what the score needs, see `SearchModel.stored`.
        next_key: that no window has had yet.
        segments: in the order in which they were made.
    """

    index_id: str
    model: ModelIdentity
    encoder: StoreHeader
    dtype: Dtype
    window: float | None
    stride: float | None
    dim: int
    clips: int
    clip_weight: float
    frame_weight: float
    model_files: Mapping[str, FileStamp]
    next_key: int = 0
    segments: tuple[SegmentRecord, ...] = ()
    stored: Mapping[str, RowSet] = field(default_factory=dict)

    @property
    def row_sets(self) -> dict[str, RowSet]:
        """Every set of rows that the segments hold."""
        return {"clips": RowSet(self.dim), "frames": RowSet(self.dim), **self.stored}

    @property
    def segment_files(self) -> set[str]:
        """Names of the files of every segment."""
        names = {*TABLES, VIDEOS}
        for name, rows in self.row_sets.items():
            kept = ("", "_scales") if self.dtype == "int8" else ("",)
            names |= {f"{name}{suffix}.npy" for suffix in (*kept, *(("_lengths",) if rows.lengths else ()))}
            names |= set() if name == "clips" else {counts_file(name)}
        return names

    @property
    def score(self) -> Score:
        """How its model scores."""
        return Score(self.dim, self.clips, self.clip_weight, self.frame_weight)

    def without(self, removed: Mapping[str, set[int]]) -> "Manifest":
        """The same with more videos, numbers by segment, that do not count.

        Segments without a video that counts are left out.
        """
        records = [
            replace(one, removed=tuple(sorted({*one.removed, *removed.get(one.name, ())}))) for one in self.segments
        ]
        return replace(self, segments=tuple(one for one in records if one.live))

    def write(self, folder: Path) -> None:
        """Puts it in the place of the one before, in one step."""
        values = asdict(self)
        body: dict[str, Any] = {"format": 2 if self.stored else 1, "index": values}
        if not self.stored:  # as before there were such sets
            del values["stored"]
        body["sha256"] = digest(body)
        text = json.dumps(body, indent=1) + "\n"
        replace_file(folder / MANIFEST, lambda file: file.write(text.encode()))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """That of an index.

        Raises:
            DataError: there is none, it is damaged, or of another format; or its segments are no folder in it.
        """
        path = folder / MANIFEST
        try:
            body = read_signed(path, FORMATS, MEND)
        except FileNotFoundError:
            raise DataError(f"{folder}: no index, it has no {MANIFEST}. Make one: prvr index add.") from None
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
    told = "".join(f"{name}:{stamp.sha256}\n" for name, stamp in sorted(files.items()))
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def counts_file(row_set: str) -> str:
    """The file that holds how many rows of a set each window has; `clips` needs none."""
    return "frame_counts.npy" if row_set == "frames" else f"{row_set}_counts.npy"


def check_windows(window: float | None, stride: float | None) -> None:
    """Refuses lengths that no video can be cut into.

    Raises:
        ValueError: one of them is not positive, or there would be gaps between windows.
    """
    if window is None and stride is None:
        return
    if window is None or stride is None or not 0 < stride <= window < math.inf:
        raise InputError(
            f"window={window}, stride={stride} seconds: expected 0 < stride <= window, or None for both (whole videos)"
        )


def _check(about: Manifest) -> None:
    """Refuses what no index says of itself.

    Raises:
        ValueError: what is wrong.
    """
    check_windows(about.window, about.stride)
    check_header(about.encoder)
    names, weights = [one.name for one in about.segments], (about.clip_weight, about.frame_weight)
    for true, what in (
        (0 < about.dim < _MOST and 0 < about.clips < _MOST, f"dim={about.dim}, clips={about.clips}"),
        (0 <= about.next_key < _MOST, f"next_key={about.next_key}"),
        (all(math.isfinite(weight) for weight in weights), f"weights of the score {weights}"),
        (all(_PLAIN.fullmatch(name) for name in about.model_files), "a file of its model that has no plain name"),
        (len(set(names)) == len(names), "the same segment twice"),
        (about.model.frames == about.encoder.encoder, "a model of another encoder"),
        (all(_ROW_SET.fullmatch(name) for name in about.stored), f"sets of rows with the names {[*about.stored]}"),
        (all(0 < rows.dim < _MOST for rows in about.stored.values()), "a set of rows without a width"),
        (
            all(about.row_sets[name].dim == about.dim for name in ("clips", "frames")),
            "clips or frames of another width than that of the score",
        ),
    ):
        if not true:
            raise ValueError(f"it tells of {what}")
    for one in about.segments:
        bounds = zip(one.removed, one.removed[1:], strict=False)
        for true, what in (
            (one.name == segment_name(one.files), "another name than its files have together"),
            (one.files.keys() == about.segment_files, f"the files {sorted(one.files)}"),
            (0 < one.videos <= one.windows < _MOST and 0 <= one.frames < _MOST, "numbers of vectors that cannot be"),
            (all(first < second for first, second in bounds), "removed videos that are not in ascending order"),
            (not one.removed or 0 <= one.removed[0] <= one.removed[-1] < one.videos, "removed videos beyond its own"),
        ):
            if not true:
                raise ValueError(f"segment {one.name[:40]!r} has {what}")


_PLAIN = re.compile(r"[\w-][\w.-]*", re.ASCII)
_ROW_SET = re.compile(r"(?!(?:keys|owners|spans|steps|videos)$)[a-z][a-z0-9-]{0,63}", re.ASCII)
_MOST = 2**48
